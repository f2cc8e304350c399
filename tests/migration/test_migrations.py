"""Migrations: their sum, running them side by side, and two versions of the service at once."""

import asyncio
import sys
from hashlib import sha256
from importlib import resources
from typing import Final

import asyncpg
import pytest

from bursar.advisory import MIGRATING
from bursar.db import Database
from bursar.errors import CommandFailed
from bursar.migrations import migrate as module
from bursar.migrations.migrate import Migration, latest, migrate, migrations, misfit
from tests.migration.conftest import NewDatabase
from tests.migration.dump import dump_schema
from tests.processes import clean_environment

# Those of released versions, and the SHA-256 of each.
RELEASED: Final = {
    "0001_initial.sql": "3cac47fc53eb8622362a6b738ee5942d276cd67f681f6b7223225d54c257d1ab"
}

# The sum -----------------------------------------------------------------------------------------


def test_a_released_migration_never_changes():
    """Goal: databases that have run it and databases that will are the same."""
    folder = resources.files("bursar.migrations")
    found = {name: sha256(folder.joinpath(name).read_bytes()).hexdigest() for name in RELEASED}
    assert found == RELEASED


def test_migrations_are_numbered_without_gaps():
    """Goal: two branches that both add a migration are noticed when they meet."""
    assert [each.number for each in migrations()] == list(range(1, latest() + 1))


async def test_a_database_is_the_sum_of_the_migrations(new_database: NewDatabase):
    """Goal: what the files say is all that there is, but for the table of what was applied."""
    migrated = await new_database()
    assert await migrate(migrated) == list(range(1, latest() + 1))
    by_hand = await new_database()
    connection = await asyncpg.connect(by_hand)
    try:
        for each in migrations():
            await connection.execute(each.sql)
    finally:
        await connection.close()
    schema = await dump_schema(migrated, "migration")
    assert schema.count("CREATE TABLE") > 30, "the test sees the schema at all"
    assert schema == await dump_schema(by_hand)


async def test_upgrades_in_any_steps_end_in_the_same_schema(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
):
    """Goal: a database that saw every version is one that was made by the last."""
    through_all, at_once = await new_database(), await new_database()
    for more in ((), (False,), (False, True), (False, True, False)):
        release(monkeypatch, *more)
        await migrate(through_all)
    assert await migrate(at_once) == list(range(1, len(STEPS) + 4))
    assert await dump_schema(at_once) == await dump_schema(through_all)


async def test_migrating_again_does_nothing(new_database: NewDatabase):
    """Goal: every start may migrate."""
    dsn = await new_database()
    await migrate(dsn)
    before = await dump_schema(dsn)
    assert await migrate(dsn) == []
    assert await dump_schema(dsn) == before


async def test_processes_that_migrate_at_once_take_turns(new_database: NewDatabase):
    """Goal: one does the work, the others wait and find nothing to do."""
    dsn = await new_database()
    program = (
        "import asyncio, sys; from bursar.migrations.migrate import migrate;"
        " print(len(asyncio.run(migrate(sys.argv[1]))))"
    )
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, dsn),
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(3)
    ]
    outputs = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(int(out) for out in outputs) == [0, 0, latest()]


async def test_a_migration_waits_for_the_one_that_runs(new_database: NewDatabase):
    """Goal: the advisory lock is what makes them take turns, not luck."""
    dsn = await new_database()
    holder = await asyncpg.connect(dsn)
    watcher = await asyncpg.connect(dsn)
    try:
        await holder.execute("SELECT pg_advisory_lock($1)", MIGRATING)
        waiting = asyncio.create_task(migrate(dsn))
        for _ in range(500):
            blocked = await watcher.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            )
            if blocked:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("nobody waits for the lock")
        assert not waiting.done()
        assert await watcher.fetchval("SELECT to_regclass('migration')") is None
        await holder.execute("SELECT pg_advisory_unlock($1)", MIGRATING)
        assert await waiting == list(range(1, latest() + 1))
    finally:
        await holder.close()
        await watcher.close()


async def test_a_newer_database_is_refused(new_database: NewDatabase):
    """Goal: an old version of Bursar never works on a schema it does not know."""
    dsn = await new_database()
    await migrate(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("INSERT INTO migration (number) VALUES (9999)")
    finally:
        await connection.close()
    with pytest.raises(CommandFailed) as refused:
        await migrate(dsn)
    assert "9999" in str(refused.value)
    assert str(latest()) in str(refused.value)
    assert "Upgrade Bursar" in str(refused.value)


async def test_a_migration_that_fails_leaves_nothing(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
):
    """Goal: a step is done whole or not at all, and is tried again at the next start."""
    dsn = await new_database()
    await migrate(dsn)
    before = await dump_schema(dsn)
    good, bad = "CREATE TABLE half ();", "CREATE TABLE half (); SELECT 1 / 0;"
    steps = migrations()
    monkeypatch.setattr(
        module, "migrations", lambda: [*steps, Migration(len(steps) + 1, bad, False)]
    )
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(dsn)
    assert await dump_schema(dsn) == before
    monkeypatch.setattr(
        module, "migrations", lambda: [*steps, Migration(len(steps) + 1, good, False)]
    )
    assert await migrate(dsn) == [len(steps) + 1]


# Two versions side by side -----------------------------------------------------------------------


def release(monkeypatch: pytest.MonkeyPatch, *more: bool) -> list[int]:
    """A version with further migrations, each for after the deploy or not; returns their numbers.
    Without any it is the version before."""
    first = len(STEPS) + 1
    added = [
        Migration(first + n, f"CREATE TABLE step_{first + n} ()", after)
        for n, after in enumerate(more)
    ]
    monkeypatch.setattr(module, "migrations", lambda: [*STEPS, *added])
    return [migration.number for migration in added]


STEPS = migrations()


async def how_it_fits(dsn: str) -> str | None:
    database = await Database.open(dsn, 1, 10)
    try:
        async with database.connection() as tx:
            return await misfit(tx)
    finally:
        await database.close()


async def test_an_upgrade_in_two_steps(new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch):
    """Goal: before the deploy both versions fit, after it only the newer."""
    dsn = await new_database()
    await migrate(dsn)
    before, after = release(monkeypatch, False, True)
    assert await how_it_fits(dsn) == f"at migration {before - 1}, this version needs {before}"
    assert await migrate(dsn, after_deploy=False) == [before]
    assert await migrate(dsn, after_deploy=False) == []
    assert await how_it_fits(dsn) is None
    release(monkeypatch)
    assert await how_it_fits(dsn) is None, "the older version goes on"
    release(monkeypatch, False, True)
    assert await migrate(dsn) == [after]
    assert await how_it_fits(dsn) is None
    release(monkeypatch)
    assert await how_it_fits(dsn) == (f"at migration {after}, which this version is too old for")


async def test_a_version_is_not_skipped_while_nodes_run(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
):
    """Goal: what comes after a deploy in between is not applied under the feet of older nodes."""
    dsn = await new_database()
    await migrate(dsn)
    numbers = release(monkeypatch, False, True, False)
    with pytest.raises(CommandFailed, match=f"Migration {numbers[1]} "):
        await migrate(dsn, after_deploy=False)
    assert await migrate(dsn) == numbers


async def test_a_migration_gives_way_to_traffic(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
):
    """Goal: one that cannot have its locks makes others wait half a second, not until it has them;
    it comes back by itself, and says so in the end."""
    dsn = await new_database()
    await migrate(dsn)
    migration = Migration(len(STEPS) + 1, "ALTER TABLE spend ADD COLUMN extra text", False)
    monkeypatch.setattr(module, "migrations", lambda: [*STEPS, migration])
    holder, reader = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    loop = asyncio.get_running_loop()
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("LOCK TABLE spend IN ROW EXCLUSIVE MODE")
        waiting = asyncio.create_task(migrate(dsn))
        for _ in range(20):
            started = loop.time()
            await reader.fetchval("SELECT count(*) FROM spend")
            assert loop.time() - started < 2
            await asyncio.sleep(0.05)
        assert not waiting.done()
        await transaction.rollback()
        assert await waiting == [migration.number]

        monkeypatch.setattr(module, "_TRIES", 1)
        further = Migration(len(STEPS) + 2, "ALTER TABLE spend DROP COLUMN extra", False)
        monkeypatch.setattr(module, "migrations", lambda: [*STEPS, migration, further])
        async with holder.transaction():
            await holder.execute("LOCK TABLE spend IN ROW EXCLUSIVE MODE")
            with pytest.raises(CommandFailed, match="did not get its locks"):
                await migrate(dsn)
    finally:
        await holder.close()
        await reader.close()
