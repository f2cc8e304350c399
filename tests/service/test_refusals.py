"""Spends that were refused at once are forgotten when their time is over; nothing else is."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from bursar.clock import iso
from bursar.config import Config
from bursar.ledger.audit import audit
from bursar.service import retention
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.retention import forget
from bursar.spend import totals
from tests.clockwork import START, ClockedService, clocked_service, settle
from tests.databases import administer
from tests.support import error_of, new_agent, spend

DAY = timedelta(days=1)
MIDNIGHT = datetime(START.year, START.month, START.day, tzinfo=UTC)


@pytest.fixture
async def clocked(postgres: EmbeddedPostgres, config: Config) -> AsyncGenerator[ClockedService]:
    async with clocked_service(postgres, config, "refusals") as service:
        yield service
        assert await differences(service) == []
    await administer(postgres, "DROP DATABASE refusals WITH (FORCE)")


async def differences(service: ClockedService) -> list[str]:
    return [line for f in await audit(service.db, lambda _: None) for line in f.differences]


async def forgotten(service: ClockedService) -> int:
    return await forget(service.config, service.db, "refusals")


async def statistics(client: httpx.AsyncClient, **query: str) -> dict[str, Any]:
    answer = await client.get("/v1/transactions/stats", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def kept(client: httpx.AsyncClient) -> set[str]:
    answer = await client.get("/v1/transactions", params={"limit": 100})
    return {row["id"] for row in answer.json()["data"]}


async def test_only_what_was_refused_at_once_is_forgotten_by_whole_days(clocked: ClockedService):
    """Goal: a refusal is there for its days to the last instant, then it is gone; whatever
    reserved money stays, also when it was rejected later; the books fit all the time."""
    async with await clocked.admin() as client:
        agent = (await new_agent(client, policy={"approvalThreshold": "5.00"}))["id"]
        await clocked.fund(agent, "50")
        once = {"Idempotency-Key": "once"}
        refused = await spend(client, agent, "1000", headers=once)
        stranger = await spend(client, agent, "1", recipient="stranger.example.org")
        paid = await spend(client, agent, "1")
        await settle(clocked.db, paid["id"])
        denied = await spend(client, agent, "6")
        await client.post(f"/v1/transactions/{denied['id']}/deny")
        await clocked.set_clock(MIDNIGHT + DAY)
        later = await spend(client, agent, "1000")
        ids = {row["id"] for row in (refused, stranger, paid, denied, later)}
        before = await statistics(client)

        await clocked.set_clock(MIDNIGHT + 366 * DAY - timedelta(milliseconds=1))
        assert await forgotten(clocked) == 0
        assert await kept(client) == ids
        assert (await spend(client, agent, "1000", headers=once))["id"] == refused["id"]

        await clocked.set_clock(MIDNIGHT + 366 * DAY)
        assert [await forgotten(clocked) for _ in range(2)] == [2, 0]
        assert await kept(client) == {paid["id"], denied["id"], later["id"]}
        error_of(await client.get(f"/v1/transactions/{refused['id']}"), 404, "not_found")
        assert await statistics(client) == before
        assert await differences(clocked) == []
        again = await spend(client, agent, "1000", headers=once)
        assert again["id"] not in ids, "the key is free again"
        async with clocked.db.connection() as tx:
            counts = await tx.fetchrow(
                "SELECT decisions, forgotten FROM wallet WHERE agent_id = $1", agent
            )
        assert counts is not None
        assert tuple(counts) == (6, 2)

        await clocked.set_clock(MIDNIGHT + 1_000 * DAY)
        assert await forgotten(clocked) == 2
        assert await kept(client) == {paid["id"], denied["id"]}


@pytest.mark.parametrize("folded", [True, False])
async def test_statistics_take_forgotten_days_whole(clocked: ClockedService, folded: bool):
    """Goal: no part of a day counts only what is left of it; later days are cut as before."""
    async with await clocked.admin() as client:
        agent = (await new_agent(client))["id"]
        await clocked.fund(agent, "50")
        for hour in (1, 13, 25, 37, 49, 61):
            await clocked.set_clock(MIDNIGHT + timedelta(hours=hour))
            await settle(clocked.db, (await spend(client, agent, "1"))["id"])
            await spend(client, agent, "1", recipient="stranger.example.org")

        def at(hours: int) -> str:
            return iso(MIDNIGHT + timedelta(hours=hours))

        async def counts(**query: str) -> tuple[int, int, str]:
            told = await statistics(client, **query)
            assert told == await statistics(client, agentId=agent, **query)
            return told["transactionCount"], told["rejectedCount"], told["totalSpent"]

        assert await counts(**{"from": at(12), "to": at(60)}) == (8, 4, "4.000000")
        if folded:
            assert await totals.fold(clocked.db) > 0
        # The first two days are forgotten, the third is not.
        await clocked.set_clock(MIDNIGHT + 367 * DAY)
        assert await forgotten(clocked) == 4
        assert await counts() == (12, 6, "6.000000")
        assert await counts(**{"from": at(12)}) == (12, 6, "6.000000")
        assert await counts(**{"from": at(30), "to": at(31)}) == (4, 2, "2.000000")
        assert await counts(to=at(24)) == (4, 2, "2.000000")
        assert await counts(to=at(25)) == (8, 4, "4.000000")
        assert await counts(**{"from": at(30), "to": at(60)}) == (6, 3, "3.000000")
        assert await counts(**{"from": at(50)}) == (2, 1, "1.000000")
        assert await counts(**{"from": at(48), "to": at(60)}) == (2, 1, "1.000000")


async def test_forgetting_beside_spending_counts_each_once(
    clocked: ClockedService, monkeypatch: pytest.MonkeyPatch
):
    """Goal: several workers, a bounded number a statement, and agents that go on spending."""
    monkeypatch.setattr(retention, "_REFUSALS_AT_ONCE", 7)
    async with await clocked.admin() as client:
        agents = [(await new_agent(client))["id"] for _ in range(3)]
        for agent in agents:
            await clocked.fund(agent, "50")
            await asyncio.gather(*(spend(client, agent, "1000") for _ in range(20)))
        await clocked.set_clock(MIDNIGHT + 400 * DAY)
        done: list[int] = []

        async def work() -> None:
            while count := await forgotten(clocked):
                done.append(count)

        spending = (spend(client, agent, "0.01") for agent in agents for _ in range(20))
        await asyncio.gather(*(work() for _ in range(3)), *spending)
        await work()
        assert sum(done) == 60
        assert max(done) == 7
        async with clocked.db.connection() as tx:
            rows = await tx.fetch("SELECT forgotten, decisions FROM wallet")
        assert [tuple(row) for row in rows] == [(20, 40)] * 3
