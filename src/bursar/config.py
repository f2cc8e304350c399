"""Settings: the defaults file, overridden by `bursar.toml` in the data folder, overridden by
`BURSAR_*`, overridden by flags. Frozen after that."""

import base64
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

from bursar.errors import ConfigError
from bursar.settings_file import FILE_NAME, find_data_dir, named, read_settings

PREFIX: Final = "BURSAR_"
# In the environment of every child of `bursar serve`, which tells it the settings that it needs.
MARK_VARIABLE: Final = "BURSAR_SUPERVISOR_MARK"
Mode = Literal["test", "live"]
MODES: Final[tuple[Mode, ...]] = ("test", "live")
# The value of a network setting that stands for a chain of Bursar's own.
LOCALNET: Final = "localnet"
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One field a setting; `defaults.toml` says what each means."""

    data_dir: Path
    host: str
    port: int
    tls_in_front: bool
    workers: int
    unfinished_requests: int
    trusted_proxies: tuple[str, ...]
    # May hold a password, so it stays out of repr.
    database_url: str | None = field(repr=False)
    database_connections: int
    database_timeout_seconds: int
    disk_reserve_mib: int
    redis_url: str | None = field(repr=False)
    backup_dir: Path | None
    backup_keep: int
    master_key: bytes | None = field(repr=False)
    master_key_previous: bytes | None = field(repr=False)
    key_provider: str
    test_network: str = field(repr=False)
    live_network: str | None = field(repr=False)
    localnet_port: int
    live_localnet_port: int
    chain_timeout_seconds: int
    priority_fee_max_lamports: int
    sweep_seconds: int
    cold_sweep_seconds: int
    fee_payer_low_lamports: int
    agent_network_lamports: int
    account_network_lamports: int
    rate_limits: bool
    approval_seconds: int
    pending_max: int
    refusals_days: int
    test_self_approval: bool
    webhooks_allow: tuple[str, ...]
    webhooks_retry_seconds: tuple[int, ...]
    webhooks_timeout_seconds: int
    purchases_allow: tuple[str, ...]
    purchases_response_bytes: int
    purchases_timeout_seconds: int
    purchases_continue_seconds: int
    log_level: str
    drain_seconds: int

    @property
    def in_the_open(self) -> bool:
        """Whether keys may cross a network unencrypted: others reach the port, and nothing is said
        to end TLS before it."""
        return not (self.tls_in_front or _is_loopback(self.host))

    def network(self, mode: Mode) -> str | None:
        return self.test_network if mode == "test" else self.live_network

    def rpc_addresses(self, mode: Mode) -> tuple[str, ...]:
        """Where the nodes of a mode are; none when it has no network."""
        network = self.network(mode)
        if network == LOCALNET:
            port = self.localnet_port if mode == "test" else self.live_localnet_port
            return (f"http://127.0.0.1:{port}",)
        return () if network is None else tuple(network.split(","))

    def child_environment(self) -> dict[str, str]:
        """The settings as variables, for a child process that must see the same ones."""
        values: dict[str, str] = {}
        for name in load_defaults():
            value = getattr(self, name)
            if isinstance(value, bool):
                value = "on" if value else "off"
            elif isinstance(value, bytes):
                value = base64.b64encode(value).decode()
            elif isinstance(value, tuple):
                value = ",".join(str(item) for item in cast("tuple[object, ...]", value))
            values[variable(name)] = "" if value is None else str(value)
        return values


def variable(name: str) -> str:
    return PREFIX + name.upper()


@cache
def load_defaults() -> dict[str, Any]:
    text = resources.files("bursar").joinpath("defaults.toml").read_text("utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Every setting as text, in the one place that decides it. `path` is `bursar.toml`, which need
    not be there; `overruled` is what the environment says differently."""

    flags: Mapping[str, str]
    environment: Mapping[str, str]
    file: Mapping[str, str]
    defaults: Mapping[str, str]
    path: Path
    overruled: frozenset[str]


def load_config(environment: Mapping[str, str], **flags: object) -> Config:
    """Flags that are None were not given. Raises ConfigError naming the variable at fault, or the
    file and the setting in it."""
    given = gather(environment, **flags)
    try:
        return _read({**given.defaults, **given.file, **given.environment, **given.flags})
    except ConfigError as problem:
        name = problem.variable.removeprefix(PREFIX).lower()
        if name not in given.file:
            raise
        raise ConfigError(named(given.path, name), problem.problem) from None


def gather(environment: Mapping[str, str], **flags: object) -> Given:
    """Finds the data folder and reads `bursar.toml` in it. Raises ConfigError as `load_config`
    does."""
    defaults = {name: str(value) for name, value in load_defaults().items()}
    options = {name: str(value) for name, value in flags.items() if value is not None}
    variables = {
        name: environment[variable(name)].strip()
        for name in defaults.keys() - options.keys()
        if variable(name) in environment
    }
    decided = variables | options
    if "data_dir" not in decided:
        defaults["data_dir"] = str(find_data_dir(defaults["data_dir"], Path.cwd()))
    path = _folder("data_dir", (defaults | decided)["data_dir"]) / FILE_NAME
    # Told all it needs, a child does not die of a file that is edited while the service runs.
    is_child = MARK_VARIABLE in environment
    secret = {field.name for field in fields(Config) if not field.repr}
    file = {} if is_child else read_settings(path, defaults.keys(), secret)
    return Given(
        flags=options,
        environment=variables,
        file={name: text for name, text in file.items() if name not in decided},
        defaults=defaults,
        path=path,
        overruled=frozenset(n for n, text in file.items() if variables.get(n, text) != text),
    )


def _read(raw: Mapping[str, str]) -> Config:
    test_network = _network("test_network", raw["test_network"])
    if test_network is None:
        raise ConfigError(variable("test_network"), "give localnet or the address of an RPC node")
    return Config(
        data_dir=_folder("data_dir", raw["data_dir"]),
        host=_not_empty("host", raw["host"]),
        port=_integer("port", raw["port"], 0, 65_535),
        tls_in_front=_choice("tls_in_front", raw["tls_in_front"], ("on", "off")) == "on",
        workers=_integer("workers", raw["workers"], 1, 64),
        unfinished_requests=_integer("unfinished_requests", raw["unfinished_requests"], 1, 4_096),
        trusted_proxies=_networks("trusted_proxies", raw["trusted_proxies"]),
        database_url=_database_url(raw["database_url"]),
        database_connections=_integer("database_connections", raw["database_connections"], 2, 200),
        database_timeout_seconds=_integer(
            "database_timeout_seconds", raw["database_timeout_seconds"], 1, 600
        ),
        disk_reserve_mib=_integer("disk_reserve_mib", raw["disk_reserve_mib"], 0, 10**9),
        redis_url=_redis_url(raw["redis_url"]),
        backup_dir=_folder("backup_dir", raw["backup_dir"]) if raw["backup_dir"] else None,
        backup_keep=_integer("backup_keep", raw["backup_keep"], 1, 1_000),
        master_key=_master_key("master_key", raw["master_key"]),
        master_key_previous=_master_key("master_key_previous", raw["master_key_previous"]),
        key_provider=_not_empty("key_provider", raw["key_provider"]),
        test_network=test_network,
        live_network=_network("live_network", raw["live_network"]),
        localnet_port=_integer("localnet_port", raw["localnet_port"], 0, 65_535),
        live_localnet_port=_integer("live_localnet_port", raw["live_localnet_port"], 0, 65_535),
        chain_timeout_seconds=_integer(
            "chain_timeout_seconds", raw["chain_timeout_seconds"], 1, 60
        ),
        priority_fee_max_lamports=_integer(
            "priority_fee_max_lamports", raw["priority_fee_max_lamports"], 0, 1_000_000_000
        ),
        sweep_seconds=_integer("sweep_seconds", raw["sweep_seconds"], 1, 3_600),
        cold_sweep_seconds=_integer("cold_sweep_seconds", raw["cold_sweep_seconds"], 1, 86_400),
        fee_payer_low_lamports=_integer(
            "fee_payer_low_lamports", raw["fee_payer_low_lamports"], 0, 10**15
        ),
        agent_network_lamports=_integer(
            "agent_network_lamports", raw["agent_network_lamports"], 0, 10**12
        ),
        account_network_lamports=_integer(
            "account_network_lamports", raw["account_network_lamports"], 0, 10**15
        ),
        rate_limits=_switch("rate_limits", raw["rate_limits"]),
        approval_seconds=_integer("approval_seconds", raw["approval_seconds"], 1, 31_536_000),
        pending_max=_integer("pending_max", raw["pending_max"], 0, 100_000),
        refusals_days=_integer("refusals_days", raw["refusals_days"], 90, 36_500),
        test_self_approval=_switch("test_self_approval", raw["test_self_approval"]),
        webhooks_allow=_hosts_and_networks("webhooks_allow", raw["webhooks_allow"]),
        webhooks_retry_seconds=tuple(
            _integer("webhooks_retry_seconds", item, 0, 604_800)
            for item in _list(raw["webhooks_retry_seconds"])
        ),
        webhooks_timeout_seconds=_integer(
            "webhooks_timeout_seconds", raw["webhooks_timeout_seconds"], 1, 60
        ),
        purchases_allow=_hosts_and_networks("purchases_allow", raw["purchases_allow"]),
        purchases_response_bytes=_integer(
            "purchases_response_bytes", raw["purchases_response_bytes"], 1_024, 16 * 1024**2
        ),
        purchases_timeout_seconds=_integer(
            "purchases_timeout_seconds", raw["purchases_timeout_seconds"], 1, 120
        ),
        purchases_continue_seconds=_integer(
            "purchases_continue_seconds", raw["purchases_continue_seconds"], 1, 7 * 86_400
        ),
        log_level=_choice("log_level", raw["log_level"], _LOG_LEVELS),
        drain_seconds=_integer("drain_seconds", raw["drain_seconds"], 0, 600),
    )


def _integer(name: str, text: str, least: int, most: int) -> int:
    # Twenty digits are beyond every limit here, and far below what `int` refuses to read.
    plain = text.isascii() and text.isdigit() and len(text) <= 20
    if not (plain and least <= int(text) <= most):
        raise ConfigError(
            variable(name), f"must be a whole number from {least} to {most}, not {text!r}"
        )
    return int(text)


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text.lower() not in choices:
        raise ConfigError(variable(name), f"must be one of {', '.join(choices)}, not {text!r}")
    return text.lower()


def _switch(name: str, text: str) -> bool:
    return _choice(name, text, ("on", "off")) == "on"


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


_HOST = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*", re.ASCII)


def _hosts_and_networks(name: str, text: str) -> tuple[str, ...]:
    entries = [item.lower() for item in _list(text)]
    for entry in entries:
        try:
            ip_network(entry)
        except ValueError:
            # Digits and dots alone would be a network with a slip of the pen.
            if _HOST.fullmatch(entry) is None or not any("a" <= c <= "z" for c in entry):
                raise ConfigError(
                    variable(name),
                    f"{entry!r} is neither a hostname nor a network such as 10.0.0.0/8",
                ) from None
    return tuple(entries)


def _networks(name: str, text: str) -> tuple[str, ...]:
    entries = _list(text)
    for entry in entries:
        try:
            ip_network(entry)
        except ValueError:
            raise ConfigError(
                variable(name), f"{entry!r} is no address and no network such as 10.0.0.0/8"
            ) from None
    return tuple(entries)


def _not_empty(name: str, text: str) -> str:
    if not text:
        raise ConfigError(variable(name), "must not be empty")
    return text


def _folder(name: str, text: str) -> Path:
    try:
        return Path(_not_empty(name, text)).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(variable(name), f"names an unknown home: {text!r}") from None


def _database_url(text: str) -> str | None:
    # The value is not quoted back: it may hold a password.
    if not text:
        return None
    if not _is_url(text, ("postgres", "postgresql")):
        raise ConfigError(
            variable("database_url"), "must look like postgresql://user:password@host:5432/bursar"
        )
    return text


def _redis_url(text: str) -> str | None:
    if not text:
        return None
    if not _is_url(text, ("redis", "rediss", "unix")):
        raise ConfigError(
            variable("redis_url"), "must look like redis://user:password@host:6379/0 or rediss://…"
        )
    return text


def _network(name: str, text: str) -> str | None:
    # Not quoted back either: RPC providers put the access token into the address.
    if text in ("", LOCALNET):
        return text or None
    addresses = [address.strip() for address in text.split(",")]
    if not all(_is_address(address) for address in addresses):
        raise ConfigError(
            variable(name),
            "must be localnet or http(s) addresses of RPC nodes, with a comma between them",
        )
    # One node asked twice is not two witnesses.
    if len(set(addresses)) < len(addresses):
        raise ConfigError(variable(name), "names the same address twice")
    return ",".join(addresses)


def _is_address(text: str) -> bool:
    try:
        return (
            _is_url(text, ("http", "https"))
            and bool(urlsplit(text).hostname)
            and urlsplit(text).port != 0
        )
    except ValueError:  # of a port that is none
        return False


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        return urlsplit(text).scheme in schemes
    except ValueError:
        return False


def _master_key(name: str, text: str) -> bytes | None:
    if not text:
        return None
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ConfigError(
            variable(name), "must be base64 of exactly 32 bytes: openssl rand -base64 32"
        )
    return key


def parse_mode(text: str) -> Mode:
    if text not in MODES:
        raise ConfigError("--mode", f"must be test or live, not {text!r}")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
