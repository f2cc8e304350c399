"""Goal: the localnet is devnet enough for published sellers, facilitators and clients, unchanged:
each client buys once, and the chain counts one transfer of the price."""

from typing import Final

import pytest
from solders.keypair import Keypair

from tests.localnet.support import Rpc
from tests.purchase.support import DEVNET
from tests.sellers.chain import transfers
from tests.stock.conftest import PRICE_MICROS, OpenSeller, once

BOUGHT: Final = {"status": 200, "body": '{"weather":"fair"}'}


@pytest.mark.parametrize(
    ("seller", "client"),
    [
        ("fastapi", "x402_client.py"),
        ("fastapi", "client.mjs"),
        ("express", "x402_client.py"),
        ("express", "client.mjs"),
        ("pay-kit x402", "pay_kit_client.py"),
        ("pay-kit mpp", "pay_kit_client.py"),
    ],
)
async def test_a_stock_client_buys(
    chain: Rpc, open_seller: OpenSeller, buyer: Keypair, seller: str, client: str
):
    shop = await open_seller(seller)
    answer = await once(
        client,
        url=shop.url,
        secret=str(buyer),
        rpc=chain.url,
        network=DEVNET,
        protocol=shop.protocol,
    )
    assert answer == BOUGHT
    assert await transfers(chain, buyer.pubkey(), shop.payee) == [PRICE_MICROS]
