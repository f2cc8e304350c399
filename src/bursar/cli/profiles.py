"""`bursar login`, `logout`, `profiles` and `whoami`: keys that need not be typed each time."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from bursar.cli.connection import (
    Connection,
    check_name,
    find_connection,
    load_profiles,
    profiles_path,
    save_profiles,
)
from bursar.cli.remote import Remote, remote
from bursar.cli.show import say
from bursar.errors import ConfigError

_KEY_CHARACTERS = 200


def login(
    profile: Annotated[str, typer.Argument(help="The name to save it under.")] = "default",
    base_url: Annotated[
        str | None, typer.Option(help="Where the service is. [BURSAR_BASE_URL]")
    ] = None,
) -> None:
    """Save a key and an address under a name, once the service knows the key.

    Asks for the key without showing it; from a script, pipe it in. The file is readable by you
    alone. The profile saved last becomes the default.
    """
    from bursar.client.client import Bursar

    name = check_name(profile)
    if sys.stdin.isatty():
        key = typer.prompt("API key", hide_input=True, err=True)
    else:
        key = sys.stdin.read(_KEY_CHARACTERS)
    if not key.strip():
        raise ConfigError("login", "no key was given")
    connection = find_connection(api_key=key.strip(), base_url=base_url, profile=None)
    with Bursar(connection.api_key, connection.base_url) as client:
        me = client.keys.me()
    known = load_profiles()
    saved = save_profiles(
        replace(known, default=name, connections={**known.connections, name: connection})
    )
    say(f"Saved as {name} in {saved}: a {me.mode} key of {me.account}, scope {me.scope}.")


def logout(
    profile: Annotated[str, typer.Argument(help="Which one.")] = "default",
) -> None:
    """Forget a saved key. It goes on working; `bursar keys revoke` ends it."""
    known = load_profiles()
    if profile not in known.connections:
        raise ConfigError("profile", f"there is no profile {profile!r}; see: bursar profiles")
    left = {name: row for name, row in known.connections.items() if name != profile}
    default = next(iter(sorted(left)), None) if known.default == profile else known.default
    save_profiles(replace(known, default=default, connections=left))
    say(f"{profile} is forgotten.")


def profiles(
    use: Annotated[str | None, typer.Option(help="Make this one the default.")] = None,
) -> None:
    """List the saved profiles; the one with a star is the default."""
    known = load_profiles()
    if use is not None:
        if use not in known.connections:
            raise ConfigError("--use", f"there is no profile {use!r}")
        known = replace(known, default=use)
        save_profiles(known)
    if not known.connections:
        say(f"None yet in {profiles_path()}. Save one with: bursar login", err=True)
    for name, connection in sorted(known.connections.items()):
        star = "*" if name == known.default else " "
        say(f"{star} {name}\t{_beginning(connection)}\t{connection.base_url}")


@remote
def whoami(to: Remote) -> None:
    """Show the key that commands call with: account, mode, scope and limits."""
    to.out.one(to.client.keys.me())


def _beginning(connection: Connection) -> str:
    """Enough of a key to tell it from others, too little to use."""
    return f"{(connection.api_key or '')[:12]}…"
