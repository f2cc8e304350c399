"""The migration that makes triggers of CHECKs, on a database that is in use."""

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from bursar.migrations import migrate as module
from bursar.migrations.migrate import migrate
from tests.migration.conftest import NewDatabase
from tests.migration.test_a_lone_spend import AGENT, SETTING
from tests.processes import until

NUMBER = 9
WRITERS = 4


async def test_it_is_applied_between_spends(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
):
    """Goal: spends lock their wallet's row, then write it. The migration gets its locks between two
    of them at once, however many come, and no spend fails for it."""
    dsn = await new_database()
    steps = module.migrations()
    monkeypatch.setattr(module, "migrations", lambda: steps[: NUMBER - 1])
    await migrate(dsn)
    monkeypatch.setattr(module, "migrations", lambda: steps[:NUMBER])
    monkeypatch.setattr(module, "_TRIES", 1)
    over = asyncio.Event()
    counts = [0] * WRITERS

    async def write(connection: asyncpg.Connection, place: int) -> None:
        while not over.is_set():
            async with connection.transaction():
                await connection.execute(
                    f"SELECT FROM wallet WHERE agent_id = '{AGENT}' FOR NO KEY UPDATE"
                )
                await connection.execute("UPDATE wallet SET decisions = decisions + 1")
            counts[place] += 1

    async def all_write() -> bool:
        return min(counts) >= 3

    async with AsyncExitStack() as stack:
        connections = [await asyncpg.connect(dsn) for _ in range(WRITERS)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        await connections[0].execute(SETTING)
        decisions = await connections[0].fetchval("SELECT decisions FROM wallet")
        async with asyncio.TaskGroup() as writers:
            for place, connection in enumerate(connections):
                writers.create_task(write(connection, place))
            try:
                await until(all_write, seconds=30)
                assert await migrate(dsn) == [NUMBER]
            finally:
                over.set()
        assert await connections[0].fetchval("SELECT decisions FROM wallet") == (
            decisions + sum(counts)
        )
