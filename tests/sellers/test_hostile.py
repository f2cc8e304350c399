"""Goal: each hostile seller does on a real chain what its name says, so that a purchase that
survives it has survived something; and one signature is one transfer, whatever they do."""

from collections.abc import Callable
from datetime import UTC, datetime

import aiohttp
import pytest

from bursar.purchase.claim import Claim
from bursar.purchase.offer import Offer, Terms, Unusable, unusable
from bursar_localnet.genesis import TEST_MINT
from tests.localnet.support import Rpc
from tests.sellers.buyer import Buyer
from tests.sellers.chain import transfers
from tests.sellers.hostile import PRICE_MICROS, TRICKS, hostile_seller


async def paid(chain: Rpc, buyer: Buyer, *payees: str) -> list[int]:
    found = [await transfers(chain, buyer.wallet.pubkey(), payee) for payee in payees]
    return [micros for some in found for micros in some]


@pytest.mark.parametrize(
    ("trick", "statuses"),
    [
        ("honest", [200, 200]),
        ("503 once", [503, 200]),
        ("503 twice", [503, 503, 200]),
        ("503 always", [503, 503, 503]),
        ("redirect", [307, 307]),
        ("settles twice", [200, 200]),
        ("402 for ever", [402, 402]),
    ],
)
async def test_the_same_payment_again_pays_once(
    chain: Rpc, buyer: Buyer, trick: str, statuses: list[int]
):
    async with hostile_seller(chain, TRICKS[trick]) as seller:
        header, first = await buyer.buy(seller.url)
        more = [await buyer.present(seller.url, header) for _ in statuses[1:]]
        assert [first.status, *(answer.status for answer in more)] == statuses
        assert await paid(chain, buyer, *seller.payees) == [PRICE_MICROS]
        assert len(seller.presented) == len(statuses)


@pytest.mark.parametrize(
    ("trick", "problem"), [("hang", TimeoutError), ("reset", aiohttp.ClientError)]
)
async def test_a_lost_answer_is_paid_for(
    chain: Rpc, buyer: Buyer, trick: str, problem: type[Exception]
):
    async with hostile_seller(chain, TRICKS[trick]) as seller:
        with pytest.raises(problem):
            await buyer.buy(seller.url)
        assert await paid(chain, buyer, *seller.payees) == [PRICE_MICROS]


async def test_a_payment_is_settled_late(chain: Rpc, buyer: Buyer):
    """Goal: an error says nothing of the payment: it stays spendable while its blockhash lives."""
    async with hostile_seller(chain, TRICKS["settles late"], late_seconds=1.5) as seller:
        _, answer = await buyer.buy(seller.url)
        assert answer.status == 503
        assert await paid(chain, buyer, *seller.payees) == []
        await seller.late()
        assert await paid(chain, buyer, *seller.payees) == [PRICE_MICROS]


@pytest.mark.parametrize(
    ("trick", "success", "moved"), [("denies", False, [PRICE_MICROS]), ("pretends", True, [])]
)
async def test_a_claim_is_not_the_truth(
    chain: Rpc, buyer: Buyer, trick: str, success: bool, moved: list[int]
):
    async with hostile_seller(chain, TRICKS[trick]) as seller:
        _, answer = await buyer.buy(seller.url)
        assert isinstance(answer.claim, Claim)
        assert answer.claim.success is success
        assert await paid(chain, buyer, *seller.payees) == moved


async def test_an_endless_body_is_cut_off_by_the_buyer(chain: Rpc, buyer: Buyer):
    async with hostile_seller(chain, TRICKS["endless body"]) as seller:
        _, answer = await buyer.buy(seller.url)
        assert 0 < len(answer.body) <= buyer.most_bytes
        assert set(answer.body) == {ord("x")}


async def test_a_header_of_a_megabyte(chain: Rpc, buyer: Buyer):
    async with hostile_seller(chain, TRICKS["huge header"]) as seller:
        with pytest.raises(aiohttp.ClientError):
            await buyer.buy(seller.url)
        assert await paid(chain, buyer, *seller.payees) == [PRICE_MICROS]


@pytest.mark.parametrize(
    ("trick", "differs"),
    [
        ("other payee", lambda offer: offer.pay_to),
        ("higher price", lambda offer: offer.amount),
        ("other fee payer", lambda offer: offer.fee_payer),
    ],
)
async def test_terms_that_change_between_answers(
    chain: Rpc, buyer: Buyer, trick: str, differs: Callable[[Offer], str]
):
    """Goal: two 402s of one seller differ in just this, and each of them can be paid."""
    async with hostile_seller(chain, TRICKS[trick]) as seller:
        first, second = [(await buyer.offered(seller.url)).offers[0] for _ in range(2)]
        assert differs(first) != differs(second)
        assert (await buyer.present(seller.url, await buyer.sign(first))).status in (200, 503)
        assert (await buyer.present(seller.url, await buyer.sign(second))).status == 200
        total = first.amount_micros + second.amount_micros
        assert sum(await paid(chain, buyer, *seller.payees)) == total


@pytest.mark.parametrize(
    ("trick", "reason"),
    [("other asset", Unusable.ASSET), ("other network", Unusable.NETWORK)],
)
async def test_offers_that_nobody_here_can_pay(
    chain: Rpc, buyer: Buyer, trick: str, reason: Unusable
):
    async with hostile_seller(chain, TRICKS[trick]) as seller:
        (offer,) = (await buyer.offered(seller.url)).offers
    now = datetime.now(UTC)
    assert unusable(offer, Terms("test", TEST_MINT, now, ours=frozenset())) is reason
