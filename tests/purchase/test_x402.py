"""Goal: x402's headers are read strictly, repeated as they came, and never believed."""

from base64 import b64decode, b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.purchase.claim import Claim
from bursar.purchase.offer import Offered, Unusable
from bursar.purchase.wire import MOST_HEADER_CHARACTERS
from bursar.purchase.x402 import read_required, read_response, signature_header
from tests.purchase.support import FEE_PAYER, PAYEE, accepted, in_base64, required

MALFORMED = Offered(unread=(Unusable.MALFORMED,))
SIGNATURE = "5" * 88


def read(value: Any, body: bytes = b"") -> Offered:
    return read_required([("payment-required", in_base64(value))], body)


def test_an_offer_is_read_field_by_field():
    extra = {"feePayer": FEE_PAYER, "memo": "/weather", "decimals": 6}
    (offer,) = read(required(accepted(extra=extra))).offers
    assert (offer.protocol, offer.scheme, offer.amount, offer.amount_micros) == (
        "x402", "exact", "1000", 1_000
    )  # fmt: skip
    assert (offer.pay_to, offer.fee_payer, offer.memo) == (PAYEE, FEE_PAYER, "/weather")


def test_the_answer_repeats_what_came():
    """Goal: fields that nobody here knows come back too; sellers compare."""
    extra = {"feePayer": FEE_PAYER, "paymentFlow": "upfront", "π": [1, None, {"a": "é"}]}
    sent = required(accepted(extra=extra, unknown=7), extensions={"some": {"info": True}})
    (offer,) = read(sent).offers
    name, value = signature_header(offer, b"\x01\x02")
    assert name == "PAYMENT-SIGNATURE"
    assert msgspec.json.decode(b64decode(value)) == {
        "x402Version": 2,
        "resource": sent["resource"],
        "extensions": sent["extensions"],
        "accepted": sent["accepts"][0],
        "payload": {"transaction": "AQI="},
    }


def test_without_a_resource_none_is_invented():
    made = required(accepted())
    del made["resource"]
    (offer,) = read(made).offers
    answer = msgspec.json.decode(b64decode(signature_header(offer, b"")[1]))
    assert answer.keys() == {"x402Version", "accepted", "payload"}


def test_a_body_counts_where_there_is_no_header():
    body = msgspec.json.encode(required(accepted()))
    assert len(read_required([], body).offers) == 1
    # The header is what the protocol says; a body that says otherwise is not asked.
    assert read_required([("PAYMENT-REQUIRED", in_base64(required()))], body) == Offered([], [])


@pytest.mark.parametrize("body", [b"", b"pay me", b'{"error": "no"}', b"[" * 70_000, b"\xff\x00"])
def test_a_body_of_another_kind_offers_nothing(body: bytes):
    assert read_required([], body) == Offered()


def test_a_body_is_read_up_to_a_bound():
    padded = msgspec.json.encode(required(accepted(), note="x" * 70_000))
    assert read_required([], padded) == Offered()


def test_the_first_version_is_not_paid():
    made = {"x402Version": 1, "accepts": [accepted()], "error": "X-PAYMENT header is required"}
    assert read(made) == Offered(unread=(Unusable.VERSION,))
    assert read_required([], msgspec.json.encode(made)) == Offered(unread=(Unusable.VERSION,))


@pytest.mark.parametrize("version", [None, "2", 3, 2.5, True, [2]])
def test_other_versions_are_not_paid(version: Any):
    assert read(required(accepted(), x402Version=version)) == Offered(unread=(Unusable.VERSION,))


def test_one_bad_offer_spoils_no_other():
    made = read(required("no", accepted(), accepted(amount=1000), accepted(extra=[1])))
    assert len(made.offers) == 1
    assert made.unread == [Unusable.MALFORMED] * 3


@pytest.mark.parametrize(
    "value",
    [
        "",
        "not base64!",
        "eyJ4",
        "AAAA" * 20,
        "A",
        in_base64([1]),
        in_base64("text"),
        in_base64({"x402Version": 2}),
        in_base64({"x402Version": 2, "accepts": {}}),
        in_base64(required(*[accepted()] * 51)),
        "A" * (MOST_HEADER_CHARACTERS + 4),
    ],
)
def test_what_cannot_be_read_is_malformed(value: str):
    assert read_required([("PAYMENT-REQUIRED", value)], b"") == MALFORMED


def test_a_header_that_is_there_twice_is_no_offer():
    """Goal: which of two counts, a proxy and we would decide differently."""
    header = ("Payment-Required", in_base64(required(accepted())))
    assert read_required([header, header], b"") == MALFORMED


def test_a_key_that_is_there_twice_is_no_offer():
    raw = b'{"x402Version":2,"accepts":[],"accepts":[]}'
    assert read_required([("PAYMENT-REQUIRED", b64encode(raw).decode())], b"") == MALFORMED


@pytest.mark.parametrize(
    "change",
    [
        {"amount": None}, {"amount": 1_000}, {"payTo": ["a"]}, {"asset": {}}, {"scheme": 1},
        {"network": None}, {"extra": {"feePayer": 1}}, {"extra": {"memo": 1}}, {"extra": "x"},
        {"extra": {"decimals": 6.0}}, {"extra": {"decimals": True}}, {"extra": {"tokenProgram": 1}},
    ],
)  # fmt: skip
def test_fields_of_another_type_are_malformed(change: dict[str, Any]):
    assert read(required(accepted(**change))) == Offered([], [Unusable.MALFORMED])


def test_a_number_beyond_all_bounds_is_not_repeated():
    """Goal: what JSON cannot say again is known before anything is signed."""
    raw = msgspec.json.encode(required(accepted(odd=0))).replace(b'"odd":0', b'"odd":' + b"9" * 999)
    assert read_required([], raw) == Offered([], [Unusable.MALFORMED])


def test_what_sellers_claim():
    def claimed(value: Any) -> Claim | None:
        return read_response([("Payment-Response", in_base64(value))])

    settled = {"success": True, "transaction": SIGNATURE, "network": "solana:x", "payer": "p"}
    assert claimed(settled) == Claim(True, SIGNATURE, None)
    failed = {"success": False, "transaction": "", "errorReason": "settlement_pending"}
    assert claimed(failed) == Claim(False, None, "settlement_pending")
    assert claimed({"success": "true"}) is None
    assert claimed({}) is None
    assert claimed({"success": True, "transaction": {"a": 1}, "errorReason": 7}) == Claim(
        True, None, None
    )
    assert claimed({"success": False, "errorReason": "\x1b[2J"}) == Claim(False, None, None)
    assert claimed({"success": False, "errorReason": "x" * 900}) == Claim(False, None, "x" * 200)
    assert read_response([]) is None
    assert read_response([("payment-response", "%%%")]) is None
    assert read_response([("payment-response", "e30=")] * 2) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=json_values, version=st.sampled_from([1, 2, None]))
def test_any_json_is_read_without_harm(value: Any, version: Any):
    made = required(value, accepted(extra=value), accepted(amount=value), x402Version=version)
    for found in (read(made), read(value)):
        for offer in found.offers:
            signature_header(offer, b"transaction")


@given(text=st.text(), body=st.binary())
def test_any_text_is_read_without_harm(text: str, body: bytes):
    assert not read_required([("PAYMENT-REQUIRED", text)], body).offers
    assert not read_required([], body).offers
    read_response([("PAYMENT-RESPONSE", text)])
