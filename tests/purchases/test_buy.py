"""Goal: the contract of purchases by the API alone, with keys of scope `agent`, against honest
sellers on a real chain: what each ends as, and that nothing is asked, signed or paid twice."""

import asyncio
from typing import Any

import pytest

from bursar.purchase import store
from bursar.purchase.end import bury
from bursar.service.ports import free_port
from tests.databases import until_waited_for
from tests.processes import until
from tests.purchases.market import Market, made, shown
from tests.purchases.test_approved import until_queued
from tests.sellers.stall import GOODS, PRIVATE, Stall, open_stall
from tests.support import error_of

NOTHING_SPENT = {"balance": "10.000000", "available": "10.000000"}


def of_key(key: str, **more: str) -> dict[str, Any]:
    return {"headers_of_the_call": {"Idempotency-Key": key, **more}}


async def assert_untouched(agent: Any) -> None:
    now = await agent.balance()
    assert {name: now[name] for name in NOTHING_SPENT} == NOTHING_SPENT


# What it ends as ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_paid(market: Market, stall: Stall, protocol: str):
    """Goal: one signature, one transfer, the goods at once, and the chain's word at the end."""
    stall.protocols = (protocol,)
    agent = await market.agent()
    bought = await agent.buy(
        stall.url,
        headers={"Accept": "text/plain"},
        memo="for the trip",
        metadata={"trip": "7"},
    )
    assert (bought["status"], bought["protocol"]) == ("presented", protocol)
    assert (bought["amount"], bought["payTo"]) == ("0.001000", stall.payee)
    assert (bought["memo"], bought["metadata"]) == ("for the trip", {"trip": "7"})
    assert (bought["rejectCode"], bought["failureCode"]) == (None, None)
    assert bought["header"]["value"] == stall.presented[0]
    assert bought["response"]["status"] == 200
    assert (bought["response"]["body"], bought["response"]["encoding"]) == (GOODS, "text")
    assert bought["response"]["headers"][PRIVATE.lower()] == "for the buyer"
    spend = bought["transaction"]
    assert (spend["id"], spend["purchaseId"]) == (bought["transactionId"], bought["id"])
    assert spend["status"] in ("approved", "settled")
    assert (spend["recipient"], spend["payTo"]) == ("127.0.0.1", stall.payee)
    assert stall.asked[0].headers["Accept"] == "text/plain"
    paid = await agent.ended(bought)
    assert paid["status"] == "paid"
    assert paid["transaction"]["status"] == "settled"
    assert paid["transaction"]["signature"] == stall.settled[0].signature
    assert paid["response"] == bought["response"]
    assert await market.paid(agent, stall.payee) == [1_000]
    assert (len(stall.asked), len(stall.presented)) == (1, 1)
    now = await agent.balance()
    assert (now["balance"], now["available"]) == ("9.999000", "9.999000")


async def test_waiting_for_the_chain(market: Market, stall: Stall):
    agent = await market.agent()
    bought = await agent.buy(stall.url, headers_of_the_call={"Prefer": "wait=30"})
    assert bought["status"] == "paid"
    assert bought["transaction"]["signature"] == stall.settled[0].signature


async def test_the_cheapest_that_can_be_paid(market: Market, stall: Stall):
    """Goal: where a seller takes both protocols for the same price, one of them is paid, once."""
    stall.protocols = ("x402", "mpp")
    agent = await market.agent()
    assert (await agent.ended(await agent.buy(stall.url)))["status"] == "paid"
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_what_is_sent(market: Market, stall: Stall):
    """Goal: the same request twice, with the payment the second time, and a body of one's own."""
    agent = await market.agent()
    await agent.buy(stall.url, method="POST", body='{"city": "Köln"}', headers={"X-One": "1"})
    assert [request.method for request in stall.asked] == ["POST"]
    assert stall.asked[0].headers["X-One"] == "1"
    assert len(stall.presented) == 1


async def test_free(market: Market, stall: Stall):
    stall.status = 200
    agent = await market.agent()
    free = await agent.buy(stall.url)
    assert free["status"] == "free"
    assert (free["response"]["status"], free["response"]["body"]) == (200, GOODS)
    assert [free[name] for name in ("amount", "payTo", "protocol", "transactionId")] == [None] * 4
    assert (free["header"], free["transaction"], free["decision"]) == (None, None, None)
    assert stall.presented == []
    await assert_untouched(agent)
    error_of(await agent.retry(free), 409, "invalid_state")


async def test_nobody_there(market: Market):
    agent = await market.agent()
    failed = await agent.buy(f"http://127.0.0.1:{free_port('127.0.0.1', 0)}/x")
    assert (failed["status"], failed["failureCode"]) == ("failed", "seller_unreachable")
    assert "127.0.0.1" not in failed["problem"]
    assert (failed["response"], failed["transactionId"]) == (None, None)
    await assert_untouched(agent)
    error_of(await agent.retry(failed), 409, "invalid_state")
    error_of(await agent.resume(failed), 409, "invalid_state")


async def test_a_price_that_cannot_be_paid(market: Market, stall: Stall):
    """Goal: what the seller offered can be read, both from the reason and from its answer."""
    stall.protocols = ()
    agent = await market.agent()
    failed = await agent.buy(stall.url)
    assert (failed["status"], failed["failureCode"]) == ("failed", "unsupported_payment")
    assert "offered no way to pay" in failed["problem"]
    stall.protocols, stall.change = ("x402", "mpp"), {"asset": "other", "currency": "EUR"}
    failed = await agent.buy(stall.url)
    assert (failed["status"], failed["failureCode"]) == ("failed", "unsupported_payment")
    assert "x402 asset" in failed["problem"]
    assert "mpp asset" in failed["problem"]
    assert failed["response"]["status"] == 402
    assert "payment-required" in failed["response"]["headers"]
    assert stall.presented == []
    await assert_untouched(agent)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"policy": {"allowlist": ["shop.example.com"]}}, "recipient_not_allowed"),
        ({"policy": {"blocklist": ["127.0.0.1"]}}, "recipient_blocked"),
        ({"policy": {"frozen": True}}, "policy_frozen"),
        ({"status": "paused"}, "agent_paused"),
    ],
)
async def test_what_the_policy_refuses_is_not_visited(
    market: Market, stall: Stall, change: dict[str, Any], code: str
):
    agent = await market.agent()
    shown(await agent.admin.patch(f"/v1/agents/{agent.id}", json=change))
    refused = await agent.buy(stall.url)
    assert (refused["status"], refused["rejectCode"]) == ("rejected", code)
    failing = [line["rule"] for line in refused["decision"]["checks"] if line["outcome"] == "fail"]
    assert len(failing) == 1
    assert [refused[name] for name in ("transactionId", "response", "header", "amount")] == [
        None
    ] * 4
    assert stall.asked == []
    assert stall.presented == []


@pytest.mark.parametrize(
    ("policy", "amount", "code"),
    [
        ({"perTransactionCap": "0.01"}, 10_001, "per_transaction_cap_exceeded"),
        ({"dailyCap": "0.02"}, 20_001, "daily_cap_exceeded"),
        ({}, 10_000_001, "insufficient_funds"),
    ],
)
async def test_a_price_that_is_refused_is_not_signed(
    market: Market, stall: Stall, policy: dict[str, Any], amount: int, code: str
):
    stall.price_micros = amount
    agent = await market.agent(**policy)
    refused = await agent.buy(stall.url)
    assert (refused["status"], refused["rejectCode"]) == ("rejected", code)
    assert (refused["transaction"]["status"], refused["header"]) == ("rejected", None)
    assert refused["transaction"]["rejectCode"] == code
    assert (len(stall.asked), stall.presented) == (1, [])
    await assert_untouched(agent)
    stall.price_micros -= 1
    assert (await agent.buy(stall.url))["status"] in ("presented", "paid")


async def test_the_callers_own_bound(market: Market, stall: Stall):
    agent = await market.agent()
    refused = await agent.buy(stall.url, maxAmount="0.000999")
    assert (refused["status"], refused["rejectCode"]) == ("rejected", "max_amount_exceeded")
    assert stall.presented == []
    assert (await agent.buy(stall.url, maxAmount="0.001"))["status"] in ("presented", "paid")


async def test_what_is_never_settled_is_given_back(market: Market, stall: Stall):
    """Goal: signed bytes count as spent until they are proven dead, and not a moment longer."""
    stall.settles = False
    agent = await market.agent()
    bought = await agent.buy(stall.url)
    assert (bought["status"], bought["response"]["status"]) == ("presented", 402)
    assert (await agent.balance())["available"] == "9.999000"
    await market.pass_blocks()
    unpaid = await agent.ended(bought)
    assert unpaid["status"] == "unpaid"
    assert unpaid["transaction"]["status"] == "rejected"
    assert unpaid["transaction"]["rejectCode"] == "purchase_expired"
    assert await market.paid(agent, stall.payee) == []
    await assert_untouched(agent)
    error_of(await agent.retry(unpaid), 409, "invalid_state")


# Nothing twice -----------------------------------------------------------------------------------


async def test_a_key_finds_the_purchase_as_it_stands(market: Market, stall: Stall):
    agent = await market.agent()
    first = await agent.buy(stall.url, **of_key("k-1"))
    await agent.ended(first)
    again = await agent.post(stall.url, **of_key("k-1"))
    assert again.headers["idempotent-replayed"] == "true"
    assert (made(again)["id"], made(again)["status"]) == (first["id"], "paid")
    assert made(again)["response"] == first["response"]
    # Naming the agent, or leaving it to the key, is the same request.
    assert (await agent.buy(stall.url, agentId=agent.id, **of_key("k-1")))["id"] == first["id"]
    error_of(
        await agent.post(stall.url, maxAmount="1", **of_key("k-1")), 422, "idempotency_key_reused"
    )
    assert (await agent.buy(stall.url, **of_key("k-2")))["id"] != first["id"]
    assert (len(stall.asked), len(stall.presented)) == (2, 2)


async def test_a_key_at_the_same_time_is_one_purchase(market: Market, stall: Stall):
    agent = await market.agent()
    stall.open.clear()
    asked = [asyncio.create_task(agent.post(stall.url, **of_key("once"))) for _ in range(10)]

    async def all_but_one() -> bool:
        return sum(one.done() for one in asked) == 9

    await until(all_but_one, seconds=60)
    await stall.until_asked()
    assert {made(one.result())["status"] for one in asked if one.done()} == {"open"}
    assert stall.arrived == 1, "only one of them asks the seller"
    stall.open.set()
    answers = [made(answer) for answer in await asyncio.gather(*asked)]
    assert len({answer["id"] for answer in answers}) == 1
    assert (await agent.ended(answers[0]))["status"] == "paid"
    assert (len(stall.asked), len(stall.presented)) == (1, 1)
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_waiting_for_what_another_request_makes(market: Market, stall: Stall):
    agent = await market.agent()
    stall.open.clear()
    first = asyncio.create_task(agent.post(stall.url, **of_key("once")))
    await stall.until_asked()
    waiting = asyncio.create_task(agent.post(stall.url, **of_key("once", Prefer="wait=30")))
    short = made(await agent.post(stall.url, **of_key("once", Prefer="wait=1")))
    assert (short["status"], waiting.done()) == ("open", False)
    stall.open.set()
    assert made(await waiting)["status"] == "paid"
    assert made(await first)["id"] == made(await waiting)["id"]
    assert len(stall.presented) == 1


async def test_a_key_finds_what_failed_and_what_was_refused(market: Market, stall: Stall):
    agent = await market.agent()
    stall.protocols = ()
    failed = await agent.buy(stall.url, **of_key("f"))
    refused = await agent.buy("http://127.0.0.2/", **of_key("r"))
    stall.protocols = ("x402",)
    assert (await agent.buy(stall.url, **of_key("f")))["id"] == failed["id"]
    assert (await agent.buy("http://127.0.0.2/", **of_key("r")))["id"] == refused["id"]
    assert len(stall.asked) == 1


async def test_the_same_within_a_while_is_the_same(market: Market, stall: Stall):
    agent, other = await market.agent(), await market.agent()
    same: dict[str, Any] = {"headers_of_the_call": {"Prefer": "same-within=600"}}
    first = await agent.buy(stall.url, **same)
    assert (await agent.buy(stall.url, **same))["id"] == first["id"]
    assert len(stall.presented) == 1
    for different in (
        await agent.buy(stall.url + "?q=1", **same),
        await agent.buy(stall.url, method="POST", **same),
        await agent.buy(stall.url, method="POST", body="x", **same),
        await agent.buy(stall.url),
        await other.buy(stall.url, **same),
    ):
        assert different["id"] != first["id"]
    assert len(stall.presented) == 6


async def test_the_same_within_a_while_tries_again_what_came_to_nothing(
    market: Market, stall: Stall
):
    agent = await market.agent()
    same: dict[str, Any] = {"headers_of_the_call": {"Prefer": "same-within=600"}}
    stall.protocols = ()
    failed = await agent.buy(stall.url, **same)
    stall.protocols = ("x402",)
    assert (await agent.buy(stall.url, **same))["id"] != failed["id"]


async def test_the_same_for_less_is_neither_answered_nor_bought_again(market: Market, stall: Stall):
    """Goal: who allows less than the first one cost, or may cost as long as no price is known, is
    told so; who allows as much gets it."""
    agent = await market.agent()
    same: dict[str, Any] = {"headers_of_the_call": {"Prefer": "same-within=600"}}
    stall.open.clear()
    first = asyncio.create_task(agent.post(stall.url, maxAmount="0.002", **same))
    await stall.until_asked(1)
    error_of(await agent.post(stall.url, maxAmount="0.001", **same), 409, "invalid_state")
    stall.open.set()
    bought = made(await first)
    assert bought["amount"] == "0.001000"
    refused = await agent.post(stall.url, maxAmount="0.000999", **same)
    assert bought["id"] in error_of(refused, 409, "invalid_state")["message"]
    for enough in ({"maxAmount": "0.001"}, {}):
        assert (await agent.buy(stall.url, **enough, **same))["id"] == bought["id"]
    assert len(stall.presented) == 1


async def test_what_was_free_costs_no_more_than_anybody_allows(market: Market, stall: Stall):
    agent = await market.agent()
    same: dict[str, Any] = {"headers_of_the_call": {"Prefer": "same-within=600"}}
    stall.status = 200
    first = await agent.buy(stall.url, **same)
    assert first["status"] == "free"
    assert (await agent.buy(stall.url, maxAmount="0.01", **same))["id"] == first["id"]


async def test_a_header_is_no_answer_to_who_wants_the_goods(market: Market, stall: Stall):
    """Goal: a purchase whose 402 was brought is the same as another such one only."""
    agent = await market.agent()
    same: dict[str, Any] = {"headers_of_the_call": {"Prefer": "same-within=600"}}
    brought = {"paymentRequired": {"status": 402, "headers": stall.required()}}
    header = await agent.buy(stall.url, **brought, **same)
    assert (await agent.buy(stall.url, **brought, **same))["id"] == header["id"]
    goods = await agent.buy(stall.url, **same)
    assert goods["id"] != header["id"]
    assert goods["response"]["body"] == GOODS


async def test_purchases_of_one_moment_differ(market: Market, stall: Stall):
    """Goal: ten at once on the same terms are ten payments, of which none stands for another."""
    agent = await market.agent()
    bought = await asyncio.gather(*(agent.buy(stall.url) for _ in range(10)))
    assert len({one["id"] for one in bought}) == 10
    ends = await asyncio.gather(*map(agent.ended, bought))
    assert {one["status"] for one in ends} == {"paid"}
    assert len({one["transaction"]["signature"] for one in ends}) == 10
    assert await market.paid(agent, stall.payee) == [1_000] * 10


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_goods_that_were_lost_are_had_for_the_same_bytes(
    market: Market, stall: Stall, protocol: str
):
    stall.protocols, stall.stumbles = (protocol,), [503, 500]
    agent = await market.agent()
    bought = await agent.buy(stall.url)
    assert bought["response"]["status"] == 503
    again = shown(await agent.retry(bought))
    assert (again["id"], again["response"]["status"]) == (bought["id"], 500)
    assert (await agent.ended(bought))["status"] == "paid"
    # Paid for already, and still to be had.
    once_more = shown(await agent.retry(bought))
    assert (once_more["status"], once_more["response"]["body"]) == ("paid", GOODS)
    assert len(stall.presented) == 3
    assert len(set(stall.presented)) == 1
    assert (len(stall.asked), len({one.signature for one in stall.settled})) == (1, 1)
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_a_retry_has_a_key_too(market: Market, stall: Stall):
    agent = await market.agent()
    bought = await agent.buy(stall.url)
    for _ in range(3):
        shown(await agent.retry(bought, **{"Idempotency-Key": "again"}))
    assert len(stall.presented) == 2


async def test_one_retry_at_a_time(market: Market, stall: Stall):
    """Goal: however the purchase ends meanwhile, only one process asks its seller again."""
    agent = await market.agent()
    stall.settles = False
    bought = await agent.buy(stall.url)
    stall.settles = True
    stall.paying.clear()
    first = asyncio.create_task(agent.retry(bought))
    await stall.until_presented(2)
    error_of(await agent.retry(bought), 409, "invalid_state")
    await stall.settle(stall.presented[0])
    assert (await agent.ended(bought))["status"] == "paid"
    error_of(await agent.retry(bought), 409, "invalid_state")
    stall.paying.set()
    shown(await first)
    assert len(stall.presented) == 2


async def test_one_that_dies_meanwhile_is_not_retried(market: Market, stall: Stall):
    """Goal: what is proven dead is not presented once more, by who saw it alive just before."""
    agent = await market.agent()
    stall.settles = False
    bought = await agent.buy(stall.url)
    async with market.db.connection() as tx:
        (row,) = await store.get_purchases(tx, [bought["id"]])
    async with market.db.transaction() as tx:
        await tx.execute("SELECT FROM spend WHERE id = $1 FOR UPDATE", bought["transactionId"])
        # It moves the purchase, then waits for its spend.
        burying = asyncio.create_task(bury(market.db, row, "a test"))
        await until_waited_for(tx)
        retrying = asyncio.create_task(agent.retry(bought))
        await until_queued(market, 1)
    await burying
    assert "unpaid" in error_of(await retrying, 409, "invalid_state")["message"]
    assert len(stall.presented) == 1


async def test_a_caller_that_hangs_up_does_not_stop_it(market: Market, stall: Stall):
    agent = await market.agent()
    stall.open.clear()
    asked = asyncio.create_task(agent.post(stall.url, **of_key("gone")))
    await stall.until_asked()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    stall.open.set()
    found = await agent.ended(await agent.buy(stall.url, **of_key("gone")))
    assert (found["status"], found["response"]["body"]) == ("paid", GOODS)
    assert await market.paid(agent, stall.payee) == [1_000]


# What it is counted in ---------------------------------------------------------------------------


async def test_caps_are_exact_beside_plain_spends(market: Market, stall: Stall):
    """Goal: purchases and spends at once share one cap, to the micro-unit. It has room for twenty,
    so that each kind gets some of it, whichever is quicker."""
    stall.price_micros = 10_000
    agent = await market.agent(dailyCap="0.20", allowlist=["127.0.0.1", "api.example.com"])

    async def spend() -> str:
        body = {"amount": "0.01", "recipient": "api.example.com"}
        return made(await agent.client.post("/v1/spend/authorise", json=body))["status"]

    async def buy() -> str:
        return (await agent.buy(stall.url))["status"]

    bought, spent = await asyncio.gather(
        asyncio.gather(*(buy() for _ in range(15))), asyncio.gather(*(spend() for _ in range(15)))
    )
    approved = [[end for end in ends if end != "rejected"] for ends in (bought, spent)]
    assert sum(map(len, approved)) == 20
    assert len(stall.presented) == len(approved[0]) >= 5
    budget = shown(await agent.admin.get(f"/v1/agents/{agent.id}/budget"))
    assert budget["spentToday"] == "0.200000"


async def test_statistics_and_exports_know_it(market: Market, stall: Stall):
    stall.price_micros = 6_000
    agent = await market.agent(dailyCap="0.01")
    paid = await agent.ended(await agent.buy(stall.url))
    refused = await agent.buy(stall.url)
    assert refused["rejectCode"] == "daily_cap_exceeded"
    of_agent = {"agentId": agent.id}
    stats = shown(await agent.admin.get("/v1/transactions/stats", params=of_agent))
    assert (stats["totalSpent"], stats["transactionCount"]) == ("0.006000", 2)
    assert stats["rejectedCount"] == 1
    export = await agent.admin.get("/v1/transactions/export", params=of_agent)
    lines = {line.split(",")[0]: line for line in export.text.splitlines()}
    assert paid["transactionId"] in lines
    assert paid["id"] in lines[paid["transactionId"]]
    assert refused["id"] in lines[refused["transactionId"]]


async def test_lists(market: Market, stall: Stall):
    agent = await market.agent()
    async with open_stall(market.rpc) as other:
        other.status = 200
        free = await agent.buy(other.url.replace("127.0.0.1", "localhost"))
        assert free["rejectCode"] == "recipient_not_allowed"
        free = await agent.buy(other.url)
    paid = await agent.ended(await agent.buy(stall.url))

    async def listed(**query: str) -> list[str]:
        rows = shown(await agent.client.get("/v1/purchases", params=query))
        return [row["id"] for row in rows]

    assert (await listed())[:2] == [paid["id"], free["id"]]
    assert len(await listed()) == 3
    assert await listed(status="free") == [free["id"]]
    assert await listed(status="paid", host="127.0.0.1") == [paid["id"]]
    assert await listed(host="shop.example.com") == []
    assert await listed(agentId="ag_00000000000000000000000000") == []
    assert await listed(**{"from": paid["createdAt"]}) == [paid["id"]]
    assert len(await listed(to=paid["createdAt"])) == 2
