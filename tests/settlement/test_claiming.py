"""What the settlement reads to claim some payments, however many wait."""

from typing import Final

import pytest

from bursar.config import Mode
from bursar.db import Tx
from bursar.settlement import payment_store
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
