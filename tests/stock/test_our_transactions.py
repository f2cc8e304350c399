"""Goal: what `bursar.purchase` reads and `chain/sponsored.py` builds is what published sellers and
facilitators offer and accept, by both protocols and with every compute limit."""

from datetime import UTC, datetime

import pytest
from solders.keypair import Keypair

from bursar.chain.sponsored import MOST_VARIATIONS
from bursar.purchase.offer import Terms, unusable
from bursar_localnet.genesis import TEST_MINT
from tests.localnet.support import Rpc
from tests.sellers.buyer import Buyer
from tests.sellers.chain import transfers
from tests.stock.conftest import PRICE_MICROS, OpenSeller


@pytest.mark.parametrize("name", ["fastapi", "express", "pay-kit x402", "pay-kit mpp"])
async def test_a_stock_seller_takes_it(
    chain: Rpc, open_seller: OpenSeller, buyer: Keypair, name: str
):
    shop = await open_seller(name)
    us = Buyer(chain, buyer, seconds=60)
    for variation in (0, MOST_VARIATIONS - 1):
        (offer,) = (await us.offered(shop.url)).offers
        terms = Terms("test", TEST_MINT, datetime.now(UTC), ours=frozenset())
        assert unusable(offer, terms) is None
        assert (offer.protocol, offer.pay_to) == (shop.protocol, shop.payee)
        header = await us.sign(offer, variation)
        answer = await us.present(shop.url, header)
        assert answer.status == 200, answer.body
        # Presented again: whatever the seller says to it, nothing is paid twice.
        await us.present(shop.url, header)
    paid = await transfers(chain, buyer.pubkey(), shop.payee)
    assert paid == [PRICE_MICROS, PRICE_MICROS]
