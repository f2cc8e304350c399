"""`bursar.toml` in the data folder: settings that every terminal on this machine shares."""

import os
import stat
import tomllib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, Final

from bursar.errors import ConfigError

FILE_NAME: Final = "bursar.toml"
# Every setting with its longest sensible value fits into a tenth of it.
_MOST_BYTES: Final = 65_536
# What cannot stand in the file, and why.
_ELSEWHERE: Final = {
    "data_dir": "says where this file is, so it cannot stand in it; set BURSAR_DATA_DIR",
    "master_key": "belongs into the environment, or into master.key beside this file",
    "master_key_previous": "belongs into the environment, beside BURSAR_MASTER_KEY",
}


def find_data_dir(name: str, start: Path) -> Path:
    """The nearest data folder of ours at or above `start`, within the checkout that it is in;
    otherwise the one to be made in `start`."""
    above = (start, *start.parents)
    top = next((folder for folder in above if (folder / ".git").exists()), start)
    found = (folder / name for folder in above[: above.index(top) + 1])
    return next((folder for folder in found if folder.is_dir() and _is_ours(folder)), start / name)


def read_settings(path: Path, known: Set[str], secret: Set[str]) -> dict[str, str]:
    """The settings in the file as text; none when there is no file. `secret` are those that may
    hold a password. Raises ConfigError naming the file, and the setting at fault."""
    try:
        if not path.exists():
            return {}
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(str(path), "is not a file")
        if status.st_size > _MOST_BYTES:
            raise ConfigError(str(path), f"is longer than {_MOST_BYTES} bytes")
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as problem:
        raise ConfigError(str(path), f"cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), "is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as problem:
        # Says where, and quotes one character at most.
        raise ConfigError(str(path), f"is not TOML: {problem}") from None
    _check_names(path, values, known)
    _check_privacy(path, status, secret & values.keys())
    return {name: _text(path, name, value) for name, value in values.items()}


def named(path: Path, name: str) -> str:
    """The setting as a message names it."""
    return f"{name} in {path}"


def _check_names(path: Path, values: Mapping[str, Any], known: Set[str]) -> None:
    for name in values:
        if name in _ELSEWHERE:
            raise ConfigError(named(path, name), _ELSEWHERE[name])
        if name not in known:
            raise ConfigError(
                named(path, name),
                "there is no such setting; docs/settings.md has them all. Here they are written"
                " without BURSAR_ and in small letters: port = 8420",
            )


def _check_privacy(path: Path, status: os.stat_result, secrets: Set[str]) -> None:
    """Raises ConfigError when somebody else decides what is in the file, or may read secrets."""
    if os.name != "posix":
        return
    if os.geteuid() not in (0, status.st_uid):
        raise ConfigError(str(path), f"belongs to another user (id {status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(str(path), f"may be written by other users; run: chmod 600 {path}")
    if secrets and status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise ConfigError(
            named(path, min(secrets)),
            f"may hold a secret, and other users may read the file; run: chmod 600 {path}",
        )


def _text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(
            named(path, name),
            'is written as text in quotes or as a whole number: rate_limits = "off",'
            ' webhooks_allow = "localhost,::1", port = 8420',
        )
    text = str(value).strip()
    if name == "backup_dir" and text and not text.startswith(("/", "~")):
        raise ConfigError(
            named(path, name), "must begin with / or ~, to be the same from every folder"
        )
    return text


def _is_ours(folder: Path) -> bool:
    """Nobody else can leave a folder above us that we would take our settings from."""
    return os.name != "posix" or folder.stat().st_uid == os.geteuid()
