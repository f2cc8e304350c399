"""Applies the numbered migrations, each once, one process at a time."""

import re
from importlib import resources
from typing import Final

from bursar.db import Hosts, Tx
from bursar.errors import CommandFailed

# Any fixed number; it names "migrating this database" among advisory locks.
_LOCK: Final = 0x42555253
# A migration that cannot get its locks must give way to the traffic, not queue in front of it.
_LOCK_TIMEOUT: Final = "10s"
_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


def migrations() -> list[tuple[int, str]]:
    """(number, SQL) of every migration in order."""
    found = [
        (int(match[1]), entry.read_text("utf-8"))
        for entry in resources.files("bursar.migrations").iterdir()
        if (match := _NAME.fullmatch(entry.name))
    ]
    return sorted(found)


def latest() -> int:
    return migrations()[-1][0]


async def applied(tx: Tx) -> int:
    """The number of the newest migration the database has."""
    return await tx.fetchval("SELECT coalesce(max(number), 0) FROM migration")


async def migrate(dsn: str) -> list[int]:
    """Brings the database up to date; returns the numbers applied. Safe to run in many at once."""
    connection = await Hosts(dsn).connect()
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS migration"
            " (number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        newest = await connection.fetchval("SELECT coalesce(max(number), 0) FROM migration")
        if newest > latest():
            raise CommandFailed(
                f"The database is at migration {newest}, newer than this version of Bursar"
                f" knows ({latest()}). Upgrade Bursar, or point it at another database."
            )
        todo = [(number, sql) for number, sql in migrations() if number > newest]
        for number, sql in todo:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                await connection.execute(sql)
                await connection.execute("INSERT INTO migration (number) VALUES ($1)", number)
        return [number for number, _ in todo]
    finally:
        # Closing the session also releases the lock.
        await connection.close()
