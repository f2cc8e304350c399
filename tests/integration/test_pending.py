"""How many spends of one agent may wait for a person."""

import asyncio
from collections import Counter

from tests.integration.test_decisions import preview, read
from tests.support import Service, new_agent, spend

MOST = 100


async def test_no_more_spends_wait_than_the_setting_allows(service: Service):
    """Goal: of many at once exactly as many wait as may; the next is too_many_pending until one is
    decided; what needs no approval passes all the while."""
    async with await service.admin() as client:
        policy = {"dailyCap": "100000.00", "approvalThreshold": "1.00"}
        agent = await new_agent(client, policy=policy)
        await service.fund(agent["id"], "1000")
        made = await asyncio.gather(*(spend(client, agent["id"], "2") for _ in range(MOST + 30)))
        assert Counter(one["status"] for one in made) == {"pending": MOST, "rejected": 30}
        assert {one["rejectCode"] for one in made} == {None, "too_many_pending"}

        refused = next(one for one in made if one["status"] == "rejected")
        shown = {check["rule"]: check for check in refused["decision"]["checks"]}
        assert shown["pending_count"] == {
            "rule": "pending_count",
            "outcome": "fail",
            "limit": str(MOST),
            "observed": str(MOST + 1),
        }
        # What passes now needs no approval.
        assert refused["decision"]["maxAmountNow"] == "1.000000"
        assert refused["decision"]["retryAt"] is None
        budget = await read(client, f"/v1/agents/{agent['id']}/budget")
        assert budget["maxAmountNow"] == "1.000000"
        assert (await spend(client, agent["id"], "1"))["status"] == "approved"
        assert (await preview(client, agent, "2"))["rejectCode"] == "too_many_pending"

        waiting = [one["id"] for one in made if one["status"] == "pending"]
        for verdict, spend_id in zip(("approve", "deny"), waiting, strict=False):
            answer = await client.post(f"/v1/transactions/{spend_id}/{verdict}")
            assert answer.status_code == 200, answer.text
            assert (await spend(client, agent["id"], "2"))["status"] == "pending"
            assert (await spend(client, agent["id"], "2"))["rejectCode"] == "too_many_pending"


async def test_another_agent_is_not_held_up(service: Service):
    """Goal: the cap is each agent's own."""
    async with await service.admin() as client:
        policy = {"dailyCap": "100000.00", "approvalThreshold": "1.00"}
        crowded, free = [await new_agent(client, policy=policy) for _ in range(2)]
        for agent in (crowded, free):
            await service.fund(agent["id"], "1000")
        await asyncio.gather(*(spend(client, crowded["id"], "2") for _ in range(MOST)))
        assert (await spend(client, crowded["id"], "2"))["rejectCode"] == "too_many_pending"
        assert (await spend(client, free["id"], "2"))["status"] == "pending"
