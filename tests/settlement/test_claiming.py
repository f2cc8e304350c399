"""What the settlement reads to claim some payments, however many wait."""

from typing import Final

import pytest

from bursar.db import Tx
from bursar.settlement import payment_store
from tests.support import Service, new_agent, spend

WAITING: Final = 5_000
AT_ONCE: Final = 128


async def rows_read(tx: Tx, table: str) -> int:
    """Rows of a table that this transaction has read until now."""
    return await tx.fetchval(
        "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
        " WHERE relname = $1",
        table,
    )


@pytest.mark.parametrize("known", [False, True], ids=["new", "claimed before"])
async def test_a_claim_reads_about_as_many_spends_as_it_takes(service: Service, known: bool):
    """Goal: with many spends waiting, a claim does not read them all: neither those that nobody
    claimed yet, nor those that were claimed before and are due again.

    It does not say so of payments that are put off at the moment or alive on the chain: those are
    still passed over one by one."""
    async with await service.admin(mode="live") as client:
        agent = await new_agent(client, policy={"allowlist": ["*"], "dailyCap": "1000.00"})
        await service.fund(agent["id"], "50")
        recipient = "4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS"
        made = await spend(client, agent["id"], "1", recipient=recipient)
        assert made["status"] == "approved"
    async with service.db.connection() as tx:
        change = tx.transaction()
        await change.start()
        try:
            await tx.execute(
                "INSERT INTO spend SELECT more.* FROM spend s, generate_series(1, $2) AS n,"
                " LATERAL jsonb_populate_record(s, jsonb_build_object("
                " 'id', 'txn_' || lpad(n::text, 26, '0'), 'decision_number', n + 1000,"
                " 'created_at', s.created_at + n * interval '1 millisecond')) AS more"
                " WHERE s.id = $1",
                made["id"],
                WAITING,
            )
            if known:
                await tx.execute(
                    "INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination,"
                    " leased_until, created_at) SELECT id, 'live', realm_id, agent_id,"
                    " amount_micros, pay_to, clock_timestamp(), created_at FROM spend"
                    " WHERE status = 'approved' AND agent_id = $1",
                    agent["id"],
                )
            await tx.execute("ANALYZE spend, payment")
            before = await rows_read(tx, "spend")
            claimed = await payment_store.claim_payments(tx, "live", AT_ONCE)
            assert len(claimed) == AT_ONCE
            assert await rows_read(tx, "spend") - before < 10 * AT_ONCE
            assert [p.created_at for p in claimed] == sorted(p.created_at for p in claimed)
        finally:
            await change.rollback()
