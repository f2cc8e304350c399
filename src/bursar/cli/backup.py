"""`bursar backup` and `bursar restore`: the embedded database and the local chains."""

import asyncio
import os
from datetime import UTC, datetime
from typing import Annotated

import typer

from bursar.cli.database import attempt
from bursar.cli.show import say
from bursar.clock import iso
from bursar.config import load_config
from bursar.errors import CommandFailed, ConfigError

app = typer.Typer(help="Take a base backup now, or check that the backups can be restored.")
_DataDir = Annotated[str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")]
_BackupDir = Annotated[str | None, typer.Option(help="The backups. [BURSAR_BACKUP_DIR]")]


@app.callback(invoke_without_command=True)
def backup(
    context: typer.Context, data_dir: _DataDir = None, backup_dir: _BackupDir = None
) -> None:
    """Takes a base backup beside the running service, unless a command such as `verify` was given.

    The service takes one every day by itself, and saves the log all the time.
    """
    if context.invoked_subcommand is not None:
        return
    from bursar.service.backup import backup_now

    config = load_config(os.environ, data_dir=data_dir, backup_dir=backup_dir)
    base, until = attempt(lambda: backup_now(config))
    say(f"{base.folder}\nCan be restored: {iso(base.since)} to {iso(until)}, and on.")


@app.command()
def verify(backup_dir: _BackupDir = None) -> None:
    """Restore the newest state into a temporary folder and audit it; check every base backup."""
    from bursar.service.restore import verify as verify_backups

    config = load_config(os.environ, backup_dir=backup_dir)
    if config.backup_dir is None:
        raise ConfigError("BURSAR_BACKUP_DIR", "is not set, so there are no backups")
    moment, findings = asyncio.run(verify_backups(config.backup_dir))
    wrong = [line for finding in findings for line in finding.differences]
    if wrong:
        raise CommandFailed("The backup can be restored, but its books differ: " + "; ".join(wrong))
    say(f"Restored to {iso(moment)} and audited: the books are right.")


@app.command(hidden=True)
def keep() -> None:
    """What `bursar serve` runs: receives the log, notes up to when it reaches."""
    from bursar.db import OUT_OF_REACH
    from bursar.logs import set_up_logs
    from bursar.service.backup import run_backups

    config = load_config(os.environ)
    set_up_logs(config.log_level, "backup")
    try:
        asyncio.run(run_backups(config))
    except (*OUT_OF_REACH, OSError) as problem:
        raise CommandFailed(f"Backups are interrupted: {problem!r}") from None


def restore(
    to: Annotated[
        str | None, typer.Option(help="The moment, e.g. 2026-11-15T09:30:00Z. (the newest)")
    ] = None,
    data_dir: _DataDir = None,
    backup_dir: _BackupDir = None,
) -> None:
    """Fill an empty data folder from a backup, as everything was at a moment.

    The master key has to be there: as master.key in the folder, or in BURSAR_MASTER_KEY.
    """
    from bursar.service.restore import restore as restore_from

    config = load_config(os.environ, data_dir=data_dir, backup_dir=backup_dir)
    if config.backup_dir is None:
        raise ConfigError("BURSAR_BACKUP_DIR", "is not set; --backup-dir says where backups are")
    moment = asyncio.run(
        restore_from(config, config.backup_dir, None if to is None else _moment(to))
    )
    say(
        f"{config.data_dir} is as it was at {iso(moment)}. Start `bursar serve` on it: payments"
        " made since are looked for on the chain before anything is signed. Then: `bursar audit`."
    )


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            "--to", f"must be a time such as 2026-11-15T09:30:00Z, not {text!r}"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
