"""The creation of a spend is an event without a row: the spend tells it, for ever the same."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from bursar.config import Config
from bursar.event.model import EventFilter
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend import feed
from bursar.spend.approve import expire_spends
from tests.clockwork import ClockedService, clocked_service, settle
from tests.support import Service, error_of, new_agent, spend

POLICY: dict[str, Any] = {"approvalThreshold": "2.00"}
# Of old spends, and of those that a page may read beyond its own.
OLD, BESIDES = 20_000, 10


@pytest.fixture(scope="module")
async def clocked(postgres: EmbeddedPostgres, config: Config) -> AsyncGenerator[ClockedService]:
    async with clocked_service(postgres, config, "told_by_spends", approval_seconds=60) as service:
        yield service


def event_of(made: dict[str, Any]) -> str:
    return f"/v1/events/evt_{made['id'].removeprefix('txn_')}"


async def listed(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """Every page of it, two rows each."""
    rows: list[dict[str, Any]] = []
    while True:
        answer = await client.get("/v1/events", params={"limit": 2, **query})
        assert answer.status_code == 200, answer.text
        rows += answer.json()["data"]
        if not answer.json()["hasMore"]:
            return rows
        query["after"] = answer.json()["nextCursor"]


async def test_it_says_what_was_answered_whatever_became_of_the_spend(clocked: ClockedService):
    """Goal: an event never changes, though the spend that tells it does."""
    async with await clocked.admin() as client, await clocked.admin() as stranger:
        agent = (await new_agent(client, policy=POLICY))["id"]
        await clocked.fund(agent, "50")
        approver = clocked.client(
            (await client.post("/v1/keys", json={"scope": "approver", "name": "a"})).json()["data"][
                "key"
            ]
        )
        paid, refused = await spend(client, agent, "1"), await spend(client, agent, "100")
        granted, denied, late = [await spend(client, agent, "3") for _ in range(3)]
        first = {made["id"]: made for made in (paid, refused, granted, denied, late)}
        told = {id_: (await client.get(event_of(made))).json() for id_, made in first.items()}
        for made in first.values():
            event = told[made["id"]]["data"]
            assert (event["type"], event["data"]) == (f"transaction.{made['status']}", made)
            assert event["createdAt"] == made["createdAt"]
            error_of(await stranger.get(event_of(made)), 404, "not_found")

        await settle(clocked.db, paid["id"])
        async with approver:
            for made, verb in ((granted, "approve"), (denied, "deny")):
                path = f"/v1/transactions/{made['id']}/{verb}"
                answer = await approver.post(path, json={"reason": "because"})
                assert answer.status_code == 200, answer.text
        await settle(clocked.db, granted["id"])
        await clocked.advance(timedelta(minutes=2))
        assert await expire_spends(clocked.db) == 1
        for made in first.values():
            now = (await client.get(f"/v1/transactions/{made['id']}")).json()["data"]
            assert (now != made) == (made is not refused)
            assert (await client.get(event_of(made))).json() == told[made["id"]]

        # Told and written ones in one list, each once, by type as well.
        everything = await listed(client, agentId=agent)
        assert len({event["id"] for event in everything}) == len(everything)
        places = [(event["createdAt"], event["id"]) for event in everything]
        assert places == sorted(places, reverse=True)
        counts = Counter(event["type"] for event in everything)
        assert counts == {
            "wallet.funded": 1,
            "transaction.pending": 3,
            "transaction.approved": 2,
            "transaction.rejected": 3,
            "transaction.settled": 2,
        }
        for type_ in counts:
            of_type = [event for event in everything if event["type"] == type_]
            assert await listed(client, type=type_) == of_type
            assert await listed(client, type=type_, agentId=agent) == of_type


async def test_those_of_one_moment_are_listed_once_each(clocked: ClockedService):
    """Goal: pages neither repeat nor leave out, though all have the same time."""
    async with await clocked.admin() as client:
        agent = (await new_agent(client, policy=POLICY))["id"]
        await clocked.fund(agent, "50")
        amounts = ["1", "3", "100"] * 4
        made = await asyncio.gather(*(spend(client, agent, amount) for amount in amounts))
        await clocked.fund(agent, "1")
        events = await listed(client, agentId=agent)
        assert len({event["createdAt"] for event in events}) == 1
        assert [event["id"] for event in events] == sorted(
            (event["id"] for event in events), reverse=True
        )
        spends = [event["data"] for event in events if event["type"].startswith("transaction.")]
        assert len(events) == len(spends) + 2  # and two deposits
        assert sorted(spends, key=_id) == sorted(made, key=_id)


def _id(row: dict[str, Any]) -> str:
    return row["id"]


async def test_it_is_told_for_as_long_as_the_others_are_kept(clocked: ClockedService):
    """Goal: on the ninetieth day it is there, a moment later it is not."""
    async with await clocked.admin() as client:
        agent = (await new_agent(client))["id"]
        made = await spend(client, agent, "1")
        await clocked.advance(timedelta(days=feed.EVENT_DAYS) - timedelta(milliseconds=1))
        assert (await client.get(event_of(made))).status_code == 200
        assert [event["data"] for event in await listed(client, type="transaction.rejected")] == [
            made
        ]
        await clocked.advance(timedelta(milliseconds=1))
        error_of(await client.get(event_of(made)), 404, "not_found")
        error_of(await client.post(f"{event_of(made)}/redeliver"), 404, "not_found")
        assert await listed(client, type="transaction.rejected") == []


@pytest.mark.parametrize("type_", [None, "transaction.approved", "transaction.rejected"])
async def test_a_page_reads_no_spends_that_are_too_old_to_be_told(
    service: Service, type_: str | None
):
    """Goal: events cost the same however many spends there were long ago."""
    async with await service.admin() as client:
        agent = (await new_agent(client))["id"]
        made = await spend(client, agent, "1")
    async with service.db.connection() as tx:
        change = tx.transaction()
        await change.start()
        try:
            await tx.execute(
                "INSERT INTO spend SELECT more.* FROM spend s, generate_series(1, $2::int) AS n,"
                " LATERAL jsonb_populate_record(s, jsonb_build_object("
                " 'id', 'txn_' || lpad(n::text, 26, '0'), 'decision_number', n + 1000,"
                " 'created_at', s.created_at - interval '100 days' + n * interval '1 ms')) AS more"
                " WHERE s.id = $1",
                made["id"],
                OLD,
            )
            await tx.execute("ANALYZE spend")
            realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent)
            read = (
                "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
                " WHERE relname = 'spend'"
            )
            before = await tx.fetchval(read)
            filters = EventFilter(realm_id=realm_id, type=type_)
            found = await feed.list_events(tx, filters, None, 50)
            assert await tx.fetchval(read) - before <= BESIDES
            told = [event.id for event in found if event.type == "transaction.rejected"]
            assert told == ([] if type_ == "transaction.approved" else [event_of(made)[11:]])
        finally:
            await change.rollback()
