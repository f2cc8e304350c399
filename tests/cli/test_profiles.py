"""Keys that are saved: by whom they can be read, and when they are used."""

from pathlib import Path

import pytest

from bursar.cli.connection import (
    DEFAULT_BASE_URL,
    Connection,
    Profiles,
    find_connection,
    load_profiles,
    save_profiles,
)
from bursar.cli.exits import ExitCode
from bursar.errors import ConfigError
from tests.cli.console import Console
from tests.support import Service, new_account

PROD = Connection("https://bursar.example.com", "bur_live_prod", "prod")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"BURSAR_PROFILES_FILE": str(tmp_path / "deep/profiles.toml")}


def _find(environ: dict[str, str], **options: str | None) -> Connection:
    given = {"api_key": None, "base_url": None, "profile": None, **options}
    return find_connection(**given, environ=environ)


def test_what_is_saved_is_loaded(environ: dict[str, str]):
    local = Connection("http://127.0.0.1:8420", 'odd"\\key', "a-b_1")
    profiles = Profiles("prod", {"prod": PROD, "a-b_1": local})
    path = save_profiles(profiles, environ)
    assert load_profiles(environ) == profiles
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    save_profiles(Profiles(None, {}), environ)
    assert load_profiles(environ) == Profiles(None, {})


def test_options_win_over_variables_and_those_over_profiles(environ: dict[str, str]):
    """Goal: the nearest says; and a profile's key goes to the profile's address alone."""
    assert _find(environ) == Connection(DEFAULT_BASE_URL, None)
    test = Connection("http://test", "bur_test_1", "test")
    save_profiles(Profiles("prod", {"prod": PROD, "test": test}), environ)
    assert _find(environ) == PROD
    assert _find(environ | {"BURSAR_PROFILE": "test"}) == test
    by_variable = environ | {"BURSAR_API_KEY": "k", "BURSAR_PROFILE": "test"}
    assert _find(by_variable) == Connection(DEFAULT_BASE_URL, "k")
    assert _find(by_variable, profile="prod") == PROD
    assert _find(by_variable, profile="prod", api_key="x") == Connection(DEFAULT_BASE_URL, "x")
    elsewhere = environ | {"BURSAR_BASE_URL": "http://elsewhere"}
    assert _find(elsewhere) == PROD
    assert _find(elsewhere, api_key="x") == Connection("http://elsewhere", "x")
    chosen = _find(elsewhere, base_url="http://chosen")
    assert (chosen.base_url, chosen.api_key) == ("http://chosen", PROD.api_key)
    with pytest.raises(ConfigError, match="no profile 'gone'"):
        _find(environ, profile="gone")


def test_a_file_that_others_may_read_is_refused(environ: dict[str, str]):
    path = save_profiles(Profiles("prod", {"prod": PROD}), environ)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_profiles(environ)


@pytest.mark.parametrize(
    "text", ["nonsense", "[profiles.a]\nbase_url = 1", "profiles = 3", "[profiles.'a b']\n"]
)
def test_a_file_of_something_else_is_refused(environ: dict[str, str], text: str):
    path = save_profiles(Profiles(None, {}), environ)
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_profiles(environ)


def test_the_key_is_in_no_repr():
    assert "bur_live_prod" not in repr(PROD)
    assert "bur_live_prod" not in repr(Profiles("prod", {"prod": PROD}))


async def test_login_use_and_logout(served: Service, tmp_path: Path):
    """Goal: a key is typed once; commands use it by themselves, or the one that is named."""
    account, other = new_account(), new_account()
    key, other_key = await served.key(account=account), await served.key(account=other)
    console = Console({}, tmp_path)
    saved = await console("login", "--base-url", served.url, typed=f"{key}\n")
    assert saved.code == 0, saved.err
    assert account in saved.out
    file = tmp_path / "config/bursar/profiles.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (await console.json("whoami"))["account"] == account
    typed = await console.on_terminal(
        *("login", "other", "--base-url", served.url),
        # The blank comes when what was typed before is forgotten and typing shows no more.
        question="API key: ",
        typed=f"{other_key}\n",
    )
    assert typed.code == 0, typed.out
    assert other_key not in typed.out
    assert (await console.json("whoami"))["account"] == other
    assert (await console.json("whoami", "--profile", "default"))["account"] == account
    listed = await console("profiles", "--use", "default")
    assert [line[0] for line in listed.out.splitlines()] == ["*", " "]
    assert key not in listed.out
    assert (await console.json("whoami"))["account"] == account
    assert "forgotten" in (await console("logout")).out
    assert (await console.json("whoami"))["account"] == other
    wrong = await console("login", "bad", "--base-url", served.url, typed="bur_test_wrong\n")
    assert wrong.code == ExitCode.NOT_ALLOWED
    empty = await console("login", "bad")
    assert empty.code == ExitCode.USAGE
    assert "bad" not in (await console("profiles")).out
    assert (await console("logout", "bad")).code == ExitCode.USAGE
