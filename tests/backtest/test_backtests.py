"""/v1/backtests: what is asked, what is found, and what is refused."""

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from bursar.backtest.job import Backtester
from bursar.backtest.model import MOST_OPEN
from bursar.clock import SystemClock
from bursar.ids import new_id
from bursar.spend.model import bounds_of
from tests.backtest.support import backtest, fail, run_backtests
from tests.support import Service, error_of, new_agent, spend


async def test_a_lower_cap_on_what_was_spent(service: Service, client: httpx.AsyncClient):
    """Goal: counts, amounts, days, rules and each difference, of a case that can be read."""
    agent = await new_agent(client, policy={"approvalThreshold": "20.00"})
    await service.fund(agent["id"], "100")
    made = [await spend(client, agent["id"], amount) for amount in ("8", "8", "30", "8", "80")]
    assert [one["status"] for one in made] == [
        "approved", "approved", "pending", "approved", "rejected",
    ]  # fmt: skip
    found = await backtest(
        service,
        client,
        agentId=agent["id"],
        policy={"dailyCap": "20.00", "approvalThreshold": "5.00"},
    )
    assert found["reproduced"] == {"of": 5, "same": 5}
    assert found["current"] == {
        "approved": 3, "pending": 1, "rejected": 1, "amount": "54.000000",
    }  # fmt: skip
    assert found["draft"] == {"approved": 0, "pending": 2, "rejected": 3, "amount": "16.000000"}
    assert found["byRule"] == [
        {"rule": "daily_cap", "current": 1, "draft": 3},
        {"rule": "approval_threshold", "current": 1, "draft": 2},
    ]
    (day,) = found["byDay"]
    assert (day["current"], day["draft"]) == (found["current"], found["draft"])
    wanted = [
        (made[0]["id"], "8.000000", "approved", "pending", "approval_threshold"),
        (made[1]["id"], "8.000000", "approved", "pending", "approval_threshold"),
        (made[2]["id"], "30.000000", "pending", "rejected", "daily_cap"),
        (made[3]["id"], "8.000000", "approved", "rejected", "daily_cap"),
    ]
    fields = ("transactionId", "amount", "was", "would", "rule")
    assert [tuple(one[name] for name in fields) for one in found["changed"]] == wanted
    assert found["changedCount"] == 4
    assert found["others"] == {"of": 0, "changed": 0}
    assert found["policy"] == {"dailyCap": "20.00", "approvalThreshold": "5.00"}
    assert (found["progress"], found["problem"]) == (100, None)
    assert len(found["assumptions"]) > 3
    exported = await client.get(f"/v1/backtests/{found['id']}/export")
    rows = list(csv.DictReader(io.StringIO(exported.text)))
    assert [tuple(row[name] for name in fields) for row in rows] == wanted


async def test_limits_of_a_budget_and_those_who_share_it(
    service: Service, client: httpx.AsyncClient
):
    """Goal: other limits of a budget move every agent below it, and what one leaves another
    uses."""
    limits = [{"window": "lifetime", "amount": "10.00"}]
    made = await client.post("/v1/budgets", json={"name": "all", "limits": limits})
    budget = made.json()["data"]["id"]
    first, second = [await new_agent(client, budgetId=budget) for _ in range(2)]
    for agent in (first, second):
        await service.fund(agent["id"], "100")
    await spend(client, first["id"], "6")
    refused = await spend(client, second["id"], "5")
    assert refused["rejectCode"] == "budget_exceeded"
    found = await backtest(
        service, client, budgetId=budget, limits=[{"window": "lifetime", "amount": "11.00"}]
    )
    assert [(one["was"], one["would"]) for one in found["changed"]] == [("rejected", "approved")]
    assert found["draft"]["approved"] == 2
    # What the first would not have spent is there for the second, whom the draft does not name.
    alone = await backtest(service, client, agentId=first["id"], policy={"frozen": True})
    assert alone["current"]["approved"] == 1
    assert alone["draft"] == {"approved": 0, "pending": 0, "rejected": 1, "amount": "0.000000"}
    assert alone["others"] == {"of": 1, "changed": 1}
    assert [(one["agentId"], one["would"]) for one in alone["changed"]] == [
        (first["id"], "rejected"),
        (second["id"], "approved"),
    ]
    both = await backtest(service, client, budgetId=budget, policy={"frozen": True})
    assert both["draft"]["rejected"] == 2


async def test_new_limits_count_what_was_spent_before_they_stood(
    service: Service, client: httpx.AsyncClient
):
    """Goal: a wallet counts every window whether or not a limit stands, and so does its replay,
    also what was spent before the time that is looked at."""
    agent = await new_agent(client)
    await service.fund(agent["id"], "100")
    for _ in range(2):
        await spend(client, agent["id"], "5")
    failed = await spend(client, agent["id"], "7")
    async with service.db.connection() as tx:
        # What is asked for begins here.
        start = await tx.fetchval("SELECT moment() + interval '1 millisecond'")
        while await tx.fetchval("SELECT moment() <= $1", start):
            pass
    held = await spend(client, agent["id"], "4")
    await fail(service.db, failed["id"], agent["id"])
    passed = await spend(client, agent["id"], "4")
    for window in ("lifetime", "month"):
        found = await backtest(
            service,
            client,
            agentId=agent["id"],
            policy={"limits": [{"window": window, "amount": "15.00"}]},
            **{"from": start.isoformat()},
        )
        # 5 + 5 + 7 were spent; after 7 came back there was room for one of 4.
        assert [one["transactionId"] for one in found["changed"]] == [held["id"]]
        assert found["reproduced"]["of"] == 2
    assert passed["status"] == "approved"


async def test_labels_say_on_whom(service: Service, client: httpx.AsyncClient):
    """Goal: only the agents that have the pairs are tried."""
    named = await new_agent(client, metadata={"team": "a"})
    await new_agent(client, metadata={"team": "b"})
    for agent_id in [row["id"] for row in (await client.get("/v1/agents")).json()["data"]]:
        await service.fund(agent_id, "10")
        await spend(client, agent_id, "2")
    found = await backtest(
        service, client, metadata={"team": "a"}, policy={"perTransactionCap": "1.00"}
    )
    assert [one["agentId"] for one in found["changed"]] == [named["id"]]
    assert found["current"]["approved"] == 1


async def test_lists_know_hosts_that_were_not_shown(service: Service, client: httpx.AsyncClient):
    """Goal: a host that was refused would pass under an allowlist that has it, and an address is
    blocked with its host."""
    agent = await new_agent(client)
    await service.fund(agent["id"], "10")
    refused = await spend(client, agent["id"], "1", recipient="other.example.org")
    assert (refused["rejectCode"], refused["payTo"]) == ("recipient_not_allowed", None)
    paid = await spend(client, agent["id"], "1")
    found = await backtest(
        service, client, agentId=agent["id"], policy={"allowlist": ["other.example.org"]}
    )
    assert [(one["transactionId"], one["would"]) for one in found["changed"]] == [
        (refused["id"], "approved"),
        (paid["id"], "rejected"),
    ]
    blocked = await backtest(
        service, client, agentId=agent["id"], policy={"blocklist": [paid["payTo"]]}
    )
    assert [(one["transactionId"], one["rule"]) for one in blocked["changed"]] == [
        (paid["id"], "blocklist")
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "policy"),
        ({"policy": {}}, "agentId"),
        ({"policy": {}, "agentId": "x", "metadata": {"a": "b"}}, "agentId"),
        ({"policy": {}, "metadata": {}}, "metadata"),
        ({"agentId": "x", "limits": []}, "limits"),
        ({"policy": {"version": 1}, "agentId": "x"}, "policy.version"),
        ({"policy": {"dailyCap": 3}, "agentId": "x"}, "policy.dailyCap"),
        ({"policy": {}, "agentId": "x", "from": "yesterday"}, "from"),
        ({"policy": {}, "agentId": "x", "from": "2026-02-02", "to": "2026-02-01"}, "from"),
        ({"policy": {}, "agentId": "x", "from": "2999-01-01"}, "from"),
        ({"policy": {}, "agentId": "x", "from": "2024-01-01"}, "from"),
    ],
)
async def test_what_cannot_be_asked(
    service: Service, client: httpx.AsyncClient, body: dict[str, Any], param: str
):
    """Goal: each mistake is named, and nothing is begun."""
    error = error_of(await client.post("/v1/backtests", json=body), 400, "validation_error")
    assert param in [error.get("param"), *(fault["param"] for fault in error.get("details", ()))]


async def test_not_before_refusals_are_kept(service: Service, client: httpx.AsyncClient):
    """Goal: where refusals are forgotten history has holes; the answer says from when on it has
    none."""
    agent = await new_agent(client)
    kept = datetime.now(UTC).date() - timedelta(days=200)
    async with service.db.transaction() as tx:
        await tx.execute("UPDATE horizon SET refusals = greatest(refusals, $1)", kept)
    body = {"agentId": agent["id"], "policy": {}}
    early = await client.post(
        "/v1/backtests", json={**body, "from": (kept - timedelta(days=1)).isoformat()}
    )
    assert kept.isoformat() in error_of(early, 400, "validation_error")["message"]
    late = await client.post("/v1/backtests", json={**body, "from": kept.isoformat()})
    assert late.status_code == 202
    assert late.json()["data"]["startsAt"].startswith(kept.isoformat())
    await run_backtests(service.db, service.config)


async def test_only_so_many_at_once(service: Service, client: httpx.AsyncClient):
    """Goal: an account cannot queue work without end, and a key does not repeat what it asked."""
    agent = await new_agent(client)
    body = {"agentId": agent["id"], "policy": {"dailyCap": "1.00"}}
    key = {"Idempotency-Key": new_id("req")}
    first = await client.post("/v1/backtests", json=body, headers=key)
    again = await client.post("/v1/backtests", json=body, headers=key)
    assert first.json() == again.json()
    for _ in range(MOST_OPEN - 1):
        assert (await client.post("/v1/backtests", json=body)).status_code == 202
    error_of(await client.post("/v1/backtests", json=body), 409, "limit_reached")
    queued = await client.get(f"/v1/backtests/{first.json()['data']['id']}")
    assert (queued.json()["data"]["status"], queued.json()["data"]["reproduced"]) == (
        "queued", None,
    )  # fmt: skip
    await run_backtests(service.db, service.config)
    assert (await client.post("/v1/backtests", json=body)).status_code == 202
    await run_backtests(service.db, service.config)


async def test_another_worker_begins_anew(service: Service, client: httpx.AsyncClient):
    """Goal: a worker that stops in the middle leaves nothing half, and what it does later counts
    for nothing; one that never ends is given up."""
    await run_backtests(service.db, service.config)
    agent = await new_agent(client)
    await service.fund(agent["id"], "100")
    for _ in range(3):
        await spend(client, agent["id"], "5")
    body = {"agentId": agent["id"], "policy": {"perTransactionCap": "1.00"}}
    asked = (await client.post("/v1/backtests", json=body)).json()["data"]["id"]
    bounds, clock = bounds_of(service.config), SystemClock()
    stopped = Backtester(service.db, bounds, clock)
    for _ in range(2):
        assert await stopped.work()
    halfway = (await client.get(f"/v1/backtests/{asked}")).json()["data"]
    assert (halfway["status"], halfway["changed"]) == ("running", [])

    async def lapse() -> None:
        async with service.db.transaction() as tx:
            await tx.execute(
                "UPDATE backtest SET leased_until = clock_timestamp() - interval '1 second'"
                " WHERE id = $1",
                asked,
            )

    await lapse()
    other = Backtester(service.db, bounds, clock)
    assert await other.work()
    # It notices that it has lost it.
    assert await stopped.work()
    while await other.work():
        pass
    found = (await client.get(f"/v1/backtests/{asked}")).json()["data"]
    assert (found["status"], found["changedCount"], len(found["changed"])) == ("done", 3, 3)

    asked = (await client.post("/v1/backtests", json=body)).json()["data"]["id"]
    for _ in range(4):
        # Given back, it is anybody's at once, and the try counts for nothing.
        gives_back = Backtester(service.db, bounds, clock)
        assert await gives_back.work()
        await gives_back.give_back()
        waiting = (await client.get(f"/v1/backtests/{asked}")).json()["data"]
        assert (waiting["status"], waiting["progress"]) == ("queued", 0)
    for _ in range(3):
        assert await Backtester(service.db, bounds, clock).work()
        await lapse()
    await run_backtests(service.db, service.config)
    given_up = (await client.get(f"/v1/backtests/{asked}")).json()["data"]
    assert (given_up["status"], "3 times" in given_up["problem"]) == ("failed", True)
