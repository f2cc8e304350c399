"""`bursar keys`: make, list and revoke API keys and replace the master key, straight on the
database of the service."""

import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bursar.cli.database import on_database
from bursar.config import load_config, parse_mode
from bursar.errors import CommandFailed, ConfigError

if TYPE_CHECKING:
    from bursar.db import Tx

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True, help="Make, list and revoke API keys; replace the master key."
)

_MOST_DAYS = 36_500
_DataDir = Annotated[str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")]


@app.command()
def create(
    mode: Annotated[str, typer.Option(help="test or live.")],
    scope: Annotated[str, typer.Option(help="admin, agent, approver or read.")] = "admin",
    agent: Annotated[str | None, typer.Option(help="The agent of an agent key.")] = None,
    account: Annotated[str, typer.Option(help="The account; made if it is new.")] = "default",
    name: Annotated[str, typer.Option(help="What the key is for.")] = "command line",
    expires_in: Annotated[
        int | None, typer.Option(min=1, max=_MOST_DAYS, help="Days until it stops working.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    data_dir: _DataDir = None,
) -> None:
    """Make a key. It is shown once; only its hash is stored."""
    from bursar.access.model import Scope
    from bursar.service.first_key import make_key

    if scope not in list(Scope):
        raise ConfigError("--scope", f"must be admin, agent, approver or read, not {scope!r}")
    if (scope == Scope.AGENT) != (agent is not None):
        raise ConfigError("--agent", "names the agent of a key of scope agent, and only of that")
    account, name = _label("--account", account), _label("--name", name)
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
            expires_in=None if expires_in is None else timedelta(days=expires_in),
        )

    made = on_database(config, lambda db: db.transact(work))
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "id": made.row.id,
                    "key": made.secret,
                    "mode": mode,
                    "scope": scope,
                    "account": account,
                    "agentId": agent,
                }
            )
        )
    else:
        typer.echo(made.secret)
        typer.echo(f"{made.row.id}: shown only now; keep it safe.", err=True)


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
    data_dir: _DataDir = None,
) -> None:
    """List all keys of all accounts, newest first."""
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
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        state = "revoked" if row["revokedAt"] else "active"
        typer.echo(
            f"{row['id']}  {state:8}{row['mode']:5} {row['scope']:9}"
            f"{row['account']:12} {row['name']}"
        )


@app.command()
def revoke(key_id: str, data_dir: _DataDir = None) -> None:
    """Revoke a key. It stops working everywhere within a second."""
    from bursar.access.issue import revoke_key
    from bursar.errors import ApiError
    from bursar.service.first_key import COMMAND_LINE, OPERATOR

    async def work(tx: "Tx") -> None:
        await revoke_key(tx, None, key_id, actor=OPERATOR, request_id=COMMAND_LINE)

    try:
        on_database(load_config(os.environ, data_dir=data_dir), lambda db: db.transact(work))
    except ApiError:
        raise CommandFailed(f"There is no key {key_id}. See: bursar keys list") from None
    typer.echo(f"{key_id} is revoked.")


@app.command("rotate-master")
def rotate_master(data_dir: _DataDir = None) -> None:
    """Seal all wallet keys and webhook secrets again under a new master key, while all runs."""
    from bursar.custody.rotate import rotate_master as rotate
    from bursar.service.first_key import COMMAND_LINE, OPERATOR

    config = load_config(os.environ, data_dir=data_dir)
    count = on_database(config, lambda db: rotate(db, config, OPERATOR, COMMAND_LINE))
    typer.echo(f"{count} keys are sealed with the new master key. Back it up.")


def _label(flag: str, text: str) -> str:
    label = text.strip()
    if not 1 <= len(label) <= 100 or not label.isprintable():
        raise ConfigError(flag, "must be 1 to 100 printable characters")
    return label
