"""Which service, and with which key: options, then variables, then a profile of the user's file.

A key is only ever sent to the address it belongs to: a profile's key goes with the profile's
address, unless `--base-url` says otherwise.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from bursar.client.variables import API_KEY, BASE_URL, DEFAULT_BASE_URL
from bursar.errors import ConfigError

PROFILE: Final = "BURSAR_PROFILE"
PROFILES_FILE: Final = "BURSAR_PROFILES_FILE"
_PROFILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class Connection:
    base_url: str
    # None when no key was found; commands that need no key work without one.
    api_key: str | None = field(repr=False)
    # The profile that address and key came from, if any.
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Profiles:
    default: str | None
    connections: Mapping[str, Connection]


def find_connection(
    *,
    api_key: str | None,
    base_url: str | None,
    profile: str | None,
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    variable_key = environ.get(API_KEY) or None
    variable_url = environ.get(BASE_URL) or DEFAULT_BASE_URL
    if api_key is not None:
        return Connection(base_url or variable_url, api_key)
    named = profile
    if named is None:
        if variable_key is not None:
            return Connection(base_url or variable_url, variable_key)
        named = environ.get(PROFILE) or None
    profiles = load_profiles(environ)
    named = named or profiles.default
    if named is None:
        return Connection(base_url or variable_url, None)
    found = profiles.connections.get(named)
    if found is None:
        raise ConfigError("--profile", f"there is no profile {named!r}; see: bursar profiles")
    return Connection(base_url or found.base_url, found.api_key, named)


def profiles_path(environ: Mapping[str, str] = os.environ) -> Path:
    chosen = environ.get(PROFILES_FILE)
    if chosen:
        return Path(chosen)
    folder = environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "bursar/profiles.toml"


def load_profiles(environ: Mapping[str, str] = os.environ) -> Profiles:
    path = profiles_path(environ)
    try:
        text = path.read_text("utf-8")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Profiles(None, {})
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(PROFILES_FILE, f"{path} cannot be read: {problem}") from None
    if mode & 0o077:
        raise ConfigError(
            PROFILES_FILE, f"{path} holds keys and others may read it; run: chmod 600 {path}"
        )
    try:
        content = tomllib.loads(text)
        return Profiles(
            content.get("default"),
            {
                check_name(name): Connection(row["base_url"], row["api_key"], name)
                for name, row in cast("dict[str, Any]", content.get("profiles", {})).items()
            },
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            PROFILES_FILE, f"{path} is not a file of profiles; correct or remove it"
        ) from None


def save_profiles(profiles: Profiles, environ: Mapping[str, str] = os.environ) -> Path:
    """Writes a temporary file and renames it; only its owner can ever read it."""
    path = profiles_path(environ)
    lines: list[str] = []
    if profiles.default is not None:
        lines.append(f"default = {_quoted(profiles.default)}")
    for name, connection in sorted(profiles.connections.items()):
        lines += [
            "",
            f"[profiles.{name}]",
            f"base_url = {_quoted(connection.base_url)}",
            f"api_key = {_quoted(connection.api_key or '')}",
        ]
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write("\n".join(lines).lstrip("\n") + "\n")
        new.replace(path)
    except OSError as problem:
        raise ConfigError(PROFILES_FILE, f"{path} cannot be written: {problem}") from None
    return path


def check_name(name: str) -> str:
    if _PROFILE_NAME.fullmatch(name) is None:
        raise ConfigError("--profile", "must be 1 to 40 letters, digits, - or _")
    return name


def _quoted(text: str) -> str:
    # Without control characters a JSON string is also a valid TOML string.
    if not text.isprintable():
        raise ConfigError(PROFILES_FILE, "a value holds a control character")
    return json.dumps(text, ensure_ascii=False)
