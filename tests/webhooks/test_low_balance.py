"""`wallet.low_balance` and `wallet.depleted` while cap and balance change at the same time."""

import asyncio
import random

import httpx

from tests.support import new_agent
from tests.webhooks.conftest import Hooks

CHANGES = 120


async def test_the_flag_is_right_whatever_comes_first(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: every change of cap or balance finds the flag as the change before left it: replayed
    in the order in which they were committed, each turn to low has its event, no more and no
    fewer."""
    agent = (await new_agent(client, policy={"dailyCap": "100.00"}))["id"]
    rng = random.Random(7)
    caps = [rng.choice(("0.00", "50.00", "100.00", "1000.00", "9999.00")) for _ in range(CHANGES)]

    async def change_caps() -> None:
        for cap in caps:
            body = {"policy": {"dailyCap": cap}}
            assert (await client.patch(f"/v1/agents/{agent}", json=body)).status_code == 200

    async def deposit() -> None:
        for _ in range(CHANGES // 2):
            await hooks.service.fund(agent, "3.50")

    await asyncio.gather(change_caps(), deposit(), deposit())
    async with hooks.service.db.read() as tx:
        # The transaction that wrote a row gives the order of the commits: all held one lock.
        changes = await tx.fetch(
            "SELECT xmin::text::bigint AS xact, cap_micros_daily AS cap, NULL::bigint AS balance"
            " FROM policy WHERE agent_id = $1 UNION ALL"
            " SELECT xmin::text::bigint, NULL, credits_posted_after - debits_posted_after"
            " FROM transfer WHERE agent_id = $1 ORDER BY xact",
            agent,
        )
        fired = await tx.fetch(
            "SELECT xmin::text::bigint AS xact FROM event WHERE agent_id = $1"
            " AND type = 'wallet.low_balance' ORDER BY 1",
            agent,
        )
        is_low = await tx.fetchval("SELECT is_low FROM wallet WHERE agent_id = $1", agent)
    cap, balance, low = 0, 0, False
    expected: list[int] = []
    for number, row in enumerate(changes):
        cap = cap if row["cap"] is None else row["cap"]
        balance = balance if row["balance"] is None else row["balance"]
        was, low = low, balance * 10 < cap
        if low and not was and number > 0:
            expected.append(row["xact"])
    assert [row["xact"] for row in fired] == expected
    assert len(expected) > 5, "the test saw turns at all"
    assert is_low == low
