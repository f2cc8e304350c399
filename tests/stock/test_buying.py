"""Goal: an agent that has nothing but a key of scope `agent` buys from published sellers, each with
its own facilitator, by both protocols; and what their client pays where a seller stumbles."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from solders.keypair import Keypair

from bursar.service.postgres import EmbeddedPostgres
from tests.localnet.support import Rpc
from tests.purchase.support import DEVNET
from tests.purchases.market import Agent, Market, open_market
from tests.sellers.chain import transfers
from tests.sellers.hostile import PRICE_MICROS, TRICKS, HostileSeller, hostile_seller
from tests.settlement.stage import database
from tests.stock.conftest import OpenSeller, once

BEGIN: Final = "<!-- transfers on the chain -->\n"
END: Final = "<!-- end -->\n"
DOCS: Final = Path(__file__).parents[2] / "docs/buying.md"
# What each trick is, for those who read the table.
WORDS: Final = {
    "honest": "is honest",
    "503 once": "settles, then answers 503 once",
    "503 twice": "settles, then answers 503 twice",
    "503 always": "settles, then always answers 503",
    "hang": "settles, then says nothing",
    "reset": "settles, then breaks the connection",
    "redirect": "settles, then redirects",
    "other payee": "names another payee in its next 402",
    "higher price": "raises its price in its next 402",
    "other fee payer": "settles, answers 503, and names another fee payer each time",
    "settles late": "answers 503, and settles when nobody looks any more",
    "settles twice": "settles three times",
    "denies": "settles, then says that it failed",
    "pretends": "settles nothing, and says that it did",
    "endless body": "settles, then answers without end",
    "huge header": "settles, then answers with a header of 1 MB",
    "402 for ever": "settles, then asks for a payment again",
    "402 for ever, unsettled": "settles nothing, and asks for a payment again",
    "other asset": "wants another token",
    "other network": "wants another network",
}
# The first try, and as many as a patient caller adds.
TRIES: Final = 3
# Seconds after which either takes a silent seller's answer for lost.
PATIENCE: Final = 3


@pytest.fixture(scope="module")
async def market(
    postgres: EmbeddedPostgres, chain: Rpc, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Market]:
    """On the chain of the published sellers."""
    async with (
        database(postgres) as dsn,
        open_market(
            tmp_path_factory.mktemp("market"), dsn, chain=chain, purchases_timeout_seconds=60
        ) as opened,
    ):
        yield opened


@pytest.mark.parametrize("name", ["fastapi", "express", "pay-kit x402", "pay-kit mpp"])
async def test_an_agent_buys(market: Market, open_seller: OpenSeller, name: str):
    shop = await open_seller(name)
    agent = await market.agent()
    bought = await agent.buy(shop.url)
    assert bought["response"] is not None, bought
    assert (bought["response"]["status"], bought["protocol"]) == (200, shop.protocol), bought
    assert bought["response"]["body"] == '{"weather":"fair"}'
    paid = await agent.ended(bought)
    assert (paid["status"], paid["payTo"]) == ("paid", shop.payee)
    assert await market.paid(agent, shop.payee) == [shop.price_micros]
    # The goods again, as far as the seller hands them out again; never the money.
    await agent.retry(bought)
    assert await market.paid(agent, shop.payee) == [shop.price_micros]


async def test_what_hostile_sellers_are_paid(
    postgres: EmbeddedPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Goal: the table in docs/buying.md is what was measured. A caller tries until it is served, at
    most three times: with the published client by buying again, with Bursar by asking for the goods
    again. BURSAR_WRITE_DOCS=1 writes the table."""
    lines = ["| The seller | published client | Bursar |", "|---|---|---|"]
    async with (
        database(postgres) as dsn,
        open_market(tmp_path, dsn, slot_ms=40, purchases_timeout_seconds=PATIENCE) as market,
        AsyncExitStack() as stack,
    ):
        sellers = [
            await stack.enter_async_context(hostile_seller(market.rpc, trick, late_seconds=2.5))
            for trick in TRICKS.values()
        ]
        all_theirs, all_ours = await asyncio.gather(
            _theirs(market, sellers), _ours(market, sellers)
        )
    for trick, theirs, ours in zip(TRICKS, all_theirs, all_ours, strict=True):
        assert len(ours) <= 1, trick
        lines.append(f"| {WORDS[trick]} | {_shown(theirs)} | {_shown(ours)} |")
    table = "\n".join(lines) + "\n"
    with capsys.disabled():
        print(f"\n{table}")
    text = DOCS.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    measured = before + BEGIN + table + END + rest.partition(END)[2]
    if os.environ.get("BURSAR_WRITE_DOCS") == "1":
        DOCS.write_text(measured, "utf-8")
    assert measured == text, "BURSAR_WRITE_DOCS=1 make test-stock"


async def _theirs(market: Market, sellers: list[HostileSeller]) -> list[list[int]]:
    """What each got of a buyer with the published client."""
    wallets = [Keypair() for _ in sellers]
    for wallet in wallets:
        await market.rpc("bursar_faucet", str(wallet.pubkey()), 10 * PRICE_MICROS)
    await once(
        "x402_often.py",
        buyers=[
            {"url": f"{seller.url}?theirs", "secret": str(wallet)}
            for seller, wallet in zip(sellers, wallets, strict=True)
        ],
        rpc=market.rpc.url,
        network=DEVNET,
        times=TRIES,
        timeout=PATIENCE,
        until_served=True,
    )

    async def got(seller: HostileSeller, wallet: Keypair) -> list[int]:
        await seller.late()
        paid = [await transfers(market.rpc, wallet.pubkey(), payee) for payee in seller.payees]
        return [micros for some in paid for micros in some]

    return [await got(*pair) for pair in zip(sellers, wallets, strict=True)]


async def _ours(market: Market, sellers: list[HostileSeller]) -> list[list[int]]:
    """What each got of an agent of Bursar."""
    at_once = asyncio.Semaphore(4)

    async def got(seller: HostileSeller) -> list[int]:
        async with at_once:
            agent = await market.agent()
            purchase = await _bought(agent, f"{seller.url}?ours")
        await agent.ended(purchase)
        return await market.paid(agent, *seller.payees)

    return await asyncio.gather(*map(got, sellers))


async def _bought(agent: Agent, url: str) -> dict[str, Any]:
    purchase = await agent.buy(url)
    for _ in range(TRIES - 1):
        if purchase["status"] not in ("presented", "paid"):
            break
        if purchase["response"] is not None and purchase["response"]["status"] == 200:
            break
        answer = await agent.retry(purchase)
        if answer.status_code != 200:
            break
        purchase = answer.json()["data"]
    return purchase


def _shown(paid: list[int]) -> str:
    """How many transfers, and what they came to where it is not the price."""
    total = sum(paid)
    if total == PRICE_MICROS or not paid:
        return str(len(paid))
    return f"**{len(paid)}** ({total / PRICE_MICROS:g} x the price)"
