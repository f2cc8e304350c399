"""The running totals: folded by a worker, and exact whether or not it has been there."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bursar.money import format_micros
from bursar.spend import stats, totals
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


async def settled_by_recipient(service: Service, *amounts: tuple[str, str, int]) -> None:
    """What settling a payment adds: (agent, recipient, micro-units)."""
    async with service.db.connection() as tx:
        await tx.executemany(
            "INSERT INTO total_delta SELECT a.realm_id, a.id, moment()::date, $2, 1, 0, $3"
            " FROM agent a WHERE a.id = $1",
            amounts,
        )


async def test_the_largest_recipients_of_all_time_are_exact_at_every_fold(service: Service):
    """Goal: the kept list and what came since give what a sum over everything gives: with ties,
    with newcomers, and when what was small yesterday is the largest today."""
    chance = random.Random(16)
    async with await service.admin() as client:
        agents = [(await new_agent(client))["id"] for _ in range(2)]
        expected: dict[str, Counter[str]] = {agent: Counter() for agent in agents}
        for _ in range(40):
            added = [
                (
                    chance.choice(agents),
                    f"{chance.randrange(30)}.example.com",
                    chance.choice((10_000, 20_000, 70_000, chance.randrange(1, 200_000))),
                )
                for _ in range(chance.randrange(1, 8))
            ]
            await settled_by_recipient(service, *added)
            for agent, recipient, micros in added:
                expected[agent][recipient] += micros
            for agent, paid in (*expected.items(), (None, sum(expected.values(), Counter()))):
                told = await statistics(client, **({} if agent is None else {"agentId": agent}))
                largest = sorted(paid.items(), key=lambda one: (-one[1], one[0]))[:10]
                assert [row["hostname"] for row in told["topRecipients"]] == [
                    name for name, _ in largest
                ]
                assert told["totalSpent"] == format_micros(paid.total())
            if chance.random() < 0.3:
                await fold_all(service)


@pytest.mark.parametrize("folded", [False, True])
async def test_many_recipients_cost_statistics_nothing(service: Service, folded: bool):
    """Goal: of all that was ever paid, only the largest are read."""
    async with await service.admin() as client:
        agent = (await new_agent(client))["id"]
        await settled_by_recipient(
            service, *((agent, f"{n}.example.com", n + 1) for n in range(3_000))
        )
        if folded:
            await fold_all(service)
        async with service.db.connection() as tx:
            await tx.execute("ANALYZE")
            plan = await tx.fetchval(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {stats._OF_ALL_TIME.text}",
                *stats._OF_ALL_TIME.in_order(
                    {
                        "realm_id": await tx.fetchval(
                            "SELECT realm_id FROM agent WHERE id = $1", agent
                        ),
                        "agent_id": "",
                    }
                ),
            )
        read = sum(_rows_read(json.loads(plan)[0]["Plan"], "recipient_total"))
        assert read == (10 if folded else 0)


def _rows_read(node: dict[str, Any], table: str) -> Iterator[int]:
    if node.get("Relation Name") == table:
        yield node["Actual Rows"] * node["Actual Loops"]
    for part in node.get("Plans", []):
        yield from _rows_read(part, table)


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


async def test_refused_names_do_not_grow_the_totals(service: Service):
    """Goal: an agent that is refused, for whatever reason, cannot add a row a name."""
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
    assert [tuple(row) for row in rows] == [("", 6, 6)]
