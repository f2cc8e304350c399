"""Goal: only the payee that a host is bound to is ever signed for: by the directory, by what the
host said when it was first bought from, or by the policy's word that its present word counts."""

import asyncio
from typing import Any

import pytest
from solders.keypair import Keypair

from bursar.chain.message import token_account
from bursar_localnet.genesis import TEST_MINT
from tests.purchases.market import Agent, Market, shown
from tests.sellers.chain import new_payee
from tests.sellers.stall import Stall, open_stall
from tests.support import error_of


async def enter(agent: Agent, address: str) -> None:
    """Into the directory, for the host of every seller here."""
    shown(await agent.admin.put("/v1/recipients/127.0.0.1", json={"address": address}))


async def refused(agent: Agent, stall: Stall, code: str, **fields: Any) -> dict[str, Any]:
    before = len(stall.presented)
    purchase = await agent.buy(stall.url, **fields)
    assert (purchase["status"], purchase["rejectCode"]) == ("rejected", code)
    assert (purchase["payTo"], purchase["header"]) == (stall.payee, None)
    assert len(stall.presented) == before, "nothing was signed"
    return purchase


async def pins(agent: Agent) -> dict[str, dict[str, Any]]:
    return {pin["origin"]: pin for pin in shown(await agent.admin.get("/v1/pins"))}


async def test_the_directory_decides_where_it_has_the_host(market: Market, stall: Stall):
    agent = await market.agent()
    await enter(agent, await new_payee(market.rpc))
    purchase = await refused(agent, stall, "payee_mismatch")
    checks = {line["rule"]: line["outcome"] for line in purchase["decision"]["checks"]}
    assert checks["payee"] == "fail"
    await enter(agent, stall.payee)
    assert (await agent.buy(stall.url))["status"] in ("presented", "paid")
    assert await pins(agent) == {}, "what the directory has is not pinned"


async def test_a_payee_is_pinned_to_its_origin(market: Market, stall: Stall):
    agent = await market.agent()
    first = stall.payee
    assert (await agent.buy(stall.url))["status"] in ("presented", "paid")
    origin = stall.origin
    assert (await pins(agent))[origin]["address"] == first
    stall.payee = await new_payee(market.rpc)
    await refused(agent, stall, "payee_changed")
    pin = (await pins(agent))[origin]
    assert (pin["address"], pin["offered"]) == (first, stall.payee)
    # Another origin of the same host has a payee of its own.
    async with open_stall(market.rpc) as other:
        assert (await agent.buy(other.url))["status"] in ("presented", "paid")
        assert (await pins(agent))[other.origin]["address"] == other.payee
    # Another account has pins of its own.
    stranger = await market.agent()
    assert (await stranger.buy(stall.url))["status"] in ("presented", "paid")
    assert (await pins(stranger))[origin]["address"] == stall.payee


async def test_a_changed_payee_is_accepted_by_an_admin(market: Market, stall: Stall):
    agent = await market.agent()
    await agent.buy(stall.url)
    stall.payee = await new_payee(market.rpc)
    await refused(agent, stall, "payee_changed")
    accepted = {"origin": stall.origin, "address": stall.payee}
    for scope in ("read", "approver"):
        other = await market.client(account=agent.account, scope=scope)
        error_of(await other.post("/v1/pins/accept", json=accepted), 403, "forbidden")
    error_of(await agent.client.post("/v1/pins/accept", json=accepted), 403, "forbidden")
    # Only what the origin itself has named.
    never = accepted | {"address": str(Keypair().pubkey())}
    error_of(await agent.admin.post("/v1/pins/accept", json=never), 404, "not_found")
    pin = shown(await agent.admin.post("/v1/pins/accept", json=accepted))
    assert (pin["address"], pin["offered"]) == (stall.payee, None)
    (told,) = shown(await agent.admin.get("/v1/events?type=pin.accepted"))
    assert told["type"] == "pin.accepted"
    assert told["data"]["address"] == stall.payee != told["data"]["previousAddress"]
    assert (await agent.buy(stall.url))["status"] in ("presented", "paid")


async def test_a_forgotten_pin_is_made_again(market: Market, stall: Stall):
    agent = await market.agent()
    await agent.buy(stall.url)
    stall.payee = await new_payee(market.rpc)
    answer = await agent.admin.post("/v1/pins/forget", json={"origin": stall.origin})
    assert answer.status_code == 204
    (told,) = shown(await agent.admin.get("/v1/events?type=pin.forgotten"))
    assert (told["type"], told["data"]["origin"]) == ("pin.forgotten", stall.origin)
    assert (await agent.buy(stall.url))["status"] in ("presented", "paid")
    assert (await pins(agent))[stall.origin]["address"] == stall.payee


async def test_what_was_refused_pins_nothing(market: Market, stall: Stall):
    agent = await market.agent()
    await refused(agent, stall, "max_amount_exceeded", maxAmount="0.0001")
    assert await pins(agent) == {}


async def test_the_first_of_two_payees_at_once_is_pinned(market: Market, stall: Stall):
    """Goal: a seller that names two payees to two buyers of one moment is paid at one of them."""
    agent = await market.agent()
    payees = [stall.payee, await new_payee(market.rpc)]
    stall.payees = payees
    bought = await asyncio.gather(*(agent.buy(stall.url) for _ in range(8)))
    signed = {one["payTo"] for one in bought if one["status"] in ("presented", "paid")}
    assert len(signed) == 1
    others = [one for one in bought if one["status"] not in ("presented", "paid")]
    assert {one["rejectCode"] for one in others} == {"payee_changed"}
    assert (await pins(agent))[stall.origin]["address"] in signed


@pytest.mark.parametrize("payees", ["directory", "host"])
async def test_policies_that_do_not_take_its_word(market: Market, stall: Stall, payees: str):
    """Goal: `directory` takes nobody's word, `host` only what a certificate vouches for."""
    agent = await market.agent(payees=payees)
    unvisited = await agent.buy(stall.url)
    assert (unvisited["status"], unvisited["rejectCode"]) == ("rejected", "recipient_unresolved")
    failing = [check for check in unvisited["decision"]["checks"] if check["outcome"] == "fail"]
    assert [check["rule"] for check in failing] == ["recipient_resolved"]
    assert (unvisited["transactionId"], stall.asked) == (None, []), "whatever it would name"
    await enter(agent, stall.payee)
    assert (await agent.buy(stall.url))["status"] in ("presented", "paid")


@pytest.mark.parametrize("blocked", ["its address", "another host of its address"])
async def test_an_address_that_is_blocked_is_not_visited(
    market: Market, stall: Stall, blocked: str
):
    """Goal: host and address stand for each other, before anything is sent there."""
    agent = await market.agent()
    await enter(agent, stall.payee)
    entry = stall.payee
    if blocked != "its address":
        entry = "other.example.com"
        path = f"/v1/recipients/{entry}"
        shown(await agent.admin.put(path, json={"address": stall.payee}))
    change = {"policy": {"blocklist": [entry]}}
    shown(await agent.admin.patch(f"/v1/agents/{agent.id}", json=change))
    purchase = await agent.buy(stall.url)
    assert (purchase["status"], purchase["rejectCode"]) == ("rejected", "recipient_blocked")
    assert (purchase["transactionId"], purchase["payTo"], stall.asked) == (None, None, [])
    assert stall.payee not in str(purchase), "an agent cannot read the directory by asking"


async def test_a_payee_without_a_token_account(market: Market, stall: Stall):
    """Goal: nobody can open one inside such a payment, so it is refused before it is signed."""
    agent = await market.agent()
    stall.payee = str(Keypair().pubkey())
    await refused(agent, stall, "payee_account_missing")
    assert await pins(agent) == {}


async def test_nothing_but_a_wallet_is_paid(market: Market, stall: Stall):
    """Goal: a token account, a mint or a program is no payee, whatever a seller says."""
    agent = await market.agent()
    for payee in (token_account(stall.payee, TEST_MINT), TEST_MINT, "1" * 32):
        stall.payee = payee
        failed = await agent.buy(stall.url)
        assert (failed["status"], failed["failureCode"]) == ("failed", "unsupported_payment")
    assert stall.presented == []


async def test_our_own_addresses_pay_no_fees(market: Market, stall: Stall):
    """Goal: a fee payer of ours would have us sign what is not a purchase."""
    agent = await market.agent()
    async with market.db.connection() as tx:
        keys = await tx.fetch("SELECT address FROM system_key")
    ours = [str(agent.wallet), *(row["address"] for row in keys)]
    ours.append(token_account(str(agent.wallet), TEST_MINT))
    for payer in ours:
        stall.change = {"extra": {"feePayer": payer}}
        failed = await agent.buy(stall.url)
        assert (failed["status"], failed["failureCode"]) == ("failed", "unsupported_payment")
    assert stall.presented == []


async def test_a_memo_of_ours_is_not_the_sellers_to_write(market: Market, stall: Stall):
    """Goal: payments are found by ids in memos, so no seller writes one of ours."""
    agent = await market.agent()
    paid = await agent.buy(stall.url)
    payer = str(stall.fee_payer.pubkey())
    for memo in (paid["transactionId"], f"order {paid['id']}"):
        stall.change = {"extra": {"feePayer": payer, "memo": memo}}
        failed = await agent.buy(stall.url)
        assert (failed["status"], failed["failureCode"]) == ("failed", "unsupported_payment")
    stall.change = {"extra": {"feePayer": payer, "memo": "order 7"}}
    assert (await agent.ended(await agent.buy(stall.url)))["status"] == "paid"
