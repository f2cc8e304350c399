"""Databases of a test's own, for what must not meet the rows of other tests."""

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

from bursar.db import Database, Tx
from bursar.migrations.migrate import migrate
from bursar.service.postgres import ROLE, EmbeddedPostgres
from tests.processes import until

_numbers = itertools.count(1)


@asynccontextmanager
async def own_database(postgres: EmbeddedPostgres) -> AsyncGenerator[tuple[str, Database]]:
    """Up to date and empty; its address and a pool on it."""
    name = f"own_{next(_numbers)}"
    await administer(postgres, f"CREATE DATABASE {name} OWNER {ROLE}")
    dsn = postgres.dsn_for(name)
    await migrate(dsn)
    database = await Database.open(dsn, 4, 10)
    try:
        yield dsn, database
    finally:
        await database.close()
        await administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


async def administer(postgres: EmbeddedPostgres, statement: str) -> None:
    """Runs what only the server's owner may."""
    connection = await asyncpg.connect(postgres.admin_dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def until_waited_for(holder: Tx | asyncpg.Connection) -> None:
    """Returns when another session waits for a lock that this one holds."""
    # Not pg_stat_activity, of which a transaction sees only the sessions of its first look.
    query = """
        SELECT count(*) FROM pg_locks
         WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))
    """
    await until(lambda: holder.fetchval(query), seconds=60)
