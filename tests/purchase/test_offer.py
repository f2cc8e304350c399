"""Goal: an offer is taken only if all of it can be paid as it says, and the cheapest of those."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair

from bursar.chain.message import token_account
from bursar.chain.sponsored import PROGRAMS
from bursar.ids import new_id
from bursar.money import MOST_MICROS
from bursar.purchase.offer import Offer, Terms, Unusable, cheapest, unusable
from bursar_localnet.genesis import LIVE_MINT, TEST_MINT
from tests.purchase.support import DEVNET, FEE_PAYER, PAYEE

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
OUR_WALLET = str(Keypair().pubkey())
TERMS = Terms(mode="test", mint=TEST_MINT, now=NOW, ours=frozenset({OUR_WALLET}))
X402 = Offer(
    protocol="x402",
    scheme="exact",
    network=DEVNET,
    asset=TEST_MINT,
    amount="1000",
    pay_to=PAYEE,
    fee_payer=FEE_PAYER,
    memo=None,
    echo={},
)
MPP = replace(X402, protocol="mpp", scheme="charge", network="devnet")


@pytest.mark.parametrize(
    ("offer", "terms"),
    [
        (X402, {}),
        (MPP, {}),
        (replace(MPP, network="localnet"), {}),
        (replace(MPP, asset="USDC"), {}),
        (replace(X402, memo="/weather"), {}),
        (replace(X402, memo="x" * 256), {}),
        (replace(X402, amount=str(MOST_MICROS)), {}),
        (replace(MPP, expires=NOW + timedelta(seconds=1)), {}),
        # The caller's own header is in the way of MPP only.
        (X402, {"sends_authorization": True}),
        (replace(X402, network="solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"), {"mode": "live"}),
        (replace(MPP, network="mainnet"), {"mode": "live"}),
        (replace(MPP, network="mainnet-beta"), {"mode": "live"}),
    ],
)
def test_what_can_be_paid(offer: Offer, terms: dict[str, Any]):
    assert unusable(offer, replace(TERMS, **terms)) is None


@pytest.mark.parametrize(
    ("reason", "offer", "terms"),
    [
        (Unusable.SCHEME, replace(X402, scheme="upto"), {}),
        (Unusable.SCHEME, replace(X402, scheme="charge"), {}),
        (Unusable.SCHEME, replace(MPP, scheme="session"), {}),
        (Unusable.SCHEME, replace(MPP, scheme="stripe charge"), {}),
        (Unusable.NETWORK, X402, {"mode": "live"}),
        (Unusable.NETWORK, MPP, {"mode": "live"}),
        (Unusable.NETWORK, replace(X402, network="devnet"), {}),
        (Unusable.NETWORK, replace(X402, network="eip155:8453"), {}),
        (Unusable.NETWORK, replace(MPP, network=DEVNET), {}),
        (Unusable.NETWORK, replace(MPP, network="mainnet"), {}),
        (Unusable.ASSET, replace(X402, asset=LIVE_MINT), {}),
        # x402 names tokens by address; a word there is nobody's.
        (Unusable.ASSET, replace(X402, asset="USDC"), {}),
        (Unusable.ASSET, replace(MPP, asset="SOL"), {}),
        (Unusable.ASSET, replace(MPP, asset="usdc"), {}),
        (Unusable.ASSET, replace(X402, decimals=9), {}),
        (
            Unusable.ASSET,
            replace(X402, token_program="TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"),
            {},
        ),
        *(
            (Unusable.AMOUNT, replace(X402, amount=amount), {})
            for amount in (
                "", "0", "00", "01", "-1", "+1", "1.0", "1e3", " 1", "1\n", "٣", "0x1",
                str(MOST_MICROS + 1), "9" * 19, "1" * 10_000,
            )
        ),
        *(
            (Unusable.PAYEE, replace(X402, pay_to=payee), {})
            # The third is base58 of 33 bytes.
            for payee in ("", "shop.example", "z" * 44, TEST_MINT, *sorted(PROGRAMS))
        ),
        (Unusable.FEES_NOT_SPONSORED, replace(X402, fee_payer=None), {}),
        (Unusable.FEES_NOT_SPONSORED, replace(MPP, fee_payer=None), {}),
        (Unusable.SPLIT, replace(MPP, splits=True), {}),
        (Unusable.MEMO, replace(X402, memo="x" * 257), {}),
        (Unusable.MEMO, replace(X402, memo="é" * 129), {}),
        (Unusable.MEMO, replace(X402, memo=new_id("txn")), {}),
        (Unusable.MEMO, replace(MPP, memo=new_id("wdr")), {}),
        (Unusable.MEMO, replace(X402, memo=f"order {new_id('pur')}; thanks"), {}),
        *(
            (Unusable.FEE_PAYER, replace(X402, fee_payer=payer), {})
            for payer in (
                "", "nobody", OUR_WALLET, TEST_MINT, PAYEE, token_account(PAYEE, TEST_MINT),
                *sorted(PROGRAMS),
            )
        ),
        (Unusable.EXPIRED, replace(MPP, expires=NOW), {}),
        (Unusable.AUTHORIZATION_TAKEN, MPP, {"sends_authorization": True}),
    ],
)  # fmt: skip
def test_what_cannot_be_paid(reason: Unusable, offer: Offer, terms: dict[str, Any]):
    assert unusable(offer, replace(TERMS, **terms)) is reason


def test_the_first_fault_is_the_one_that_is_told():
    """Goal: the order of the reasons is that of the enum."""
    worst = replace(MPP, scheme="x", network="x", asset="x", amount="x", pay_to="x", memo="x" * 300)
    worst = replace(worst, fee_payer=None, splits=True, expires=NOW)
    found: list[Unusable] = []
    mended = {
        Unusable.SCHEME: {"scheme": "charge"},
        Unusable.NETWORK: {"network": "devnet"},
        Unusable.ASSET: {"asset": TEST_MINT},
        Unusable.AMOUNT: {"amount": "1"},
        Unusable.PAYEE: {"pay_to": PAYEE},
        Unusable.FEES_NOT_SPONSORED: {"fee_payer": PAYEE},
        Unusable.SPLIT: {"splits": False},
        Unusable.MEMO: {"memo": None},
        Unusable.FEE_PAYER: {"fee_payer": FEE_PAYER},
        Unusable.EXPIRED: {"expires": None},
        Unusable.AUTHORIZATION_TAKEN: {"protocol": "x402", "scheme": "exact", "network": DEVNET},
    }
    terms = replace(TERMS, sends_authorization=True)
    while (reason := unusable(worst, terms)) is not None:
        found.append(reason)
        worst = replace(worst, **mended[reason])
    assert found == [reason for reason in Unusable if reason in mended]


def test_the_cheapest_is_taken_and_of_equals_the_first():
    dear, cheap, same = (
        replace(X402, amount="30"), replace(X402, amount="7"), replace(MPP, amount="7")
    )  # fmt: skip
    assert cheapest([dear, cheap, same]) is cheap
    assert cheapest([dear, same, cheap]) is same
    assert cheapest([]) is None


@given(
    offer=st.builds(
        Offer,
        protocol=st.sampled_from(["x402", "mpp"]),
        scheme=st.sampled_from(["exact", "charge", ""]) | st.text(),
        network=st.sampled_from([DEVNET, "devnet"]) | st.text(),
        asset=st.sampled_from([TEST_MINT, "USDC"]) | st.text(),
        amount=st.from_regex(r"[0-9]{1,20}") | st.text(),
        pay_to=st.just(PAYEE) | st.text(),
        fee_payer=st.none() | st.just(FEE_PAYER) | st.text(),
        memo=st.none() | st.text(),
        echo=st.just({}),
        decimals=st.integers(),
        splits=st.booleans(),
    )
)
def test_any_offer_is_judged(offer: Offer):
    """Goal: nothing that a seller writes makes the judgement fail, and what passes is payable."""
    if unusable(offer, TERMS) is None:
        assert 0 < offer.amount_micros <= MOST_MICROS
        assert offer.pay_to == PAYEE
        assert offer.fee_payer == FEE_PAYER
