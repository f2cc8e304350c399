"""Applies the numbered migrations, each once, one process at a time, beside running traffic.

Most are for *before* a deploy: the code of the version before goes on with them, so they only add.
`0012_name.after.sql` is for *after* it: what only older code still needs is taken away. While nodes
of two versions run side by side, one of the second kind has to wait until the older are gone.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final

import asyncpg

from bursar.advisory import MIGRATING
from bursar.db import Hosts, Row, Tx
from bursar.errors import CommandFailed

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Row]

# Whoever waits for a table's lock makes everybody else wait behind it. So a migration waits only
# shortly, gives way, and comes back.
_LOCK_TIMEOUT: Final = "500ms"
_TRIES: Final = 60
# How long another process may take to migrate.
_TURN_TIMEOUT: Final = "10min"
_PAUSE_SECONDS: Final = 0.5
_NAME = re.compile(r"(\d{4})_[a-z0-9_]+(\.after)?\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    sql: str
    after_deploy: bool


def migrations() -> list[Migration]:
    """Every migration in order."""
    found = [
        Migration(int(match[1]), entry.read_text("utf-8"), match[2] is not None)
        for entry in resources.files("bursar.migrations").iterdir()
        if (match := _NAME.fullmatch(entry.name))
    ]
    return sorted(found, key=lambda migration: migration.number)


def latest() -> int:
    return migrations()[-1].number


def needed() -> int:
    """The newest that this version cannot do without."""
    return max(each.number for each in migrations() if not each.after_deploy)


async def misfit(tx: Tx) -> str | None:
    """What keeps this version from working on this database, if anything does."""
    newest, breaking = await tx.fetchrow(
        "SELECT coalesce(max(number), 0),"
        " coalesce(max(number) FILTER (WHERE after_deploy), 0) FROM migration"
    ) or (0, 0)
    if newest < needed():
        return f"at migration {newest}, this version needs {needed()}"
    if breaking > latest():
        return f"at migration {breaking}, which this version is too old for"
    return None


async def migrate(dsn: str, *, after_deploy: bool = True) -> list[int]:
    """Brings the database up to date; returns the numbers applied. Safe to run in many at once.

    Without `after_deploy` it stops before the first migration that older code would not survive.
    Raises CommandFailed when it cannot go on.
    """
    connection = await Hosts(dsn).connect()
    try:
        await _take_turns(connection)
        await _prepare(connection)
        newest: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM migration")
        if newest > latest():
            raise CommandFailed(
                f"The database is at migration {newest}, newer than this version of Bursar"
                f" knows ({latest()}). Upgrade Bursar, or point it at another database."
            )
        todo = _allowed([each for each in migrations() if each.number > newest], after_deploy)
        for migration in todo:
            await _apply(connection, migration)
        return [migration.number for migration in todo]
    finally:
        # Closing the session also releases the lock.
        await connection.close()


async def _take_turns(connection: "Connection") -> None:
    """Waits for whoever else is migrating this database."""
    await connection.execute(f"SET lock_timeout = '{_TURN_TIMEOUT}'")
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", MIGRATING)
    except asyncpg.LockNotAvailableError:
        raise CommandFailed("Another process has been migrating this database for long.") from None


def _allowed(pending: Sequence[Migration], after_deploy: bool) -> list[Migration]:
    """Those that may be applied now. A version never needs what comes after a deploy of its own, so
    what follows such a migration belongs to a later version."""
    if after_deploy:
        return list(pending)
    breaking = next((each.number for each in pending if each.after_deploy), None)
    if breaking is None:
        return list(pending)
    if breaking < needed():
        raise CommandFailed(
            f"Migration {breaking} is for after the deploy of a version in between. Upgrade to that"
            " version first, or stop all nodes and run this with --after-deploy."
        )
    return [each for each in pending if each.number < breaking]


async def _prepare(connection: "Connection") -> None:
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS migration (number integer PRIMARY KEY,"
        " applied_at timestamptz NOT NULL DEFAULT now(),"
        " after_deploy boolean NOT NULL DEFAULT false)"
    )


async def _apply(connection: "Connection", migration: Migration) -> None:
    """One migration in one transaction, as soon as it gets its locks at once."""
    for _ in range(_TRIES):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                await connection.execute(migration.sql)
                await connection.execute(
                    "INSERT INTO migration (number, after_deploy) VALUES ($1, $2)",
                    migration.number,
                    migration.after_deploy,
                )
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return
    raise CommandFailed(
        f"Migration {migration.number} did not get its locks in {_TRIES} tries; nothing of it was"
        " done. Something holds them for long: look into pg_stat_activity, then run it again."
    )
