"""Settings: each has its variable, a bad value is named, secrets stay out of sight."""

import base64
import contextlib
import dataclasses
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from bursar.config import (
    MARK_VARIABLE,
    Config,
    gather,
    load_config,
    load_defaults,
    parse_mode,
    variable,
)
from bursar.errors import ConfigError

KEY = base64.b64encode(bytes(range(32))).decode()
FIELDS = [field.name for field in dataclasses.fields(Config)]

# One good value of every setting, as it is written, and as it is then.
GOOD: dict[str, tuple[str, Any]] = {
    "data_dir": ("/srv/bursar", Path("/srv/bursar")),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("9000", 9000),
    "workers": ("4", 4),
    "unfinished_requests": ("7", 7),
    "trusted_proxies": (" 10.0.0.7, fd00::/8 ", ("10.0.0.7", "fd00::/8")),
    "database_url": ("postgresql://u:p@h/db", "postgresql://u:p@h/db"),
    "database_connections": ("20", 20),
    "database_timeout_seconds": ("30", 30),
    "redis_url": ("rediss://u:p@h:6380/1", "rediss://u:p@h:6380/1"),
    "backup_dir": ("/backup", Path("/backup")),
    "backup_keep": ("3", 3),
    "master_key": (KEY, bytes(range(32))),
    "master_key_previous": (KEY, bytes(range(32))),
    "key_provider": ("kms", "kms"),
    "test_network": ("https://rpc.example.com/?key=x", "https://rpc.example.com/?key=x"),
    "live_network": ("https://a.example.com, http://b:8899", "https://a.example.com,http://b:8899"),
    "localnet_port": ("0", 0),
    "live_localnet_port": ("9898", 9898),
    "chain_timeout_seconds": ("20", 20),
    "priority_fee_max_lamports": ("0", 0),
    "sweep_seconds": ("60", 60),
    "cold_sweep_seconds": ("3600", 3600),
    "fee_payer_low_lamports": ("5000000", 5_000_000),
    "agent_network_lamports": ("0", 0),
    "account_network_lamports": ("3000000000", 3_000_000_000),
    "rate_limits": ("off", False),
    "disk_reserve_mib": ("1024", 1024),
    "test_self_approval": ("off", False),
    "tls_in_front": ("on", True),
    "approval_seconds": ("3600", 3600),
    "pending_max": ("0", 0),
    "refusals_days": ("90", 90),
    "webhooks_allow": (" 10.0.0.0/8, ::1,Localhost ", ("10.0.0.0/8", "::1", "localhost")),
    "webhooks_retry_seconds": ("1, 60", (1, 60)),
    "webhooks_timeout_seconds": ("30", 30),
    "purchases_allow": ("LOCALHOST, 127.0.0.0/8", ("localhost", "127.0.0.0/8")),
    "purchases_response_bytes": ("1024", 1_024),
    "purchases_timeout_seconds": ("5", 5),
    "purchases_continue_seconds": ("60", 60),
    "log_level": ("DEBUG", "debug"),
    "drain_seconds": ("0", 0),
}

INTEGERS = ["", "x", "-1", "+1", "1.5", "1e2", "٣", "２", "9" * 5_000, "1 2"]
BAD: dict[str, list[str]] = {
    "data_dir": ["", "~nobody-of-this-name/data"],
    "host": [""],
    "port": [*INTEGERS, "65536"],
    "workers": [*INTEGERS, "0", "65"],
    "unfinished_requests": [*INTEGERS, "0", "4097"],
    "trusted_proxies": ["10.0.0.1/8", "localhost", "1.2.3"],
    "database_url": ["mysql://h/db", "host=h", "postgresql", "postgresql://[::1/db"],
    "database_connections": [*INTEGERS, "1", "201"],
    "database_timeout_seconds": [*INTEGERS, "0", "601"],
    "redis_url": ["http://h", "h:6379", "redis", "redis://[::1/0"],
    "backup_dir": ["~nobody-of-this-name/backup"],
    "backup_keep": [*INTEGERS, "0", "1001"],
    "master_key": ["x", "ü" * 32, KEY[:-4], KEY + KEY, "0" * 64, KEY.replace("=", "%")],
    "master_key_previous": ["x", KEY + KEY],
    "key_provider": [""],
    "test_network": ["", "devnet", "ftp://h", "http://", "https://[::1", "//rpc.example.com"],
    "live_network": [
        "mainnet",
        "ftp://h",
        "http://",
        "https://[::1",
        "ws://h",
        "http://h:x",
        "localnet,http://h",
        "http://h,,http://g",
        "http://h,http://h",
    ],
    "localnet_port": [*INTEGERS, "65536"],
    "live_localnet_port": [*INTEGERS, "65536"],
    "chain_timeout_seconds": [*INTEGERS, "0", "61"],
    "priority_fee_max_lamports": [*INTEGERS, "1000000001"],
    "sweep_seconds": [*INTEGERS, "0", "3601"],
    "cold_sweep_seconds": [*INTEGERS, "0", "86401"],
    "disk_reserve_mib": [*INTEGERS, "1000000001"],
    "fee_payer_low_lamports": [*INTEGERS, "1000000000000001"],
    "agent_network_lamports": [*INTEGERS, "1000000000001"],
    "account_network_lamports": [*INTEGERS, "1000000000000001"],
    "rate_limits": ["", "yes", "0", "true"],
    "test_self_approval": ["", "yes", "0", "true"],
    "tls_in_front": ["", "yes", "0", "true"],
    "approval_seconds": [*INTEGERS, "0", "31536001"],
    "pending_max": [*INTEGERS, "100001"],
    "refusals_days": [*INTEGERS, "89", "36501"],
    "webhooks_allow": ["10.0.0.0/99", "10.0.0.1/8", "1.2.3", "http://localhost", "a_b", "*"],
    "webhooks_retry_seconds": ["x", "1,x", "-1", "604801", "1;2", "1.5"],
    "webhooks_timeout_seconds": [*INTEGERS, "0", "61"],
    "purchases_allow": ["10.0.0.0/99", "10.0.0.1/8", "1.2.3", "http://localhost", "a_b", "*"],
    "purchases_response_bytes": [*INTEGERS, "1023", "16777217"],
    "purchases_timeout_seconds": [*INTEGERS, "0", "121"],
    "purchases_continue_seconds": [*INTEGERS, "0", "604801"],
    "log_level": ["", "loud", "trace"],
    "drain_seconds": [*INTEGERS, "601"],
}
CASES = [(name, value) for name, values in BAD.items() for value in values]


@pytest.fixture(autouse=True, scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory):
    """The data folder of the checkout, if there is one, has no say here."""
    with contextlib.chdir(tmp_path_factory.mktemp("nowhere")):
        yield


def test_every_setting_is_covered_here():
    """Goal: a new setting cannot come without a good value, bad values and a default."""
    assert set(GOOD) == set(BAD) == set(FIELDS) == set(load_defaults())


def test_the_defaults_alone_are_a_working_configuration():
    """Goal: nothing has to be set, and nothing secret is preset."""
    config = load_config({})
    assert config.port == 8420
    assert config.host == "127.0.0.1"
    assert config.rate_limits
    assert config.master_key is None
    assert config.database_url is None
    assert config.network("test") == "localnet"
    assert config.network("live") is None
    assert config.rpc_addresses("test") == ("http://127.0.0.1:8899",)
    assert config.rpc_addresses("live") == ()
    assert config.data_dir.is_absolute()


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_its_variable(name: str):
    """Goal: BURSAR_ and the name in capitals sets it, spaces around it do not matter."""
    text, expected = GOOD[name]
    assert getattr(load_config({variable(name): text}), name) == expected
    assert getattr(load_config({variable(name): f" {text}\n"}), name) == expected


@pytest.mark.parametrize("name", FIELDS)
def test_a_flag_wins_over_the_variable(name: str):
    """Goal: flags override variables; a flag that is not given does not."""
    text, expected = GOOD[name]
    other = {variable(name): str(load_defaults()[name])}
    assert getattr(load_config(other, **{name: text}), name) == expected
    assert getattr(load_config({variable(name): text}, **{name: None}), name) == expected


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{n}={v[:20]!a}" for n, v in CASES])
def test_a_bad_value_names_its_variable(name: str, value: str):
    """Goal: the message begins with the variable to set right, and is one clear line."""
    with pytest.raises(ConfigError) as problem:
        load_config({variable(name): value})
    assert problem.value.variable == variable(name)
    assert str(problem.value).startswith(f"{variable(name)}: ")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "name", [name for name in FIELDS if BAD[name][: len(INTEGERS)] == INTEGERS]
)
def test_a_number_may_be_what_the_message_says(name: str):
    """Goal: the least and the most that a refusal names are accepted, and nothing beyond."""
    with pytest.raises(ConfigError, match=r"from \d+ to \d+, not 'x'") as problem:
        load_config({variable(name): "x"})
    least, most = map(int, re.findall(r"\d+", str(problem.value)))
    for value in (least, most):
        assert getattr(load_config({variable(name): str(value)}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError):
            load_config({variable(name): str(value)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "mysql://user:hunter2secret@h/db"),
        ("database_url", "postgresql://user:hunter2secret@[::1/db"),
        ("test_network", "ftp://rpc.example.com/hunter2secret"),
        ("live_network", "https://[hunter2secret"),
        ("master_key", "hunter2secret"),
        ("master_key", "hunter2secretü"),
        ("master_key_previous", "hunter2secret"),
        ("live_network", "https://rpc.example.com,hunter2secret"),
    ],
)
def test_a_bad_secret_is_not_quoted_back(name: str, value: str):
    """Goal: the message that reaches the terminal and the log holds no part of the secret."""
    with pytest.raises(ConfigError) as problem:
        load_config({variable(name): value})
    assert "hunter2" not in str(problem.value)
    # `from None`: the cause, which may quote the value, is not printed either.
    assert problem.value.__cause__ is None
    assert problem.value.__suppress_context__ or problem.value.__context__ is None


def test_secrets_are_not_in_repr():
    """Goal: a configuration that is logged by accident gives nothing away."""
    config = load_config(
        {
            "BURSAR_MASTER_KEY": KEY,
            "BURSAR_DATABASE_URL": "postgresql://user:hunter2@h/db",
            "BURSAR_TEST_NETWORK": "https://rpc.example.com/hunter3",
            "BURSAR_LIVE_NETWORK": "https://rpc.example.com/hunter4",
        }
    )
    shown = repr(config) + str(config)
    assert "8420" in shown
    assert "hunter" not in shown
    assert KEY not in shown
    assert repr(bytes(range(32))) not in shown


def test_the_defaults_file_documents_every_setting():
    """Goal: the file that is the reference has a comment above every setting."""
    text = resources.files("bursar").joinpath("defaults.toml").read_text("utf-8")
    for name in FIELDS:
        match = re.search(rf"((?:^[^\n]+\n)+)(?=^{name} = )", text, re.MULTILINE)
        assert match is not None, name
        assert any(line.startswith("# ") for line in match[1].splitlines()), name


def test_a_child_sees_the_same_settings():
    """Goal: what a process passes on to its children reads back as the same configuration."""
    for environment in ({}, {variable(name): text for name, (text, _) in GOOD.items()}):
        config = load_config(environment)
        assert load_config(config.child_environment()) == config


def test_settings_cannot_change_later():
    """Goal: a configuration is frozen once it is read."""
    config = load_config({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.port = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_the_mode_of_a_key_is_test_or_live():
    """Goal: nothing else passes for a mode."""
    assert [parse_mode("test"), parse_mode("live")] == ["test", "live"]
    for text in ("", "Test", "prod", "live "):
        with pytest.raises(ConfigError, match="--mode"):
            parse_mode(text)


@pytest.mark.parametrize(
    ("host", "tls", "warned"),
    [
        ("127.0.0.1", "off", False),
        ("127.8.4.2", "off", False),
        ("::1", "off", False),
        ("localhost", "off", False),
        ("0.0.0.0", "off", True),
        ("::", "off", True),
        ("10.1.2.3", "off", True),
        ("bursar.internal", "off", True),
        ("0.0.0.0", "on", False),
    ],
)
def test_listening_in_the_open(host: str, tls: str, warned: bool):
    """Goal: what others reach without TLS is known as such, unless a proxy is said to be there."""
    config = load_config({"BURSAR_HOST": host, "BURSAR_TLS_IN_FRONT": tls})
    assert config.in_the_open is warned
    assert load_config(config.child_environment()) == config


# bursar.toml -------------------------------------------------------------------------------------


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "bursar.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_file_wins_over_defaults_and_yields_to_variables_and_flags(tmp_path: Path):
    """Goal: option, environment, bursar.toml, defaults, in this order, and it is known which."""
    path = write(tmp_path, 'port = 9001\nworkers = 3\nlive_network = "localnet"\nbackup_keep = "2"')
    environment = {"BURSAR_WORKERS": "4", "BURSAR_BACKUP_KEEP": "5", "HOME": "/root"}
    config = load_config(environment, data_dir=tmp_path, backup_keep=6)
    assert (config.port, config.workers, config.backup_keep) == (9001, 4, 6)
    assert config.live_network == "localnet"
    assert config.localnet_port == 8899
    given = gather(environment, data_dir=tmp_path, backup_keep=6)
    assert given.path == path
    assert given.file.keys() == {"port", "live_network"}
    assert given.environment.keys() == {"workers"}
    assert given.flags.keys() == {"data_dir", "backup_keep"}


def test_a_child_is_told_and_does_not_read_the_file(tmp_path: Path):
    """Goal: a slip of the pen in the file cannot end a service that runs."""
    path = write(tmp_path, "port = 9001")
    config = load_config({}, data_dir=tmp_path)
    path.write_text("port = nonsense")
    assert load_config(config.child_environment() | {MARK_VARIABLE: "x"}) == config


@pytest.mark.parametrize(
    ("text", "named", "word"),
    [
        ("prot = 1", "prot in {}", "no such setting"),
        ("BURSAR_PORT = 1", "BURSAR_PORT in {}", "without BURSAR_"),
        ("[server]\nport = 1", "server in {}", "no such setting"),
        ("port = 65536", "port in {}", "from 0 to 65535, not '65536'"),
        ("port = true", "port in {}", "a whole number"),
        ("rate_limits = false", "rate_limits in {}", 'rate_limits = "off"'),
        ('webhooks_allow = ["localhost"]', "webhooks_allow in {}", "text in quotes"),
        ("sweep_seconds = 1.5", "sweep_seconds in {}", "a whole number"),
        ("test_network = ''", "test_network in {}", "localnet"),
        ('data_dir = "/x"', "data_dir in {}", "BURSAR_DATA_DIR"),
        (f'master_key = "{KEY}"', "master_key in {}", "master.key"),
        (f'master_key_previous = "{KEY}"', "master_key_previous in {}", "environment"),
        ('backup_dir = "backups"', "backup_dir in {}", "every folder"),
        ("port = ", "{}", "is not TOML"),
        ("#" * 70_000, "{}", "is longer"),
    ],
)
def test_a_fault_in_the_file_is_named(tmp_path: Path, text: str, named: str, word: str):
    """Goal: the message begins with the file and the setting in it, and is one clear line."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as problem:
        load_config({}, data_dir=tmp_path)
    assert str(problem.value).startswith(f"{named.format(path)}: ")
    assert word in str(problem.value)
    assert "\n" not in str(problem.value)
    assert KEY not in str(problem.value)


def test_a_file_that_others_may_read_or_write(tmp_path: Path):
    """Goal: nobody else decides what is set, and no password lies open."""
    write(tmp_path, "port = 9001", 0o644)
    assert load_config({}, data_dir=tmp_path).port == 9001
    for text, mode in (("port = 1", 0o664), ('redis_url = "redis://u:hunter2@h"', 0o640)):
        path = write(tmp_path, text, mode)
        with pytest.raises(ConfigError, match=f"chmod 600 {path}") as problem:
            load_config({}, data_dir=tmp_path)
        assert "hunter2" not in str(problem.value)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        load_config({}, data_dir=tmp_path)


def test_the_data_folder_is_found_from_anywhere_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Goal: a command in a folder of the checkout uses the data folder at its top; outside of a
    checkout, and past its top, none is looked for."""
    checkout, deep = tmp_path / "checkout", tmp_path / "checkout" / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / ".bursar").mkdir()
    monkeypatch.chdir(deep)
    assert load_config({}).data_dir == deep / ".bursar", "no checkout"
    (checkout / ".git").mkdir()
    assert load_config({}).data_dir == deep / ".bursar", "nothing there yet"
    write(checkout / ".bursar", "port = 9001")
    config = load_config({})
    assert (config.data_dir, config.port) == (checkout / ".bursar", 9001)
    assert load_config({"BURSAR_DATA_DIR": "other"}).data_dir == deep / "other"
    write(deep / ".bursar", "port = 9002")
    assert load_config({}).port == 9002, "the nearest"
    monkeypatch.setattr("os.geteuid", lambda: 4_242)
    assert load_config({}, data_dir=tmp_path).port == 8420
    with pytest.raises(ConfigError, match="belongs to another user"):
        load_config({}, data_dir=checkout / ".bursar")
