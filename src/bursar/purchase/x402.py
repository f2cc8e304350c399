"""x402, version 2: a seller's `PAYMENT-REQUIRED`, our `PAYMENT-SIGNATURE`, its
`PAYMENT-RESPONSE`."""

from base64 import b64encode
from typing import Any, Final, cast

from bursar.purchase.claim import Claim, read_claim
from bursar.purchase.offer import USDC_DECIMALS, USDC_PROGRAM, Offer, Offered, Unusable
from bursar.purchase.wire import (
    Headers,
    Malformed,
    Object,
    integer_or,
    object_of,
    only,
    read_base64,
    read_json,
    text_of,
    text_or_none,
    write_base64,
)

VERSION: Final = 2
REQUIRED: Final = "PAYMENT-REQUIRED"
SIGNATURE: Final = "PAYMENT-SIGNATURE"
RESPONSE: Final = "PAYMENT-RESPONSE"
# A seller lists its price in some currencies on some networks.
_MOST_OFFERS: Final = 50
_MOST_BODY_BYTES: Final = 64 * 1024


def read_required(headers: Headers, body: bytes) -> Offered:
    """What a 402 offers by this protocol: in its header, or in its body where it has none."""
    try:
        text = only(headers, REQUIRED)
        if text is not None:
            return _offered(read_base64(text))
        if len(body) > _MOST_BODY_BYTES or b'"x402Version"' not in body:
            return Offered()
        return _offered(read_json(body))
    except Malformed:
        return Offered(unread=(Unusable.MALFORMED,))


def signature_header(offer: Offer, transaction: bytes) -> tuple[str, str]:
    """Name and value of the header that pays this offer."""
    payload = {"transaction": b64encode(transaction).decode("ascii")}
    return SIGNATURE, write_base64({"x402Version": VERSION, **offer.echo, "payload": payload})


def read_response(headers: Headers) -> Claim | None:
    """What the seller says became of the payment; None where it says nothing that can be read."""
    try:
        text = only(headers, RESPONSE)
        said: Object = {} if text is None else read_base64(text)
    except Malformed:
        return None
    success = said.get("success")
    if not isinstance(success, bool):
        return None
    return read_claim(success, said.get("transaction"), said.get("errorReason"))


def _offered(required: Object) -> Offered:
    if required.get("x402Version") != VERSION:
        return Offered(unread=(Unusable.VERSION,))
    accepts = required.get("accepts")
    if not isinstance(accepts, list) or len(cast("list[Any]", accepts)) > _MOST_OFFERS:
        raise Malformed("accepts is a short list")
    # Sellers compare what comes back with what they sent, so it is repeated as it came.
    around = {name: required[name] for name in ("resource", "extensions") if name in required}
    offers: list[Offer] = []
    unread: list[Unusable] = []
    for accepted in cast("list[Any]", accepts):
        try:
            offers.append(_offer(object_of(accepted), around))
        except Malformed:
            unread.append(Unusable.MALFORMED)
    return Offered(offers, unread)


def _offer(accepted: Object, around: Object) -> Offer:
    extra = object_of(accepted.get("extra") or {})
    echo = {**around, "accepted": accepted}
    # What cannot be repeated cannot be paid, which is better known before than after signing.
    write_base64(echo)
    return Offer(
        protocol="x402",
        scheme=text_of(accepted, "scheme"),
        network=text_of(accepted, "network"),
        asset=text_of(accepted, "asset"),
        amount=text_of(accepted, "amount"),
        pay_to=text_of(accepted, "payTo"),
        fee_payer=text_or_none(extra, "feePayer"),
        memo=text_or_none(extra, "memo"),
        echo=echo,
        decimals=integer_or(extra, "decimals", USDC_DECIMALS),
        token_program=text_or_none(extra, "tokenProgram") or USDC_PROGRAM,
    )
