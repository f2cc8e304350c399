"""`wallet.low_balance` and `wallet.depleted` while cap and balance change at the same time."""

import asyncio
import json
import random
from datetime import datetime

import httpx

from bursar.money import parse_micros
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
    async with hooks.service.db.connection() as tx:
        events = await tx.fetch(
            "SELECT type, data::text AS data, created_at FROM event WHERE agent_id = $1", agent
        )
        is_low = await tx.fetchval("SELECT is_low FROM wallet WHERE agent_id = $1", agent)
    # The balance only rises here, and each change of the policy tells the balance that it met. So
    # the order is known: by balance, a deposit before the changes that saw it, those by version.
    changes: list[tuple[int, int, int | None, datetime]] = []
    fired: list[tuple[int, datetime]] = []
    for event in events:
        data = json.loads(event["data"])
        if event["type"] == "wallet.funded":
            changes.append((_micros(data["balance"]), 0, None, event["created_at"]))
        elif event["type"] == "agent.policy_updated":
            balance, policy = _micros(data["wallet"]["balance"]), data["policy"]
            cap = _micros(policy["dailyCap"])
            changes.append((balance, policy["version"], cap, event["created_at"]))
        else:
            assert event["type"] == "wallet.low_balance"
            fired.append((_micros(data["balance"]), event["created_at"]))
    cap, low = _micros("100.00"), True
    expected: list[tuple[int, datetime]] = []
    for balance, _, new_cap, at in sorted(changes, key=lambda change: change[:2]):
        cap = cap if new_cap is None else new_cap
        was, low = low, balance * 10 < cap
        if low and not was:
            expected.append((balance, at))
    assert sorted(fired) == expected
    assert len(expected) > 5, "the test saw turns at all"
    assert is_low == low


def _micros(amount: str) -> int:
    micros = parse_micros(amount)
    assert micros is not None
    return micros
