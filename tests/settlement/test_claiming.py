"""What the settlement reads to claim some payments, however many wait."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import asyncpg
import pytest

from bursar.config import Mode
from bursar.db import Database, Hosts, Tx
from bursar.errors import present
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement import payment_store
from tests.databases import administer
from tests.processes import until
from tests.settlement.bought import buy, follow, follower
from tests.settlement.support import Stage
from tests.support import ON_CURVE, Service, new_agent, spend

WAITING: Final = 100_000
AT_ONCE: Final = 128
# The database looks at a row or two before it knows that it has enough.
BESIDES: Final = 8


async def read_until_now(tx: Tx) -> dict[str, int]:
    """Rows that this transaction has read, by table."""
    rows = await tx.fetch(
        "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) AS read"
        " FROM pg_stat_xact_user_tables"
    )
    return {row["relname"]: row["read"] for row in rows}


@pytest.mark.parametrize("waiting_in", ["live", "test"], ids=["this mode", "the other mode"])
async def test_a_claim_reads_no_more_payments_than_it_takes(service: Service, waiting_in: Mode):
    """Goal: however many payments wait, in this mode or, before these, in the other, a claim reads
    those that it takes: each once to find it and once to lease it.

    It does not say so of payments that are put off at the moment or alive on the chain: those are
    still passed over one by one."""
    async with await service.admin(mode="live") as client:
        agent = await new_agent(client, policy={"allowlist": ["*"], "dailyCap": "1000.00"})
        await service.fund(agent["id"], "500")
        spends = [await spend(client, agent["id"], "1", recipient=ON_CURVE) for _ in range(AT_ONCE)]
        assert {made["status"] for made in spends} == {"approved"}
    async with service.db.connection() as tx:
        change = tx.transaction()
        await change.start()
        try:
            # Claimed rows are locked, so what other tests left behind must not be among them.
            await tx.execute(
                "UPDATE payment SET state = 'failed' WHERE state = 'waiting' AND agent_id <> $1",
                agent["id"],
            )
            await tx.execute(
                "INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination,"
                " leased_until, created_at) SELECT 'txn_' || lpad(n::text, 26, '0'), $2,"
                " p.realm_id, p.agent_id, p.amount_micros, p.destination, clock_timestamp(),"
                " p.created_at - interval '1 day' + n * interval '1 millisecond'"
                " FROM payment p, generate_series(1, $3::integer) AS n WHERE p.id = $1",
                spends[0]["id"],
                waiting_in,
                WAITING,
            )
            await tx.execute("ANALYZE payment, spend, wallet")
            before = await read_until_now(tx)
            claimed = await payment_store.claim_payments(tx, "live", AT_ONCE)
            after = await read_until_now(tx)
            assert len(claimed) == AT_ONCE
            assert after["payment"] - before["payment"] <= 2 * AT_ONCE + BESIDES
            assert after["spend"] - before["spend"] <= AT_ONCE
            assert [p.created_at for p in claimed] == sorted(p.created_at for p in claimed)
            assert {p.mode for p in claimed} == {"live"}
        finally:
            await change.rollback()


async def test_claims_where_the_database_has_other_defaults(
    stage: Stage, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
):
    """Goal: a claim is a statement by itself, and where the database's defaults are not what it
    needs, a transaction that says what it wants."""
    asked: list[str] = []
    connect = Hosts.connect

    async def listening(self: Hosts, *given: Any, **more: Any) -> "asyncpg.Connection[Any]":
        connection = await connect(self, *given, **more)
        connection.add_query_logger(lambda record: asked.append(record.query))
        return connection

    monkeypatch.setattr(Hosts, "connect", listening)
    dsn = present(stage.config.database_url, "a stage has one")
    agent = await stage.agent("10")

    async def claimed_by() -> list[str]:
        """Which statement came before each claim that led to something."""
        db = await Database.open(dsn, 2, 10)
        try:
            there = replace(stage, db=db)
            asked.clear()
            paid = await there.spend(agent, "1")
            bought = await buy(there, agent, 1_000_000)
            await bought.settle()
            settler, worker = await there.settler(), await follower(there)

            async def settled() -> bool:
                await there.round(settler)
                await follow(there, worker)
                now = await there.status(paid), (await bought.now()).status
                return now == ("settled", "paid")

            await until(settled, seconds=30)
        finally:
            await db.close()
        before = {q: p.split(";")[0] for p, q in pairwise(asked) if "SKIP LOCKED" in q}
        return sorted(before.values())

    alone = await claimed_by()
    assert len(alone) == 3
    assert not [statement for statement in alone if statement.startswith("BEGIN")]
    async with stage.db.connection() as tx:
        name = await tx.fetchval("SELECT current_database()")
    await administer(
        postgres, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
    )
    await administer(postgres, f"ALTER DATABASE {name} SET synchronous_commit = 'off'")
    assert await claimed_by() == ["BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"] * 3
