"""Goal: an agent that asked the seller itself gets a header and nothing else is fetched; and with a
live key only a payee of the directory is ever signed for."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import pytest
from solders.keypair import Keypair

from bursar_localnet.genesis import LIVE_MINT
from tests.localnet.support import Rpc
from tests.processes import until
from tests.purchase.support import accepted, in_base64, required
from tests.purchases.market import Market, made, shown
from tests.sellers.stall import GOODS, Stall
from tests.support import error_of, new_account, new_agent

MAINNET = "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"


def brought(stall: Stall) -> dict[str, Any]:
    return {"status": 402, "headers": stall.required(), "body": ""}


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_a_header_is_had_for_a_402(market: Market, stall: Stall, protocol: str):
    stall.protocols = (protocol,)
    agent = await market.agent()
    signed = await agent.buy(stall.url, paymentRequired=brought(stall))
    assert (signed["status"], signed["response"]) == ("presented", None)
    assert (stall.asked, stall.presented) == ([], []), "the service fetched nothing"
    header = signed["header"]
    assert header["name"] == ("PAYMENT-SIGNATURE" if protocol == "x402" else "Authorization")
    async with httpx.AsyncClient() as client:
        for _ in range(2):
            answer = await client.get(stall.url, headers={header["name"]: header["value"]})
            assert (answer.status_code, answer.text) == (200, GOODS)
    assert (await agent.ended(signed))["status"] == "paid"
    assert await market.paid(agent, stall.payee) == [1_000]
    # The agent presents it, and may do so again; the service does not.
    error_of(await agent.retry(signed), 409, "invalid_state")
    assert shown(await agent.admin.get("/v1/pins")) == []


async def test_a_header_that_nobody_presents_is_given_back(market: Market, stall: Stall):
    agent = await market.agent()
    signed = await agent.buy(stall.url, paymentRequired=brought(stall))
    assert (await agent.balance())["available"] == "9.999000"
    await market.pass_blocks()
    assert (await agent.ended(signed))["status"] == "unpaid"
    assert (await agent.balance())["available"] == "10.000000"


async def test_a_key_gives_the_same_header(market: Market, stall: Stall):
    agent = await market.agent()
    again = {"headers_of_the_call": {"Idempotency-Key": "once"}}
    first, second = [
        await agent.buy(stall.url, paymentRequired=brought(stall), **again) for _ in range(2)
    ]
    assert (first["id"], first["header"]) == (second["id"], second["header"])


async def test_one_that_needs_a_person(market: Market, stall: Stall):
    agent = await market.agent(approvalThreshold="0")
    purchase = await agent.buy(stall.url, paymentRequired=brought(stall))
    assert (purchase["status"], purchase["header"]) == ("pending", None)
    path = f"/v1/transactions/{purchase['transactionId']}/approve"
    shown(await agent.admin.post(path, json={}))
    signed = shown(await agent.resume(purchase))
    assert signed["status"] == "presented"
    assert signed["header"]["name"] == "PAYMENT-SIGNATURE"
    assert stall.asked == []


async def test_the_402_must_be_one(market: Market, stall: Stall):
    agent = await market.agent()
    for wrong in (
        {"status": 200, "headers": {}},
        {"status": 402},
        {"status": 402, "headers": {"a": 1}},
        {"status": 402, "headers": {str(number): "" for number in range(101)}},
    ):
        error_of(await agent.post(stall.url, paymentRequired=wrong), 400, "validation_error")
    nothing = await agent.buy(stall.url, paymentRequired={"status": 402, "headers": {}})
    assert (nothing["status"], nothing["failureCode"]) == ("failed", "unsupported_payment")


@pytest.fixture
async def live(market: Market) -> "AsyncGenerator[Live]":
    async with aiohttp.ClientSession() as session:
        yield await _live(market, Rpc(market.config.live_localnet_port, session))


@dataclass(frozen=True)
class Live:
    """A live agent with 10 USDC, and a seller's offers there."""

    chain: Rpc
    admin: httpx.AsyncClient
    client: httpx.AsyncClient
    agent_id: str
    payee: str

    async def buy(self, host: str = "shop.example.com", **change: Any) -> dict[str, Any]:
        offer = accepted(network=MAINNET, asset=LIVE_MINT, payTo=self.payee) | change
        said = {"status": 402, "headers": {"PAYMENT-REQUIRED": in_base64(required(offer))}}
        body = {"url": f"https://{host}/x", "paymentRequired": said}
        return made(await self.client.post("/v1/purchases", json=body))


async def _live(market: Market, chain: Rpc) -> Live:
    account = new_account()
    admin = await market.client(mode="live", account=account)
    agent = await new_agent(admin, policy={"dailyCap": "5.00", "allowlist": ["*"]})
    await chain("bursar_faucet", agent["wallet"]["address"], 10_000_000)
    payee = str(Keypair().pubkey())
    await chain("bursar_faucet", payee, 1)

    async def credited() -> bool:
        now = shown(await admin.get(f"/v1/wallets/{agent['id']}/balance"))
        return now["balance"] == "10.000000"

    await until(credited, seconds=30, every=0.1)
    client = await market.client(account=account, mode="live", scope="agent", agent_id=agent["id"])
    return Live(chain, admin, client, agent["id"], payee)


async def test_live_only_the_directory_counts(live: Live):
    """Goal: whatever 402 an agent makes up, it gets no signature for a payee of its own choice."""
    refused = await live.buy()
    assert (refused["status"], refused["rejectCode"]) == ("rejected", "recipient_unresolved")
    assert refused["header"] is None
    for payees in ("pinned", "host"):
        change = {"policy": {"payees": payees}}
        shown(await live.admin.patch(f"/v1/agents/{live.agent_id}", json=change))
        refused = await live.buy()
        assert (refused["status"], refused["rejectCode"]) == ("rejected", "recipient_unresolved")
    other = str(Keypair().pubkey())
    await live.chain("bursar_faucet", other, 1)
    path = "/v1/recipients/shop.example.com"
    shown(await live.admin.put(path, json={"address": other}))
    refused = await live.buy()
    assert (refused["status"], refused["rejectCode"]) == ("rejected", "payee_mismatch")
    shown(await live.admin.put(path, json={"address": live.payee}))
    signed = await live.buy()
    assert signed["status"] == "presented"
    assert signed["header"]["name"] == "PAYMENT-SIGNATURE"
    # What names another host is not what the directory has.
    refused = await live.buy("sub.shop.example.com")
    assert refused["rejectCode"] == "recipient_unresolved"


async def test_live_takes_live_money_only(live: Live):
    shown(await live.admin.put("/v1/recipients/shop.example.com", json={"address": live.payee}))
    for change in (
        {"network": "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"},
        {"asset": accepted()["asset"]},
    ):
        failed = await live.buy(**change)
        assert (failed["status"], failed["failureCode"]) == ("failed", "unsupported_payment")
