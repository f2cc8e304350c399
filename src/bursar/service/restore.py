"""Restores a backup: the database as it was at a chosen moment, the local chains as they were last.

Chains are not put back to that moment, because a real chain cannot be: payments made since are
found on them.
"""

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from bursar.clock import iso
from bursar.config import MODES, Config
from bursar.custody.master import FILE_NAME
from bursar.custody.setup import open_vault
from bursar.db import Database
from bursar.errors import CommandFailed, present
from bursar.ledger.audit import Finding
from bursar.ledger.audit import audit as audit_books
from bursar.service.backup import Base, History, chain_file, histories, log_since
from bursar.service.datadir import locked_data_dir
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.supervisor import Child, Supervisor
from bursar_localnet.disk import CHAIN_FILE, ChainCopy, check_chain
from bursar_localnet.errors import LocalnetFailed

# Enough to replay the log of a day on a slow disk.
_RECOVERY_SECONDS: Final = 3600.0


class _File(msgspec.Struct, rename={"path": "Path", "checksum": "Checksum"}):
    checksum: str
    path: str | None = None
    encoded_path: str | None = msgspec.field(default=None, name="Encoded-Path")


class _Manifest(msgspec.Struct, rename={"files": "Files"}):
    files: list[_File]


async def restore(config: Config, source: Path, to: datetime | None) -> datetime:
    """Fills the data folder from the backups in `source`; returns the restored moment. Raises
    CommandFailed when that is not possible, if it can before anything is written."""
    base, history, moment = choose(source, to)
    if config.master_key is None and not (config.data_dir / FILE_NAME).exists():
        raise CommandFailed(
            "The master key is in no backup. Put the file that you kept apart to"
            f" {config.data_dir / FILE_NAME}, or set BURSAR_MASTER_KEY."
        )
    with locked_data_dir(config.data_dir):
        server = EmbeddedPostgres(config.data_dir)
        for folder in (server.cluster_dir, *_chains(source, config.data_dir).values()):
            if folder.exists():
                raise CommandFailed(
                    f"{folder} exists already; nothing was restored. Choose an empty folder with"
                    " --data-dir, or move that one away."
                )
        async with _recovered(server, base, history, moment) as dsn:
            db = await Database.open(dsn, 2, config.database_timeout_seconds)
            try:
                await open_vault(db, replace(config, database_url=dsn))
            finally:
                await db.close()
        for copy, folder in _chains(source, config.data_dir).items():
            _put_chain_back(copy, folder)
    return moment


async def verify(source: Path) -> tuple[datetime, list[Finding]]:
    """Checks every base backup against its checksums, then restores the newest state into a
    temporary folder and audits its books. Changes nothing."""
    known = histories(source)
    for base in (base for history in known for base in history.bases):
        await asyncio.to_thread(_check_files, base)
    base, history, moment = choose(source, None)
    with tempfile.TemporaryDirectory(prefix="bursar-") as folder:
        server = EmbeddedPostgres(Path(folder) / "data")
        with locked_data_dir(server.data_dir):
            async with _recovered(server, base, history, moment) as dsn:
                db = await Database.open(dsn, 2, 60)
                try:
                    findings = await audit_books(db, lambda _: None)
                finally:
                    await db.close()
        for copy, chain in _chains(source, Path(folder)).items():
            _put_chain_back(copy, chain)
    return moment, findings


def _check_files(base: Base) -> None:
    """Does what `pg_verifybackup` does, whose copy in the wheel does not run."""
    manifest = msgspec.json.decode((base.folder / "backup_manifest").read_bytes(), type=_Manifest)
    for file in manifest.files:
        path = base.folder / (file.path or bytes.fromhex(file.encoded_path or "").decode())
        try:
            with path.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as problem:
            raise CommandFailed(f"The base backup {base.folder} is damaged: {problem}") from None
        if found != file.checksum:
            raise CommandFailed(f"The base backup is damaged: {path} is not as it was written.")


def choose(source: Path, to: datetime | None) -> tuple[Base, History, datetime]:
    """The newest base backup before the moment, in a log that reaches it."""
    ranges: list[str] = []
    found: list[tuple[datetime, datetime, Base, History]] = []
    for history in histories(source):
        until = history.until
        for base in history.bases:
            if until is not None and base.since <= until:
                ranges.append(f"{iso(base.since)} to {iso(until)}")
                moment = until if to is None else to
                if base.since <= moment <= until:
                    found.append((until if to is None else base.since, base.since, base, history))
    if not found:
        told = "; ".join(ranges) or "nothing, there is no complete backup"
        asked = "There is nothing to restore" if to is None else f"{iso(to)} cannot be restored"
        raise CommandFailed(f"{asked} from {source}. What can be: {told}.")
    _, _, base, history = max(found, key=lambda each: each[:2])
    moment = present(to or history.until, "what can be restored has an end")
    return base, history, moment


@asynccontextmanager
async def _recovered(
    server: EmbeddedPostgres, base: Base, history: History, moment: datetime
) -> AsyncGenerator[str]:
    """The running server, once it has replayed the log up to the moment; stopped at the end of the
    block. If that fails, no service starts on what is left: PostgreSQL refuses a folder with
    `recovery.signal` and no `restore_command`."""
    copied = server.data_dir / "postgres.restored"
    await asyncio.to_thread(_put_database_back, base, history, copied)
    copied.rename(server.cluster_dir)
    with server.leaving_no_socket_dir():
        await server.prepare()
        async with Supervisor(server.data_dir) as supervisor:
            await supervisor.start(_recovering(server.child(), moment))
            yield server.dsn


def _recovering(child: Child, moment: datetime) -> Child:
    """The recovery's settings are passed with the command and not written, because they apply only
    once."""
    settings = {
        # Always fails, because all of the log is in its place already.
        "restore_command": "false",
        "recovery_target_time": moment.isoformat(),
        "recovery_target_timeline": "current",
        "recovery_target_action": "promote",
        "hot_standby": "off",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return replace(child, argv=[*child.argv, *options], ready_seconds=_RECOVERY_SECONDS)


def _put_database_back(base: Base, history: History, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(base.folder, target, symlinks=True)
    target.chmod(0o700)
    for path, name in log_since(history, base.first_segment):
        shutil.copyfile(path, target / "pg_wal" / name)
        (target / "pg_wal" / name).chmod(0o600)
    (target / "recovery.signal").touch(mode=0o600)


def _chains(source: Path, data_dir: Path) -> dict[Path, Path]:
    """The copy of each chain that is in the backup, and the folder it belongs into."""
    return {
        copy: data_dir / f"localnet-{mode}"
        for mode in MODES
        if (copy := chain_file(source, mode)).exists()
    }


def _put_chain_back(copy: Path, folder: Path) -> None:
    """Raises CommandFailed when the copy is damaged."""
    folder.mkdir(mode=0o700)
    ChainCopy(copy, folder / CHAIN_FILE).renew()
    try:
        check_chain(folder / CHAIN_FILE)
    except LocalnetFailed as problem:
        raise CommandFailed(str(problem)) from None
