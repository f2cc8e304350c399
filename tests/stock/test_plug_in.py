"""Goal: an agent that buys with the published x402 client pays through Bursar by changing one line,
and its policy holds for it."""

from typing import Any, Final

import pytest

from tests.stock.conftest import OpenSeller, once
from tests.stock.market import ROOT, Market
from tests.support import Service

PATHS: Final = ["?n=1", "?n=2", "?n=3"]


async def _buy(market: Market, key: str, urls: list[str], how: str) -> Any:
    source = str(ROOT / "src")
    return await once(
        "x402_bursar.py",
        key=key,
        bursar=market.service.url,
        urls=urls,
        how=how,
        source=source,
    )


async def _purchases(service: Service, key: str) -> list[dict[str, Any]]:
    async with service.client(key) as client:
        answer = await client.get("/v1/purchases")
    return answer.json()["data"]


@pytest.mark.parametrize("how", ["at once", "own url", "sync"])
@pytest.mark.parametrize("seller", ["fastapi", "express"])
async def test_the_stock_client_pays_through_bursar(
    market: Market, open_seller_at_market: OpenSeller, seller: str, how: str
):
    """Goal: however many at once, each payment is for its own URL and is taken by its seller."""
    shop = await open_seller_at_market(seller)
    key = await market.buyer("1.00")
    urls = [shop.url + path for path in PATHS]
    bought = await _buy(market, key, urls, how)
    assert [status for status, _ in bought] == [200, 200, 200]
    rows = await _purchases(market.service, key)
    assert {row["payTo"] for row in rows} == {shop.payee}
    assert {row["amount"] for row in rows} == {"0.001000"}
    if how == "own url":
        assert sorted(row["url"] for row in rows) == urls


async def test_a_policy_that_refuses_is_an_error_of_the_stock_client(
    market: Market, open_seller_at_market: OpenSeller
):
    shop = await open_seller_at_market("fastapi")
    key = await market.buyer("0.00")
    (said,) = await _buy(market, key, [shop.url], "at once")
    assert "daily_cap_exceeded" in said
