"""Goal: a purchase that a person must approve is bought at the price and from the payee that were
approved, or not at all; and whatever comes in between, nothing stays reserved."""

import asyncio
from typing import Any

import httpx
import pytest

from bursar.purchase import pin_store, store
from tests.databases import until_waited_for
from tests.processes import until
from tests.purchases.market import Agent, Market, shown
from tests.sellers.chain import new_payee
from tests.sellers.stall import GOODS, Stall
from tests.support import error_of


@pytest.fixture
async def agent(market: Market) -> Agent:
    """Whose every purchase needs a person."""
    return await market.agent(approvalThreshold="0")


async def pending(agent: Agent, stall: Stall, **fields: Any) -> dict[str, Any]:
    purchase = await agent.buy(stall.url, **fields)
    assert (purchase["status"], purchase["header"]) == ("pending", None)
    assert purchase["transaction"]["status"] == "pending"
    assert (await agent.balance())["available"] == "9.999000"
    return purchase


async def decide(agent: Agent, purchase: dict[str, Any], act: str = "approve") -> dict[str, Any]:
    path = f"/v1/transactions/{purchase['transactionId']}/{act}"
    return shown(await agent.admin.post(path, json={}))


async def assert_given_back(agent: Agent) -> None:
    now = await agent.balance()
    assert (now["balance"], now["available"]) == ("10.000000", "10.000000")


async def test_approved_and_continued(market: Market, stall: Stall, agent: Agent):
    purchase = await pending(agent, stall, headers={"X-One": "1"}, method="POST", body="x")
    error_of(await agent.resume(purchase), 409, "invalid_state")
    error_of(await agent.retry(purchase), 409, "invalid_state")
    assert (await decide(agent, purchase))["status"] == "approved"
    # Settlement does not pay it beside the purchase, and nobody signs before it is continued.
    assert (await agent.get(purchase))["status"] == "pending"
    assert stall.presented == []
    bought = shown(await agent.resume(purchase))
    assert (bought["status"], bought["response"]["body"]) == ("presented", GOODS)
    assert [request.headers["X-One"] for request in stall.asked] == ["1", "1"]
    assert (await agent.ended(bought))["status"] == "paid"
    assert await market.paid(agent, stall.payee) == [1_000]
    error_of(await agent.resume(purchase), 409, "invalid_state")
    assert len(stall.presented) == 1


async def test_the_service_asks_again_whom_it_has_asked(market: Market, stall: Stall, agent: Agent):
    """Goal: the word of an agent does not stand in for the seller's, nor an empty request for the
    one that was approved."""
    purchase = await pending(agent, stall, headers={"X-One": "1"}, method="POST", body="x")
    await decide(agent, purchase)
    brought = {"paymentRequired": {"status": 402, "headers": stall.required()}}
    path = f"/v1/purchases/{purchase['id']}/continue"
    error_of(await agent.client.post(path, json=brought), 409, "invalid_state")
    assert stall.presented == []
    assert shown(await agent.resume(purchase))["response"]["body"] == GOODS
    assert len(stall.presented) == 1


async def being_continued(
    agent: Agent, stall: Stall
) -> "tuple[dict[str, Any], asyncio.Task[httpx.Response]]":
    """Approved, and a request that continues it waits for the seller, who is slow."""
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    stall.open.clear()
    slow = asyncio.create_task(agent.resume(purchase))
    await stall.until_asked(2)
    return purchase, slow


async def until_queued(market: Market, count: int) -> None:
    """Returns when so many sessions wait for their turn at a purchase. They have it in the order in
    which they came."""
    query = """
        SELECT count(*) >= $1
          FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'
           AND query LIKE '%UPDATE purchase%'
    """
    async with market.db.connection() as tx:
        await until(lambda: tx.fetchval(query, count), seconds=60)


async def test_continued_by_another_meanwhile(market: Market, stall: Stall, agent: Agent):
    """Goal: who is overtaken by a request that signs asks nobody and takes nothing: what was
    presented can be retried."""
    purchase, slow = await being_continued(agent, stall)
    async with market.db.connection() as tx:
        # The time is over in which it was the first one's alone.
        await tx.execute("UPDATE purchase SET busy_until = NULL WHERE id = $1", purchase["id"])
    async with market.db.transaction() as tx:
        await tx.execute("SELECT FROM purchase WHERE id = $1 FOR UPDATE", purchase["id"])
        stall.open.set()
        await until_queued(market, 1)
        late = asyncio.create_task(agent.resume(purchase))
        await until_queued(market, 2)
    assert shown(await late)["status"] in ("presented", "paid")
    assert shown(await slow)["response"]["body"] == GOODS
    assert len(stall.asked) == 2
    async with market.db.connection() as tx:
        assert await store.take(tx, purchase["id"], 60, ["pending"]) is None
    assert shown(await agent.retry(purchase))["response"]["body"] == GOODS
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_a_payee_that_the_directory_has_meanwhile(market: Market, stall: Stall, agent: Agent):
    purchase = await pending(agent, stall)
    entry = {"address": await new_payee(market.rpc)}
    shown(await agent.admin.put("/v1/recipients/127.0.0.1", json=entry))
    answer = await agent.admin.post(
        f"/v1/transactions/{purchase['transactionId']}/approve", json={}
    )
    assert "payee_mismatch" in error_of(answer, 409, "invalid_state")["message"]


@pytest.mark.parametrize(
    ("change", "free"),
    [("price", False), ("lower price", False), ("payee", False), ("free", True), ("offer", False)],
)
async def test_other_terms_than_the_approved_ones(
    market: Market, stall: Stall, agent: Agent, change: str, free: bool
):
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    match change:
        case "price":
            stall.price_micros += 1
        case "lower price":
            stall.price_micros -= 1
        case "payee":
            stall.payee = await new_payee(market.rpc)
        case "free":
            stall.status = 200
        case _:
            stall.protocols = ()
    failed = shown(await agent.resume(purchase))
    assert (failed["status"], failed["failureCode"]) == ("failed", "terms_changed")
    assert failed["transaction"]["status"] == "rejected"
    assert failed["transaction"]["rejectCode"] == "terms_changed"
    assert failed["response"]["status"] == (200 if free else 402)
    assert (failed["header"], stall.presented) == (None, [])
    await assert_given_back(agent)
    error_of(await agent.resume(purchase), 409, "invalid_state")


async def test_denied(market: Market, stall: Stall, agent: Agent):
    purchase = await pending(agent, stall)
    await decide(agent, purchase, "deny")
    denied = await agent.get(purchase)
    assert (denied["status"], denied["rejectCode"]) == ("rejected", "approval_denied")
    error_of(await agent.resume(purchase), 409, "invalid_state")
    assert stall.presented == []
    await assert_given_back(agent)


async def test_a_payee_that_was_pinned_meanwhile(market: Market, stall: Stall, agent: Agent):
    """Goal: the approved payee is paid only if it is still where the seller is paid."""
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    first, stall.payee = stall.payee, await new_payee(market.rpc)
    other = await market.agent(account=agent.account)
    assert (await other.buy(stall.url))["status"] in ("presented", "paid")
    stall.payee = first
    failed = shown(await agent.resume(purchase))
    assert (failed["status"], failed["failureCode"]) == ("failed", "terms_changed")
    assert len(stall.presented) == 1
    await assert_given_back(agent)


async def test_a_payee_that_is_pinned_just_before_the_signature(
    market: Market, stall: Stall, agent: Agent
):
    """Goal: nothing of a signature for another payee is left."""
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    async with market.db.transaction() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent.id)
        await store.take_turns(tx, realm_id)
        continued = asyncio.create_task(agent.resume(purchase))
        await until_waited_for(tx)
        payee = await new_payee(market.rpc)
        await pin_store.pin(tx, realm_id, stall.origin, payee, "key_another")
    failed = shown(await continued)
    assert (failed["status"], failed["failureCode"]) == ("failed", "terms_changed")
    assert (failed["header"], stall.presented) == (None, [])
    await assert_given_back(agent)


async def test_what_ended_before_its_signature_pins_nothing(
    market: Market, stall: Stall, agent: Agent
):
    """Goal: a payee that nothing was signed for does not stand in the way of the next one."""
    purchase, slow = await being_continued(agent, stall)
    async with market.db.connection() as tx:
        await tx.execute("UPDATE purchase SET busy_until = NULL WHERE id = $1", purchase["id"])
        await tx.execute(
            "UPDATE spend SET decided_at = decided_at - interval '25 hours' WHERE id = $1",
            purchase["transactionId"],
        )
    assert (await agent.ended(purchase))["failureCode"] == "not_continued"
    stall.open.set()
    assert shown(await slow)["failureCode"] == "not_continued"
    assert (shown(await agent.admin.get("/v1/pins")), stall.presented) == ([], [])


async def test_an_approval_alone_pins_nothing(market: Market, stall: Stall, agent: Agent):
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    assert shown(await agent.admin.get("/v1/pins")) == []
    await agent.resume(purchase)
    (pin,) = shown(await agent.admin.get("/v1/pins"))
    assert (pin["origin"], pin["address"]) == (stall.origin, stall.payee)


async def test_a_seller_that_is_away_is_asked_again(market: Market, stall: Stall, agent: Agent):
    """Goal: what a person approved is not lost to a seller that stumbles before it has spoken."""
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    stall.open.clear()
    waiting = shown(await agent.resume(purchase))
    assert waiting["status"] == "pending"
    assert "no answer" in waiting["problem"]
    stall.open.set()
    assert (await agent.ended(shown(await agent.resume(purchase))))["status"] == "paid"
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_a_wallet_that_is_frozen_meanwhile_is_not_signed_for(
    market: Market, stall: Stall, agent: Agent
):
    """Goal: a policy that was frozen, or an agent that was paused, after the approval."""
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    async with market.db.connection() as tx:
        await tx.execute("UPDATE wallet SET is_frozen = true WHERE agent_id = $1", agent.id)
    waiting = shown(await agent.resume(purchase))
    assert (waiting["status"], stall.presented) == ("pending", [])
    assert "frozen" in waiting["problem"]


async def test_a_stop_between_decision_and_signature(market: Market, stall: Stall, agent: Agent):
    """Goal: after the answer of a stop that holds the unsigned, nothing more is signed."""
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    stop = {"reason": "drill", "alsoUnsigned": True}
    assert (await agent.admin.post("/v1/stop", json=stop)).status_code in (200, 201)
    waiting = shown(await agent.resume(purchase))
    assert (waiting["status"], stall.presented) == ("pending", [])
    assert "stopped" in waiting["problem"]
    refused = await agent.buy(stall.url)
    assert (refused["status"], refused["rejectCode"]) == ("rejected", "account_stopped")
    assert len(stall.asked) == 2, "a stopped account asks nobody new"
    resumed = await agent.admin.post("/v1/resume", json={"unsigned": "pay"})
    assert resumed.status_code == 200, resumed.text
    assert (await agent.ended(shown(await agent.resume(purchase))))["status"] == "paid"


async def test_what_a_stop_cancels_is_given_back(market: Market, stall: Stall, agent: Agent):
    purchase = await pending(agent, stall)
    await decide(agent, purchase)
    stop = {"reason": "drill", "alsoUnsigned": True}
    assert (await agent.admin.post("/v1/stop", json=stop)).status_code in (200, 201)
    resumed = await agent.admin.post("/v1/resume", json={"unsigned": "cancel"})
    assert resumed.status_code == 200, resumed.text
    error_of(await agent.resume(purchase), 409, "invalid_state")
    ended = await agent.ended(purchase)
    assert (ended["status"], ended["transaction"]["status"]) == ("failed", "rejected")
    assert stall.presented == []
    await assert_given_back(agent)


async def test_a_stop_while_the_seller_is_asked(market: Market, stall: Stall):
    agent = await market.agent()
    stall.open.clear()
    asked = asyncio.create_task(agent.buy(stall.url))
    await stall.until_asked()
    assert (await agent.admin.post("/v1/stop", json={"reason": "drill"})).status_code in (200, 201)
    stall.open.set()
    refused = await asked
    assert (refused["status"], refused["rejectCode"]) == ("rejected", "account_stopped")
    assert stall.presented == []
    await assert_given_back(agent)
