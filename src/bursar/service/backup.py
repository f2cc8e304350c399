"""Backups of the embedded database and of the local chains, taken while the service runs.

    BACKUP_DIR/
      system                   whose backups these are
      localnet-test.sqlite3    the chain as it was last: a chain does not go back
      20261115t093000/         a log without a gap; another begins after a restore, or a gap
        base-2026-11-15T09:31:02Z/   a base backup, complete since then
        wal/                         the log since the first of them, as it is written
        until                        up to when all of this can be restored

The master key is in none of it. Why all this is so: docs/decisions/0014.
"""

import asyncio
import errno
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, TypeVar

import structlog

from bursar.clock import SystemClock
from bursar.config import MODES, Config
from bursar.db import Database
from bursar.errors import CommandFailed, ConfigError
from bursar.service import store
from bursar.service.environment import bare_environment
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.programs import binary, run_program
from bursar.service.supervisor import launch_argv
from bursar_localnet.disk import CHAIN_FILE, ChainCopy

T = TypeVar("T")

# At most this old is the newest state that can be restored.
_NOTE_SECONDS: Final = 5.0
_BASE_EVERY: Final = timedelta(days=1)
_BASE_SECONDS: Final = 3600.0
_UNFINISHED: Final = "unfinished-"
_RECEIVED_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_NAMES_TO_TRY: Final = 10
_NAME: Final = "%Y-%m-%dT%H:%M:%SZ"
_SEGMENT: Final = re.compile(r"[0-9A-F]{24}")
_START: Final = re.compile(r"^START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)$", re.MULTILINE)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Base:
    """A base backup. `since` is when it was complete: nothing earlier can be restored from it."""

    folder: Path
    since: datetime

    @property
    def first_segment(self) -> str:
        """The first segment of the log that it needs."""
        found = _START.search((self.folder / "backup_label").read_text("utf-8"))
        if found is None:
            raise CommandFailed(f"{self.folder} is not a base backup: its label names no log file.")
        return found[1]


@dataclass(frozen=True, slots=True)
class History:
    """A log without a gap, and the base backups from which it can be replayed."""

    folder: Path

    @property
    def wal(self) -> Path:
        return self.folder / "wal"

    @property
    def bases(self) -> list[Base]:
        """Oldest first."""
        found = [
            Base(path, datetime.strptime(path.name, f"base-{_NAME}").replace(tzinfo=UTC))
            for path in self.folder.glob("base-*Z")
        ]
        return sorted(found, key=lambda base: base.since)

    @property
    def until(self) -> datetime | None:
        try:
            return datetime.fromisoformat((self.folder / "until").read_text("ascii").strip())
        except (FileNotFoundError, ValueError):
            return None


def histories(folder: Path) -> list[History]:
    return [History(path.parent) for path in sorted(folder.glob("*/wal"))]


def chain_file(folder: Path, mode: str) -> Path:
    return folder / f"localnet-{mode}.sqlite3"


def backup_folder(config: Config) -> Path:
    """Raises ConfigError when none is set, or when it lies inside the data folder and would be lost
    with it."""
    folder = config.backup_dir
    if folder is None:
        raise ConfigError("BURSAR_BACKUP_DIR", "is not set, so there are no backups")
    if config.database_url is not None:
        raise ConfigError(
            "BURSAR_BACKUP_DIR",
            "is for the embedded database; BURSAR_DATABASE_URL names one of your own, which has"
            " tools of its own for this",
        )
    if folder.resolve().is_relative_to(config.data_dir.resolve()):
        raise ConfigError("BURSAR_BACKUP_DIR", "must not be inside the data folder")
    return folder


async def run_backups(config: Config) -> None:
    """Receives the log, notes how far it reaches and takes base backups, until cancelled. Raises
    when it cannot go on; the supervisor starts it again."""
    folder = backup_folder(config)
    server = EmbeddedPostgres(config.data_dir)
    async with _connected(server, config) as db:
        history = await _begin(db, folder)
        chains = [
            ChainCopy(config.data_dir / f"localnet-{mode}" / CHAIN_FILE, chain_file(folder, mode))
            for mode in MODES
        ]
        receive = [
            *(str(binary("pg_receivewal")), "--directory", str(history.wal)),
            *("--dbname", server.admin_dsn, "--slot", _slot(history)),
            *("--status-interval", "1", "--no-loop"),
        ]
        receiver = await asyncio.create_subprocess_exec(
            *launch_argv(receive, death_signal=signal.SIGTERM),
            env=bare_environment(),
            stdin=asyncio.subprocess.DEVNULL,
        )
        ended = asyncio.create_task(receiver.wait())

        async def base_backup() -> None:
            base = await take_base(server, history)
            _log.info("base_backup_taken", folder=str(base.folder))
            await asyncio.to_thread(_prune, folder, config.backup_keep)

        # Beside the notes: it may take an hour, or fail every time, and the log goes on meanwhile.
        basing: asyncio.Task[None] | None = None
        try:
            while not ended.done():
                if basing is not None and basing.done():
                    basing.result()  # raises what went wrong
                    basing = None
                newest = max((base.since for base in history.bases), default=None)
                due = newest is None or SystemClock().now() - newest > _BASE_EVERY
                if basing is None and due:
                    basing = asyncio.create_task(base_backup())
                await _note(db, chains, history)
                await asyncio.wait({ended}, timeout=_NOTE_SECONDS)
        finally:
            if basing is not None:
                basing.cancel()
                await asyncio.gather(basing, return_exceptions=True)
            if not ended.done():
                receiver.terminate()
            await ended
    raise CommandFailed(f"pg_receivewal ended with exit code {receiver.returncode}.")


async def backup_now(config: Config) -> tuple[Base, datetime]:
    """Takes another base backup while the service runs; returns up to when everything can be
    restored."""
    folder = backup_folder(config)
    server = EmbeddedPostgres(config.data_dir)
    async with _connected(server, config) as db:

        async def begun() -> History | None:
            async with db.connection() as tx:
                slot = await store.slot(tx)
            history = None if slot is None else _history(folder, slot)
            return history if history is not None and history.wal.exists() else None

        # A service that has just started may not have begun its backups yet.
        problem = f"Nothing is backed up to {folder}: is it the BURSAR_BACKUP_DIR of bursar serve?"
        history = await _soon(begun, problem)
    # Only the service removes old ones: how many stay is a setting of its own process.
    base = await take_base(server, history)

    async def saved() -> datetime | None:
        until = history.until
        return until if until is not None and until >= base.since else None

    until = await _soon(saved, "The log is not received: look for `backup` in the service's log.")
    return base, until


async def take_base(server: EmbeddedPostgres, history: History) -> Base:
    """Includes the log that was written meanwhile, so that the base backup can be verified by
    itself."""
    made = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=history.folder))
    try:
        await run_program(
            [
                *(str(binary("pg_basebackup")), "--pgdata", str(made)),
                *("--dbname", server.admin_dsn, "--wal-method", "stream", "--checkpoint", "fast"),
                *("--manifest-checksums", "SHA256"),
            ],
            seconds=_BASE_SECONDS,
        )
        # Rounded up to a whole second, because the name has no fractions and nothing earlier can be
        # restored.
        since = (SystemClock().now() + timedelta(seconds=1)).replace(microsecond=0)
        return await asyncio.to_thread(name_base, made, history.folder, since)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def name_base(made: Path, folder: Path, since: datetime) -> Base:
    """Names a finished base backup. The service and a person may each finish one in the same
    second: then the later gets the name of the next."""
    for _ in range(_NAMES_TO_TRY):
        final = folder / f"base-{since.strftime(_NAME)}"
        try:
            made.rename(final)
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            since += timedelta(seconds=1)
        else:
            return Base(final, since)
    raise CommandFailed(f"There are too many base backups of one moment in {folder}.")


async def stop_holding_log(config: Config, server: EmbeddedPostgres) -> None:
    """Drops the slot after backups were turned off: nobody receives the log any more, so PostgreSQL
    need not keep it."""
    async with _connected(server, config) as db, db.connection() as tx:
        await store.drop_slots(tx)


async def _soon(look: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
    """Waits until `look` finds something. Raises CommandFailed when that takes too long."""
    deadline = asyncio.get_running_loop().time() + _RECEIVED_SECONDS
    while True:
        found = await look()
        if found is not None:
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise CommandFailed(otherwise)
        await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def _connected(server: EmbeddedPostgres, config: Config) -> AsyncGenerator[Database]:
    db = await Database.open(server.admin_dsn, 2, config.database_timeout_seconds)
    try:
        yield db
    finally:
        await db.close()


async def _begin(db: Database, folder: Path) -> History:
    """The folder for the log: that of the existing slot, or a new one with a new slot."""
    async with db.connection() as tx:
        _own(folder, await store.system_identifier(tx))
        slot = await store.slot(tx)
        if slot is not None and _history(folder, slot).wal.exists():
            return _history(folder, slot)
        await store.drop_slots(tx)
        slot = store.SLOT_PREFIX + SystemClock().now().strftime("%Y%m%dt%H%M%S")
        history = _history(folder, slot)
        history.wal.mkdir(mode=0o700, parents=True)
        await store.create_slot(tx, slot)
    return history


def _own(folder: Path, system: str) -> None:
    """Raises CommandFailed if the folder holds another database's backups: mixed, neither could be
    restored."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder / "system"
    if not owner.exists():
        _write(owner, system)
    if owner.read_text("ascii").strip() != system:
        raise CommandFailed(
            f"{folder} has the backups of another database. Choose another BURSAR_BACKUP_DIR."
        )


def _history(folder: Path, slot: str) -> History:
    return History(folder / slot.removeprefix(store.SLOT_PREFIX))


def _slot(history: History) -> str:
    return store.SLOT_PREFIX + history.folder.name


async def _note(db: Database, chains: Sequence[ChainCopy], history: History) -> None:
    """Notes that everything up to now can be restored. The chains are copied after this moment, so
    they hold every payment that the database knew of then, and the log is received beyond it."""
    async with db.connection() as tx:
        until = await store.clock(tx)
        for chain in chains:
            await asyncio.to_thread(chain.renew)
        position = await store.commit_something(tx)

        async def received() -> Literal[True] | None:
            return True if await store.received(tx, _slot(history), position) else None

        await _soon(received, f"The log is not received in {history.wal}.")
    _write(history.folder / "until", until.isoformat())


def _prune(folder: Path, keep: int) -> None:
    """Keeps the newest `keep` base backups, and of each log what they need."""
    known = histories(folder)
    newest = sorted((base for h in known for base in h.bases), key=lambda b: b.since)[-keep:]
    for history in known:
        _forget_unfinished(history)
        bases = [base for base in history.bases if base in newest]
        for base in history.bases:
            if base not in newest:
                shutil.rmtree(base.folder)
        if bases:
            _forget_log(history, min(base.first_segment for base in bases))
        elif history != known[-1]:
            shutil.rmtree(history.folder)


def _forget_unfinished(history: History) -> None:
    """What a process that was killed left. One that still runs is younger than it may last."""
    oldest = SystemClock().now().timestamp() - _BASE_SECONDS
    for path in history.folder.glob(f"{_UNFINISHED}*"):
        if path.stat().st_mtime < oldest:
            shutil.rmtree(path, ignore_errors=True)


def _forget_log(history: History, first: str) -> None:
    for path in history.wal.iterdir():
        if _SEGMENT.fullmatch(path.name) and path.name < first:
            path.unlink()


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(f"{text}\n", "ascii")
    new.replace(path)


def log_since(history: History, first: str) -> Sequence[tuple[Path, str]]:
    """The files of the log from `first` on, each with the name that PostgreSQL looks for. The last
    one is still being written."""
    # Sorted, a complete file comes after its `.partial` one and replaces it.
    paths = sorted(history.wal.iterdir(), reverse=True)
    found = {path.name.removesuffix(".partial"): path for path in paths}
    return [
        (path, name)
        for name, path in sorted(found.items())
        if name.endswith(".history") or name >= first
    ]
