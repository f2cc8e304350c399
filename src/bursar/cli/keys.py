"""`bursar keys`: make, list and revoke API keys, and replace the master key.

With an API key, through the service, in that key's account and mode. Without one, or where an
option says so, straight on the database of the service on this machine: that is how the first keys
of an account are made.
"""

import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.database import on_database
from bursar.cli.remote import All, Limit, Remote, remote, row_limit
from bursar.cli.show import ROWS, Columns, plain, say
from bursar.clock import SystemClock
from bursar.config import load_config, parse_mode
from bursar.errors import CommandFailed, ConfigError

if TYPE_CHECKING:
    from bursar.client.model import Key
    from bursar.db import Tx

app = typer.Typer(
    no_args_is_help=True, help="Make, list and revoke API keys; replace the master key."
)

_COLUMNS: "Columns[Key]" = {
    "id": lambda key: key.id,
    "name": lambda key: key.name,
    "scope": lambda key: key.scope,
    "agent": lambda key: key.agent_id,
    "created": lambda key: key.created_at,
    "last used": lambda key: key.last_used_at,
    "expires": lambda key: key.expires_at,
    "revoked": lambda key: key.revoked_at,
}

_MOST_DAYS = 36_500
_DataDir = Annotated[str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")]
_Local = Annotated[
    bool, typer.Option("--local", help="Use this machine's database, even if an API key is set.")
]


@app.command()
@remote
def create(
    to: Remote,
    mode: Annotated[
        str | None, typer.Option(help="test or live; makes it on this machine's database.")
    ] = None,
    scope: Annotated[str, typer.Option(help="admin, agent, approver or read.")] = "admin",
    agent: Annotated[str | None, typer.Option(help="The agent of an agent key.")] = None,
    account: Annotated[
        str, typer.Option(help="With --mode: the account; made if it is new.")
    ] = "default",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "command line",
    expires_in: Annotated[
        int | None, typer.Option(min=1, max=_MOST_DAYS, help="Days until it stops working.")
    ] = None,
    data_dir: _DataDir = None,
) -> None:
    """Make a key. It is shown once; only its hash is stored.

    With --mode on the database of this machine, else in the account and mode of your own key.
    """
    if scope not in ("admin", "agent", "approver", "read"):
        raise ConfigError("--scope", f"must be admin, agent, approver or read, not {scope!r}")
    if (scope == "agent") != (agent is not None):
        raise ConfigError("--agent", "names the agent of a key of scope agent, and only of that")
    account, name = _label("--account", account), _label("--name", name)
    lasts = None if expires_in is None else timedelta(days=expires_in)
    if mode is not None:
        _create_local(mode, scope, agent, account, name, lasts, data_dir, as_json=to.out.as_json)
        return
    if to.connection.api_key is None:
        raise ConfigError("--mode", "test or live is needed where no API key is set")
    made = to.client.keys.create(
        name,
        scope=scope,
        agent_id=agent,
        expires_at=None if lasts is None else SystemClock().now() + lasts,
    )
    if to.out.as_json:
        to.out.one(made)
    else:
        _print_secret(made.key or "", made.id)


@app.command("list")
@remote
def list_(
    to: Remote,
    limit: Limit = ROWS,
    every: All = False,
    local: _Local = False,
    data_dir: _DataDir = None,
) -> None:
    """List keys, newest first: your account's, or with --local those of all accounts."""
    if _is_remote(to, local, data_dir):
        to.out.rows(to.client.keys.list(), _COLUMNS, most=row_limit(limit, every))
    else:
        _list_local(data_dir, as_json=to.out.as_json)


@app.command()
@remote
def revoke(to: Remote, key_id: str, local: _Local = False, data_dir: _DataDir = None) -> None:
    """Revoke a key. It stops working everywhere within a second."""
    if _is_remote(to, local, data_dir):
        to.client.keys.revoke(key_id)
    else:
        _revoke_local(key_id, data_dir)
    to.out.done(f"{key_id} is revoked.")


@app.command("rotate-master")
def rotate_master(data_dir: _DataDir = None) -> None:
    """Seal all wallet keys and webhook secrets under a new master key, while the service runs."""
    from bursar.custody.rotate import rotate_master as rotate
    from bursar.service.first_key import COMMAND_LINE, OPERATOR

    config = load_config(os.environ, data_dir=data_dir)
    count = on_database(config, lambda db: rotate(db, config, OPERATOR, COMMAND_LINE))
    say(f"{count} keys are sealed with the new master key. Back it up.")


def _is_remote(to: Remote, local: bool, data_dir: str | None) -> bool:
    return to.connection.api_key is not None and not local and data_dir is None


def _print_secret(secret: str, key_id: str) -> None:
    say(secret)
    say(f"{key_id}: shown only now; keep it safe.", err=True)


# On the database ----------------------------------------------------------------------------------


def _create_local(
    mode: str,
    scope: str,
    agent: str | None,
    account: str,
    name: str,
    lasts: timedelta | None,
    data_dir: str | None,
    *,
    as_json: bool,
) -> None:
    from bursar.access.model import Scope
    from bursar.service.first_key import make_key

    key_mode = parse_mode(mode)
    config = load_config(os.environ, data_dir=data_dir)

    async def work(tx: "Tx") -> Any:
        return await make_key(
            tx,
            config,
            mode=key_mode,
            scope=Scope(scope),
            agent_id=agent,
            account=account,
            name=name,
            expires_in=lasts,
        )

    made = on_database(config, lambda db: db.transact(work))
    if as_json:
        shown = {"id": made.row.id, "key": made.secret, "mode": mode, "scope": scope}
        say(json.dumps({**shown, "account": account, "agentId": agent}))
    else:
        _print_secret(made.secret, made.row.id)


def _list_local(data_dir: str | None, *, as_json: bool) -> None:
    from bursar.access import store
    from bursar.clock import iso_or_none

    found = on_database(
        load_config(os.environ, data_dir=data_dir), lambda db: db.transact(store.list_all_keys)
    )
    rows = [
        {
            "id": row.id,
            "account": account,
            "mode": row.mode,
            "scope": row.scope.value,
            "agentId": row.agent_id,
            "name": row.name,
            "createdAt": iso_or_none(row.created_at),
            "expiresAt": iso_or_none(row.expires_at),
            "lastUsedAt": iso_or_none(row.last_used_at),
            "revokedAt": iso_or_none(row.revoked_at),
        }
        for account, row in found
    ]
    if as_json:
        say(json.dumps(rows))
        return
    for row in rows:
        state = "revoked" if row["revokedAt"] else "active"
        say(
            f"{row['id']}  {state:8}{row['mode']:5} {row['scope']:9}"
            f"{plain(row['account']):12} {plain(row['name'])}"
        )


def _revoke_local(key_id: str, data_dir: str | None) -> None:
    from bursar.access.issue import revoke_key
    from bursar.errors import ApiError
    from bursar.service.first_key import COMMAND_LINE, OPERATOR

    async def work(tx: "Tx") -> None:
        await revoke_key(tx, None, key_id, actor=OPERATOR, request_id=COMMAND_LINE)

    try:
        on_database(load_config(os.environ, data_dir=data_dir), lambda db: db.transact(work))
    except ApiError:
        raise CommandFailed(f"There is no key {key_id}. See: bursar keys list") from None


def _label(flag: str, text: str) -> str:
    label = text.strip()
    if not 1 <= len(label) <= 100 or not label.isprintable():
        raise ConfigError(flag, "must be 1 to 100 printable characters")
    return label
