"""`bursar log`: who did what."""

import os
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.database import on_database
from bursar.cli.remote import All, From, Limit, Remote, To, download, remote, row_limit
from bursar.cli.show import ROWS, Columns
from bursar.config import load_config
from bursar.errors import ConfigError

if TYPE_CHECKING:
    from bursar.client.model import LogLine
    from bursar.db import Database


@dataclass(frozen=True, slots=True)
class LocalLine:
    """A line with where it was done; what concerns the whole service has no account."""

    created_at: datetime
    account: str | None
    mode: str | None
    actor: str
    action: str
    subject: str
    request_id: str


_MOST_LOCAL = 1_000_000
_COLUMNS: "Columns[LogLine]" = {
    "at": lambda line: line.created_at,
    "actor": lambda line: line.actor,
    "action": lambda line: line.action,
    "subject": lambda line: line.subject,
    "request": lambda line: line.request_id,
}
_LOCAL_COLUMNS: Columns[LocalLine] = {
    "at": lambda line: line.created_at,
    "account": lambda line: line.account,
    "mode": lambda line: line.mode,
    "actor": lambda line: line.actor,
    "action": lambda line: line.action,
    "subject": lambda line: line.subject,
    "request": lambda line: line.request_id,
}


@remote
def log(
    to: Remote,
    actor: Annotated[str | None, typer.Option(help="Only what this key did.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this, e.g. agent.changed.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only to this id or hostname.")] = None,
    from_: From = None,
    until: To = None,
    limit: Limit = ROWS,
    every: All = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="All matching lines as CSV, however many.")
    ] = False,
    local: Annotated[
        bool,
        typer.Option("--local", help="All accounts, from the database of this machine."),
    ] = False,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")
    ] = None,
) -> None:
    """Show who did what, newest first: as a table, with --json or with --csv.

    Of your account, or with --local of all accounts and of the service itself.
    """
    filters: dict[str, Any] = {
        "actor": actor,
        "action": action,
        "subject": subject,
        "from_": from_,
        "to": until,
    }
    most = row_limit(limit, every)
    if local or data_dir is not None:
        if as_csv or any(filters.values()):
            raise ConfigError("--local", "takes no filter and no --csv")
        to.out.rows(_local_lines(most or _MOST_LOCAL, data_dir), _LOCAL_COLUMNS, most=most)
    elif as_csv:
        download(to, to.client.audit_log.export(**filters))
    else:
        to.out.rows(to.client.audit_log.list(**filters), _COLUMNS, most=most)


def _local_lines(most: int, data_dir: str | None) -> list[LocalLine]:
    from bursar.trail import store

    async def read(db: "Database") -> list[LocalLine]:
        async with db.connection() as tx:
            found = await store.list_whole_log(tx, most + 1)
        return [
            LocalLine(
                created_at=row.created_at,
                account=account,
                mode=mode,
                actor=row.actor,
                action=row.action,
                subject=row.subject,
                request_id=row.request_id,
            )
            for account, mode, row in found
        ]

    return on_database(load_config(os.environ, data_dir=data_dir), read)
