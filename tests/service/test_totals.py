"""The running totals: folded by a worker, and exact whether or not it has been there."""

from typing import Any

import httpx
import pytest

from bursar.spend import totals
from tests.clockwork import settle
from tests.support import Service, new_agent, spend


async def statistics(client: httpx.AsyncClient, **query: str) -> dict[str, Any]:
    answer = await client.get("/v1/transactions/stats", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def left(service: Service) -> int:
    async with service.db.connection() as tx:
        return await tx.fetchval("SELECT count(*) FROM total_delta")


async def fold_all(service: Service) -> None:
    while await totals.fold(service.db):
        pass


@pytest.mark.parametrize("folded", ["never", "half way", "at the end", "after each"])
async def test_statistics_are_exact_however_late_the_worker_is(service: Service, folded: str):
    """Goal: what is not folded yet counts all the same, and once."""
    async with await service.admin() as client:
        agents = [await new_agent(client) for _ in range(2)]
        for number in range(8):
            agent = agents[number % 2]["id"]
            await service.fund(agent, "10")
            made = await spend(client, agent, "1")
            if number < 4:
                await settle(service.db, made["id"])
            refused = await spend(client, agent, "1", recipient=f"{number}.example.org")
            assert refused["rejectCode"] == "recipient_not_allowed"
            if folded == "after each" or (folded == "half way" and number == 3):
                await fold_all(service)
        if folded == "at the end":
            await fold_all(service)
            assert await left(service) == 0
        assert await statistics(client) == {
            "totalSpent": "4.000000",
            "transactionCount": 16,
            "rejectedCount": 8,
            "topRecipients": [{"hostname": "api.example.com", "totalUsdc": "4.00"}],
        }
        for agent in agents:
            assert await statistics(client, agentId=agent["id"]) == {
                "totalSpent": "2.000000",
                "transactionCount": 8,
                "rejectedCount": 4,
                "topRecipients": [{"hostname": "api.example.com", "totalUsdc": "2.00"}],
            }


async def test_one_worker_folds_at_a_time_and_a_bounded_number(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    """Goal: no two wait for each other's rows, and no statement runs long."""
    monkeypatch.setattr(totals, "_AT_ONCE", 3)
    await fold_all(service)
    async with await service.admin() as client:
        agent = await new_agent(client)
        await service.fund(agent["id"], "10")
        for _ in range(4):
            await spend(client, agent["id"], "1")
    async with service.db.transaction() as tx:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", totals.FOLDING)
        assert await totals.fold(service.db) == 0
        assert await left(service) == 4
    assert [await totals.fold(service.db) for _ in range(3)] == [3, 1, 0]
    assert await left(service) == 0


async def test_names_that_only_strangers_gave_do_not_grow_the_totals(service: Service):
    """Goal: an agent that is refused cannot add a row a name."""
    async with await service.admin() as client:
        agent = (await new_agent(client))["id"]
        for number in range(5):
            await spend(client, agent, "1", recipient=f"{number}.example.org")
        await spend(client, agent, "1")
    await fold_all(service)
    async with service.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT recipient, spend_count, rejected_count FROM spend_total WHERE agent_id = $1"
            " ORDER BY recipient",
            agent,
        )
    assert [tuple(row) for row in rows] == [("", 5, 5), ("api.example.com", 1, 1)]
