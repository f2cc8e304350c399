"""Goal: MPP's headers are read strictly, repeated as they came, and never believed."""

import time
from base64 import urlsafe_b64decode
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.purchase.claim import Claim
from bursar.purchase.mpp import credential_header, read_challenges, read_receipt
from bursar.purchase.offer import Offered, Unusable
from bursar.purchase.wire import MOST_HEADER_CHARACTERS
from bursar_localnet.genesis import TEST_MINT
from tests.purchase.support import FEE_PAYER, PAYEE, challenge, in_base64url, request

MALFORMED = Offered(unread=(Unusable.MALFORMED,))
UNREAD = Offered([], [Unusable.MALFORMED])
SIGNATURE = "5" * 88


def read(*values: str) -> Offered:
    return read_challenges([("www-authenticate", value) for value in values])


def answered(value: str) -> dict[str, Any]:
    (offer,) = read(value).offers
    name, credential = credential_header(offer, b"\x01\x02")
    assert name == "Authorization"
    scheme, _, token = credential.partition(" ")
    assert scheme == "Payment"
    assert "=" not in token
    return msgspec.json.decode(urlsafe_b64decode(token + "=" * (-len(token) % 4)))


def test_a_challenge_is_read_field_by_field():
    asked = request(externalId="order-7")
    (offer,) = read(challenge(asked, expires="2026-11-15T12:00:00Z")).offers
    assert (offer.protocol, offer.scheme, offer.network) == ("mpp", "charge", "devnet")
    assert (offer.asset, offer.amount_micros, offer.pay_to) == (TEST_MINT, 1_000, PAYEE)
    assert (offer.fee_payer, offer.memo, offer.decimals) == (FEE_PAYER, "order-7", 6)
    assert offer.expires == datetime(2026, 11, 15, 12, tzinfo=UTC)


def test_the_answer_repeats_the_challenge():
    sent = challenge(expires="2026-11-15T12:00:00.5+01:00", digest="sha-256=:x:", opaque="e30",
                     description="not repeated")  # fmt: skip
    made = answered(sent)
    assert made["payload"] == {"type": "transaction", "transaction": "AQI="}
    assert made["challenge"] == {
        "id": "c-1",
        "realm": "shop",
        "method": "solana",
        "intent": "charge",
        "request": in_base64url(request()),
        "expires": "2026-11-15T12:00:00.5+01:00",
        "digest": "sha-256=:x:",
        "opaque": "e30",
    }


def test_quotes_and_words_are_read_by_the_grammar():
    """Goal: a comma or a scheme inside quotes is text; names may be in any case."""
    value = challenge().replace('realm="shop"', r'REALM = "a \"shop\", Payment id=2"')
    assert answered(value)["challenge"]["realm"] == 'a "shop", Payment id=2'
    assert answered(challenge().replace('method="solana"', "method=solana"))


def test_challenges_are_found_among_others():
    one, two = challenge(), challenge(id="c-2")
    several = f'Basic realm="a, b", {one}, Negotiate YWJj==, payment{two[7:]},, Bearer'
    assert [offer.echo["id"] for offer in read(several).offers] == ["c-1", "c-2"]
    assert [offer.echo["id"] for offer in read(one, "Digest", two).offers] == ["c-1", "c-2"]
    assert read("Basic realm=x", "Bearer") == Offered([], [])
    assert read() == Offered([], [])


@pytest.mark.parametrize(
    "value",
    [
        "Payment id=\"c-1", "=", '"Payment"', "Payment id=1 realm=2", "Payment é=1",
        challenge() + ', id="c-2"', challenge().replace("Payment", "Payment,;"),
        "Payment " + "a" * MOST_HEADER_CHARACTERS, ", ".join([challenge()] * 21),
    ],
)  # fmt: skip
def test_what_is_no_list_of_challenges_is_malformed(value: str):
    assert read(value) == MALFORMED


@pytest.mark.parametrize(
    "value",
    [
        "Payment", "Payment abc", "Payment id==", 'Payment id="c-1"', challenge(request="%%%"),
        challenge(request=in_base64url([1])), challenge(expires="tomorrow"),
        challenge(expires="2026-11-15 12:00:00Z"), challenge(expires="2026-11-15T12:00:00"),
        challenge(expires="2026-13-15T12:00:00Z"), challenge(request(amount=1_000)),
        challenge(request(recipient=None)), challenge(request(currency=[])),
        challenge(request(methodDetails=[1])), challenge(request(details={"splits": {}}) | {
            "methodDetails": {"splits": "x"}}),
        challenge(request(details={"decimals": "6"})), challenge(request(externalId=7)),
        challenge(request(details={"feePayerKey": None})),
    ],
)  # fmt: skip
def test_one_bad_challenge_spoils_no_other(value: str):
    assert read(value) == UNREAD
    found = read(value, challenge())
    assert len(found.offers) == 1
    assert found.unread == [Unusable.MALFORMED]


def test_what_makes_a_charge_unusable_is_read():
    """Goal: `unusable` learns of unsponsored fees, splits, missing decimals and other methods."""

    def offer(**details: Any) -> Any:
        return read(challenge(request(details=details))).offers[0]

    assert offer(feePayer=False).fee_payer is None
    assert offer(feePayer="true").fee_payer is None
    assert offer(splits=[{"recipient": PAYEE, "amount": "1"}]).splits is True
    assert offer(splits=[]).splits is False
    assert offer(decimals=9).decimals == 9
    assert offer(tokenProgram="Tokenz").token_program == "Tokenz"
    bare = request()
    del bare["methodDetails"]["decimals"], bare["methodDetails"]["network"]
    (found,) = read(challenge(bare)).offers
    assert (found.decimals, found.network) == (-1, "mainnet")
    assert read(challenge(method="tempo")).offers[0].scheme == "tempo charge"
    assert read(challenge(intent="session")).offers[0].scheme == "session"


def test_what_sellers_claim():
    def claimed(value: Any) -> Claim | None:
        return read_receipt([("payment-receipt", in_base64url(value))])

    receipt = {"status": "success", "method": "solana", "reference": SIGNATURE}
    assert claimed(receipt) == Claim(True, SIGNATURE, None)
    assert claimed({"status": "failed"}) == Claim(False, None, "failed")
    assert claimed({"status": True}) is None
    assert read_receipt([]) is None
    assert read_receipt([("Payment-Receipt", "%")]) is None


@given(value=st.text(alphabet=st.sampled_from('Pa ymentid=",\\\té;')) | st.text())
def test_any_text_is_read_without_harm(value: str):
    assert not read(value).offers
    read_receipt([("payment-receipt", value)])


@given(
    parameters=st.dictionaries(
        st.sampled_from(["id", "realm", "method", "intent", "request", "expires", "opaque"]),
        st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"])),
    )
)
def test_parameters_survive_their_quotes(parameters: dict[str, str]):
    """Goal: whatever a seller writes into a quoted value comes back the same."""
    sent = {"id": "1", "realm": "r", "method": "solana", "intent": "charge"} | parameters
    sent |= {"request": in_base64url(request()), "expires": "2026-11-15T12:00:00Z"}
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in sent.items()}
    (offer,) = read(challenge(None, **quoted)).offers
    assert offer.echo == sent


@pytest.mark.parametrize(
    "value",
    [
        "Payment " + 'a="' * 20_000,
        "Payment " + "a " * 32_000,
        "Payment " + 'a="\\' * 15_000,
        "," * 60_000,
        "Payment a" + "=" * 60_000,
        " \t" * 30_000 + "Payment",
    ],
)
def test_hostile_headers_cost_little(value: str):
    began = time.process_time()
    read(value)
    assert time.process_time() - began < 1
