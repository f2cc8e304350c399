"""Days: a spend belongs to the UTC day of its `createdAt`, whatever happens to it later.

The database's clock is set by hand here, so that midnight comes when a test wants it.
"""

import random
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from bursar.clock import iso
from bursar.config import Config
from bursar.ledger.audit import audit
from bursar.policy.limits import window_start
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend.approve import expire_spends
from tests.clockwork import ClockedService, clocked_service, settle
from tests.support import error_of, new_agent, spend

EVE = datetime(2026, 11, 14, 23, 59, 59, 900_000, tzinfo=UTC)
MIDNIGHT = datetime(2026, 11, 15, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
async def clocked(postgres: EmbeddedPostgres, config: Config) -> AsyncGenerator[ClockedService]:
    async with clocked_service(postgres, config, "midnight") as service:
        yield service
        findings = await audit(service.db, lambda _: None)
        assert [f for f in findings if not f.clean] == []


async def budget(client: httpx.AsyncClient, agent: dict[str, Any]) -> dict[str, Any]:
    answer = await client.get(f"/v1/agents/{agent['id']}/budget")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def used(service: ClockedService, agent: dict[str, Any]) -> dict[str, int]:
    async with service.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT window_start AS day, micros FROM usage"
            " WHERE agent_id = $1 AND window_kind = 'day'"
            " UNION ALL SELECT date_trunc('day', windows_at, 'UTC'), day_micros FROM wallet"
            " WHERE agent_id = $1",
            agent["id"],
        )
    return {row["day"].date().isoformat(): row["micros"] for row in rows}


async def test_each_spend_counts_to_its_own_day(clocked: ClockedService):
    """The last tenth of a second of a day and the first instant of the next one do not mix."""
    async with await clocked.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "10.00"})
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(EVE)
        assert (await budget(client, agent))["resetsAt"] == iso(MIDNIGHT)
        late = await spend(client, agent["id"], "10")
        assert (late["status"], late["createdAt"]) == ("approved", "2026-11-14T23:59:59.900Z")
        await clocked.set_clock(MIDNIGHT - MILLISECOND)
        refused = await spend(client, agent["id"], "0.000001")
        assert refused["rejectCode"] == "daily_cap_exceeded"
        await clocked.set_clock(MIDNIGHT)
        shown = await budget(client, agent)
        assert (shown["spentToday"], shown["remainingToday"]) == ("0.000000", "10.000000")
        assert shown["resetsAt"] == iso(MIDNIGHT + timedelta(days=1))
        early = await spend(client, agent["id"], "10")
        assert (early["status"], early["createdAt"]) == ("approved", "2026-11-15T00:00:00.000Z")
        assert await used(clocked, agent) == {"2026-11-14": 10_000_000, "2026-11-15": 10_000_000}


@pytest.mark.parametrize(
    ("now", "next_midnight"),
    [
        ("2026-11-14T00:00:00.000", "2026-11-15T00:00:00.000Z"),
        ("2026-11-30T23:59:59.999", "2026-12-01T00:00:00.000Z"),
        ("2026-12-31T12:00:00.000", "2027-01-01T00:00:00.000Z"),
        ("2027-02-28T18:00:00.000", "2027-03-01T00:00:00.000Z"),
        ("2028-02-28T18:00:00.000", "2028-02-29T00:00:00.000Z"),
        ("2028-02-29T23:59:59.000", "2028-03-01T00:00:00.000Z"),
    ],
)
async def test_retry_at_is_the_next_midnight_and_then_the_amount_passes(
    clocked: ClockedService, now: str, next_midnight: str
):
    """Month ends, year ends and leap days too; one millisecond earlier is still refused."""
    async with await clocked.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "10.00"})
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(datetime.fromisoformat(now).replace(tzinfo=UTC))
        await spend(client, agent["id"], "7")
        refused = await spend(client, agent["id"], "8")
        assert refused["rejectCode"] == "daily_cap_exceeded"
        assert refused["decision"]["retryAt"] == next_midnight
        assert refused["decision"]["maxAmountNow"] == "3.000000"
        # Waiting does not help what no day can hold, nor what the wallet cannot pay.
        assert (await spend(client, agent["id"], "10.000001"))["decision"]["retryAt"] is None
        assert (await spend(client, agent["id"], "93.000001"))["decision"]["retryAt"] is None
        retry_at = datetime.fromisoformat(refused["decision"]["retryAt"])
        await clocked.set_clock(retry_at - MILLISECOND)
        assert (await spend(client, agent["id"], "8"))["status"] == "rejected"
        await clocked.set_clock(retry_at)
        assert (await spend(client, agent["id"], "8"))["status"] == "approved"


async def test_a_spend_of_yesterday_denied_today_gives_back_to_yesterday(clocked: ClockedService):
    async with await clocked.admin() as client:
        policy = {"dailyCap": "10.00", "approvalThreshold": "1.00"}
        agent = await new_agent(client, policy=policy)
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(EVE)
        pending = await spend(client, agent["id"], "6")
        await clocked.set_clock(MIDNIGHT)
        await spend(client, agent["id"], "8")
        denied = await client.post(f"/v1/transactions/{pending['id']}/deny")
        assert denied.json()["data"]["rejectCode"] == "approval_denied"
        assert denied.json()["data"]["decidedAt"] == iso(MIDNIGHT)
        # Yesterday's refusal makes no room today, but its funds are back at once.
        shown = await budget(client, agent)
        assert (shown["spentToday"], shown["remainingToday"]) == ("8.000000", "2.000000")
        assert shown["available"] == "92.000000"
        assert await used(clocked, agent) == {"2026-11-14": 0, "2026-11-15": 8_000_000}


async def test_a_spend_of_yesterday_is_approved_on_its_own_day(clocked: ClockedService):
    """What today holds is no obstacle; what yesterday's cap no longer holds is one."""
    async with await clocked.admin() as client:
        policy = {"dailyCap": "10.00", "approvalThreshold": "1.00"}
        agent = await new_agent(client, policy=policy)
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(EVE)
        first = await spend(client, agent["id"], "4")
        second = await spend(client, agent["id"], "6")
        await clocked.set_clock(MIDNIGHT)
        full = await spend(client, agent["id"], "10")
        assert full["status"] == "pending"
        approved = await client.post(f"/v1/transactions/{first['id']}/approve")
        assert approved.json()["data"]["status"] == "approved"
        assert (await budget(client, agent))["spentToday"] == "10.000000"
        await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": "9.99"}})
        refused = await client.post(f"/v1/transactions/{second['id']}/approve")
        assert "daily_cap_exceeded" in error_of(refused, 409, "invalid_state")["message"]
        assert await used(clocked, agent) == {"2026-11-14": 10_000_000, "2026-11-15": 10_000_000}


async def test_expiry_and_termination_after_midnight_give_back_to_the_spends_own_days(
    clocked: ClockedService,
):
    async with await clocked.admin() as client:
        policy = {"dailyCap": "10.00", "approvalThreshold": "1.00"}
        agent = await new_agent(client, policy=policy)
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(EVE)
        first = await spend(client, agent["id"], "3")
        await clocked.set_clock(MIDNIGHT)
        await spend(client, agent["id"], "5")
        expires_at = EVE + timedelta(days=1)
        assert first["expiresAt"] == iso(expires_at)
        await clocked.set_clock(expires_at - MILLISECOND)
        await expire_spends(clocked.db)
        waiting = (await client.get(f"/v1/transactions/{first['id']}")).json()["data"]
        assert waiting == first
        await clocked.set_clock(expires_at)
        late = await client.post(f"/v1/transactions/{first['id']}/approve")
        assert "expired" in error_of(late, 409, "invalid_state")["message"]
        assert await expire_spends(clocked.db) >= 1
        ended = (await client.get(f"/v1/transactions/{first['id']}")).json()["data"]
        assert (ended["status"], ended["rejectCode"]) == ("rejected", "approval_expired")
        assert await used(clocked, agent) == {"2026-11-14": 0, "2026-11-15": 5_000_000}
        await clocked.set_clock(MIDNIGHT + timedelta(days=1))
        await spend(client, agent["id"], "0.5")
        await client.delete(f"/v1/agents/{agent['id']}")
        assert await used(clocked, agent) == {
            "2026-11-14": 0, "2026-11-15": 0, "2026-11-16": 500_000
        }  # fmt: skip
        wallet = (await client.get(f"/v1/wallets/{agent['id']}")).json()["data"]
        assert wallet["reserved"] == "0.500000"


async def test_the_cap_of_the_day_is_the_one_in_force(clocked: ClockedService):
    """Lowered below what was spent it leaves nothing, raised it leaves the rest."""
    async with await clocked.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "10.00", "approvalThreshold": "5.00"})
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(EVE)
        pending = await spend(client, agent["id"], "6")
        await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": "4.00"}})
        shown = await budget(client, agent)
        assert (shown["remainingToday"], shown["maxAmountNow"]) == ("0.000000", "0.000000")
        refused = await spend(client, agent["id"], "4")
        assert refused["rejectCode"] == "daily_cap_exceeded"
        assert refused["decision"]["remainingToday"] == "0.000000"
        assert refused["decision"]["retryAt"] == iso(MIDNIGHT)
        assert (await client.post(f"/v1/transactions/{pending['id']}/deny")).status_code == 200
        assert (await spend(client, agent["id"], "4"))["status"] == "approved"
        await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": "4.01"}})
        assert (await spend(client, agent["id"], "0.01"))["status"] == "approved"
        assert (await spend(client, agent["id"], "0.000001"))["status"] == "rejected"


async def test_statistics_by_day_follow_created_at(clocked: ClockedService):
    """A spend settled tomorrow is yesterday's in `from`/`to`, tomorrow's in `settledFrom`."""
    async with await clocked.admin() as client:
        agent = await new_agent(client)
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(MIDNIGHT - MILLISECOND)
        late = await spend(client, agent["id"], "1")
        await clocked.set_clock(MIDNIGHT)
        early = await spend(client, agent["id"], "2")
        await spend(client, agent["id"], "1000")
        for made in (late, early):
            await settle(clocked.db, made["id"])

        async def stats(**query: str) -> tuple[str, int, int]:
            data = (await client.get("/v1/transactions/stats", params=query)).json()["data"]
            return data["totalSpent"], data["transactionCount"], data["rejectedCount"]

        async def ids(**query: str) -> list[str]:
            rows = (await client.get("/v1/transactions", params=query)).json()["data"]
            return [row["id"] for row in rows]

        eve, day = "2026-11-14", "2026-11-15"
        assert await stats(**{"from": eve, "to": eve}) == ("1.000000", 1, 0)
        assert await stats(**{"from": day, "to": day}) == ("2.000000", 2, 1)
        assert await stats(**{"from": eve, "to": day}) == ("3.000000", 3, 1)
        assert await stats(to=f"{day}T00:00:00Z") == ("1.000000", 1, 0)
        assert await stats(**{"from": f"{eve}T23:59:59.999Z"}) == ("3.000000", 3, 1)
        assert await stats(**{"from": f"{day}T00:00:00.001Z"}) == ("0.000000", 0, 0)
        assert await ids(**{"from": eve, "to": eve}) == [late["id"]]
        assert await ids(settledFrom=eve, settledTo=eve) == []
        assert sorted(await ids(settledFrom=day)) == sorted([late["id"], early["id"]])


@pytest.mark.parametrize(
    ("window", "boundary"),
    [
        ("hour", "2026-11-14T13:00"),
        ("hour", "2027-01-01T00:00"),
        ("day", "2028-02-29T00:00"),
        ("day", "2028-03-01T00:00"),
        # A Monday; and the first Monday of a year, in a week that began in the year before.
        ("week", "2026-11-16T00:00"),
        ("week", "2027-01-04T00:00"),
        ("month", "2026-12-01T00:00"),
        ("month", "2027-01-01T00:00"),
        ("month", "2028-03-01T00:00"),
    ],
)
async def test_a_window_counts_until_it_is_over(
    clocked: ClockedService, window: str, boundary: str
):
    """Goal: of policies, of recipients and of budgets, to the millisecond; what is given back later
    is no longer in the way there, and makes no room here."""
    begins = datetime.fromisoformat(boundary).replace(tzinfo=UTC)
    async with await clocked.admin() as client:
        full = {"window": window, "amount": "5.00"}
        top = await new_budget(client, [full])
        low = await new_budget(client, [{"window": window, "count": 2}], parentId=top["id"])
        agent = await new_agent(
            client,
            budgetId=low["id"],
            policy={
                "approvalThreshold": "2.00",
                "limits": [full, {"window": window, "count": 2, "recipient": "*.example.com"}],
            },
        )
        await clocked.fund(agent["id"], "100")
        await clocked.set_clock(begins - timedelta(minutes=30))
        waiting = await spend(client, agent["id"], "4")
        assert waiting["status"] == "pending"
        assert (await spend(client, agent["id"], "1"))["status"] == "approved"
        await clocked.set_clock(begins - MILLISECOND)
        refused = await spend(client, agent["id"], "0.5")
        failed = [c for c in refused["decision"]["checks"] if c["outcome"] == "fail"]
        assert [check["rule"] for check in failed] == ["limit", "limit", "budget", "budget"]
        assert refused["decision"]["retryAt"] == iso(begins)
        await clocked.set_clock(begins)
        assert (await budget(client, agent))["maxAmountNow"] == "5.000000"
        assert (await spend(client, agent["id"], "1"))["status"] == "approved"
        for id_ in (top["id"], low["id"]):
            assert await use(client, id_, window) == {"amount": "1.000000", "count": 1}
            assert await use(client, id_, "lifetime") == {"amount": "6.000000", "count": 3}
        answer = await client.post(f"/v1/transactions/{waiting['id']}/deny")
        assert answer.status_code == 200, answer.text
        # A clock that is set back opens no window again.
        await clocked.set_clock(begins - timedelta(hours=3))
        assert (await budget(client, agent))["maxAmountNow"] == "4.000000"
        assert (await spend(client, agent["id"], "1.5"))["createdAt"] == iso(begins)
        last = await spend(client, agent["id"], "0.5")
        assert last["rejectCode"] == "limit_exceeded"
        for id_ in (top["id"], low["id"]):
            assert await use(client, id_, window) == {"amount": "2.500000", "count": 2}
            assert await use(client, id_, "lifetime") == {"amount": "3.500000", "count": 3}


async def test_the_schema_and_the_engine_agree_on_windows(clocked: ClockedService):
    """Goal: one says what a meter counts, the other what a decision rests on."""
    chance = random.Random(16)
    moments = [EVE + timedelta(seconds=chance.randrange(-(10**9), 10**9)) for _ in range(2_000)]
    async with clocked.db.connection() as tx:
        for window in ("hour", "day", "week", "month"):
            starts = await tx.fetchval(
                "SELECT array_agg(date_trunc($2, at, 'UTC') ORDER BY place)"
                " FROM unnest($1::timestamptz[]) WITH ORDINALITY AS m (at, place)",
                moments,
                window,
            )
            assert starts == [window_start(window, at) for at in moments]


async def new_budget(client: httpx.AsyncClient, limits: list[Any], **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/budgets", json={"name": "b", "limits": limits, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


async def use(client: httpx.AsyncClient, budget_id: str, window: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/budgets/{budget_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]["use"][window]
