"""What a commit promises does not hang on the defaults of a role, a database or a server."""

from pathlib import Path

import asyncpg
import pytest

from bursar.db import Database, Tx
from bursar.errors import CommandFailed
from bursar.service.postgres import ROLE, EmbeddedPostgres, running_postgres
from tests.databases import administer, own_database

_IN_FORCE = """
SELECT ARRAY[current_setting('synchronous_commit'), current_setting('transaction_isolation'),
             current_setting('transaction_read_only')]
"""


@pytest.mark.parametrize("default", ["off", "local", "remote_write"])
async def test_weak_defaults_of_a_database_do_not_reach_a_transaction(
    postgres: EmbeddedPostgres, default: str
):
    """Goal: every way to write is durable and reads what was committed, and says so itself, so that
    it holds for any session that a pooler may lead it to."""
    async with own_database(postgres) as (dsn, made):
        async with made.connection() as tx:
            name: str = await tx.fetchval("SELECT current_database()")
        for setting in (
            f"synchronous_commit = {default}",
            "default_transaction_isolation = 'serializable'",
        ):
            await administer(postgres, f"ALTER ROLE {ROLE} IN DATABASE {name} SET {setting}")
        db = await Database.open(dsn, 1, 10)
        try:
            async with db.connection() as tx:
                assert (await tx.fetchval(_IN_FORCE))[0] == default
            async with db.transaction() as tx:
                one = await tx.fetchval(_IN_FORCE)
            two = await db.transact(lambda tx: tx.fetchval(_IN_FORCE))
            wanted = ["on", "read committed", "off"]
            assert (one, two) == (wanted, wanted)
            async with db.connection() as tx:
                assert (await tx.fetchval(_IN_FORCE))[0] == default
        finally:
            await db.close()


async def test_a_stronger_default_is_left(postgres: EmbeddedPostgres):
    """Goal: an operator who asks the standbys for more gets it."""
    async with own_database(postgres) as (dsn, made):
        async with made.connection() as tx:
            name: str = await tx.fetchval("SELECT current_database()")
        strong = "synchronous_commit = remote_apply"
        await administer(postgres, f"ALTER ROLE {ROLE} IN DATABASE {name} SET {strong}")
        db = await Database.open(dsn, 1, 10)
        async with db.transaction() as tx:
            assert (await tx.fetchval(_IN_FORCE))[0] == "remote_apply"
        await db.close()


async def test_what_fails_is_rolled_back_and_leaves_the_session_usable(postgres: EmbeddedPostgres):
    """Goal: a transaction that ends by an error leaves nothing behind, in the table or the pool."""
    async with own_database(postgres) as (dsn, _):
        db = await Database.open(dsn, 1, 10)

        async def work(tx: Tx) -> None:
            await tx.execute("CREATE TABLE half (a int)")
            raise RuntimeError("half-way")

        with pytest.raises(RuntimeError):
            await db.transact(work)
        with pytest.raises(asyncpg.UndefinedTableError):
            async with db.transaction() as tx:
                await tx.execute("SELECT * FROM half")
        async with db.transaction() as tx:
            assert await tx.fetchval("SELECT to_regclass('half')") is None
        await db.close()


async def test_a_server_that_does_not_write_is_refused(tmp_path: Path):
    """Goal: fsync = off ends the start in a sentence; the mark of tests alone lets it pass."""
    async with running_postgres(tmp_path / "data", durable=False) as server:
        await (await Database.open_or_fail(server.dsn, 1, 10)).close()
        await administer(server, f"ALTER ROLE {ROLE} SET bursar.may_forget = 'off'")
        with pytest.raises(CommandFailed, match="fsync"):
            await Database.open_or_fail(server.dsn, 1, 10)
