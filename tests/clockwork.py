"""A service whose database's clock is set by hand, and payments that settle by hand."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from bursar.chain.port import Paid
from bursar.clock import SystemClock
from bursar.config import Config
from bursar.db import Database, Tx
from bursar.ledger import book, lock
from bursar.migrations.migrate import migrate
from bursar.policy.cache import PolicyCache
from bursar.service.api import Api
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend.settle import settle_spends
from tests.support import Service

START: Final = datetime(2026, 10, 30, 12, tzinfo=UTC)
# What each payment that settles by hand has cost.
SETTLED_LAMPORTS: Final = 5_000


@dataclass(frozen=True)
class ClockedService(Service):
    """All that the service dates comes from the database's `moment()`, which stands still here
    until a test moves it."""

    async def set_clock(self, at: datetime) -> datetime:
        async with self.db.connection() as tx:
            return await tx.fetchval("UPDATE hand_set_clock SET at = $1 RETURNING at", at)

    async def advance(self, by: timedelta) -> datetime:
        async with self.db.connection() as tx:
            return await tx.fetchval("UPDATE hand_set_clock SET at = at + $1 RETURNING at", by)


@asynccontextmanager
async def clocked_service(
    postgres: EmbeddedPostgres, config: Config, name: str, **settings: Any
) -> AsyncGenerator[ClockedService]:
    """A service without rate limits on a database of its own, at `START`."""
    admin = await asyncpg.connect(postgres.admin_dsn)
    await admin.execute(f"CREATE DATABASE {name} OWNER bursar")
    await admin.close()
    dsn = postgres.dsn_for(name)
    await migrate(dsn)
    db = await Database.open(dsn, 4, 10)
    async with db.transaction() as tx:
        await tx.execute("CREATE TABLE hand_set_clock (at timestamptz(3) NOT NULL)")
        await tx.execute("INSERT INTO hand_set_clock VALUES ($1)", START)
        await tx.execute(
            "CREATE OR REPLACE FUNCTION moment() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " BEGIN ATOMIC SELECT at FROM hand_set_clock; END"
        )
    config = replace(config, database_url=dsn, rate_limits=False, **settings)
    api = await Api.start(config, SystemClock())
    try:
        yield ClockedService(f"http://127.0.0.1:{api.port}", config, db)
    finally:
        await api.stop()
        await db.close()


async def settle(db: Database, spend_id: str) -> None:
    """What a confirmed payment does to an approved spend, without a chain."""

    async def work(tx: Tx) -> None:
        where = await tx.fetchrow("SELECT agent_id, realm_id FROM spend WHERE id = $1", spend_id)
        assert where is not None
        agent_id, realm_id = where
        locked = (await lock.lock_agents(tx, [agent_id], [realm_id]))[agent_id]
        # As if it had been found on the chain: there is no attempt of ours.
        await tx.execute(
            "UPDATE payment SET state = 'settled', problem = 'found on the chain' WHERE id = $1",
            spend_id,
        )
        paid = Paid(
            spend_id,
            f"signature-of-{spend_id}",
            block_time=int(locked.wallet.now.timestamp()),
            fee_lamports=SETTLED_LAMPORTS,
        )
        await settle_spends(tx, {agent_id: locked.wallet}, [paid])
        await book.save_balances(tx, PolicyCache(), [locked])

    await db.transact(work)
