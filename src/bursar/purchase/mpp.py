"""MPP, the `Payment` scheme of HTTP authentication: a seller's `WWW-Authenticate`, our
`Authorization`, its `Payment-Receipt`. Only one-time charges on Solana are read."""

import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, cast

from bursar.errors import present
from bursar.purchase.claim import Claim, read_claim
from bursar.purchase.offer import USDC_PROGRAM, Offer, Offered, Unusable
from bursar.purchase.wire import (
    MOST_HEADER_CHARACTERS,
    Headers,
    Malformed,
    Object,
    all_of,
    integer_or,
    object_of,
    only,
    read_base64url,
    text_of,
    text_or_none,
    write_base64url,
)

CHALLENGE: Final = "WWW-Authenticate"
CREDENTIAL: Final = "Authorization"
RECEIPT: Final = "Payment-Receipt"
_SCHEME: Final = "payment"
_MOST_CHALLENGES: Final = 20
# What the answer repeats of a challenge, so that the seller knows it for its own.
_ECHOED: Final = ("id", "realm", "method", "intent", "request", "expires", "digest", "opaque")
_REQUIRED: Final = _ECHOED[:5]
# The network that is meant where none is named.
_USUAL_NETWORK: Final = "mainnet"
_NO_DECIMALS: Final = -1

_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(
    rf"({_WORD})[ \t]*=[ \t]*(?:({_WORD})|\"((?:[^\"\\]|\\.)*)\")[ \t]*(?=,|$)", re.ASCII
)
_BEGIN: Final = re.compile(rf"({_WORD})(?:[ \t]+|$)", re.ASCII)
# What other schemes may have instead of parameters.
_TOKEN68: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*[ \t]*(?=,|$)", re.ASCII)
_GAP: Final = re.compile(r"[ \t,]*", re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)")
_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def read_challenges(headers: Headers) -> Offered:
    """What a 402 offers by this protocol. Challenges of other schemes are passed over."""
    offers: list[Offer] = []
    unread: list[Unusable] = []
    try:
        values = all_of(headers, CHALLENGE)
        if sum(map(len, values)) > MOST_HEADER_CHARACTERS:
            raise Malformed("it is too long")
        challenges = [found for value in values for found in _challenges(value)]
        if len(challenges) > _MOST_CHALLENGES:
            raise Malformed("there are too many")
    except Malformed:
        return Offered(unread=(Unusable.MALFORMED,))
    for challenge in challenges:
        try:
            offers.append(_offer(challenge))
        except Malformed:
            unread.append(Unusable.MALFORMED)
    return Offered(offers, unread)


def credential_header(offer: Offer, transaction: bytes) -> tuple[str, str]:
    """Name and value of the header that pays this offer."""
    payload = {"type": "transaction", "transaction": b64encode(transaction).decode("ascii")}
    credential = write_base64url({"challenge": offer.echo, "payload": payload})
    return CREDENTIAL, f"Payment {credential}"


def read_receipt(headers: Headers) -> Claim | None:
    """What the seller says became of the payment; None where it says nothing that can be read."""
    try:
        text = only(headers, RECEIPT)
        receipt: Object = {} if text is None else read_base64url(text)
    except Malformed:
        return None
    status = receipt.get("status")
    if not isinstance(status, str):
        return None
    succeeded = status == "success"
    return read_claim(succeeded, receipt.get("reference"), None if succeeded else status)


def _offer(challenge: dict[str, str]) -> Offer:
    if any(name not in challenge for name in _REQUIRED):
        raise Malformed("a challenge has all of its parameters")
    request = read_base64url(challenge["request"])
    details = object_of(request.get("methodDetails") or {})
    splits = details.get("splits")
    if splits is not None and not isinstance(splits, list):
        raise Malformed("splits is a list")
    method, intent = challenge["method"], challenge["intent"]
    return Offer(
        protocol="mpp",
        # A method that is not Solana's is another scheme altogether.
        scheme=intent if method == "solana" else f"{method} {intent}",
        network=text_or_none(details, "network") or _USUAL_NETWORK,
        asset=text_of(request, "currency"),
        amount=text_of(request, "amount"),
        pay_to=text_of(request, "recipient"),
        fee_payer=text_of(details, "feePayerKey") if details.get("feePayer") is True else None,
        memo=text_or_none(request, "externalId"),
        echo={name: challenge[name] for name in _ECHOED if name in challenge},
        decimals=integer_or(details, "decimals", _NO_DECIMALS),
        token_program=text_or_none(details, "tokenProgram") or USDC_PROGRAM,
        splits=bool(cast("list[Any] | None", splits)),
        expires=_moment(challenge["expires"]) if challenge.get("expires") else None,
    )


def _moment(text: str) -> datetime:
    """Strictly: what one reader takes for tomorrow, another must not take for an hour ago."""
    if _MOMENT.fullmatch(text) is None:
        raise Malformed("expires is a moment")
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError:
        raise Malformed("expires is a moment") from None


def _challenges(value: str) -> Iterator[dict[str, str]]:
    """The parameters of each `Payment` challenge in one header, by the grammar of RFC 9110, where
    the same comma is between challenges and between their parameters. Raises Malformed."""
    scheme, parameters = "", dict[str, str]()
    at = 0
    while (at := present(_GAP.match(value, at), "a gap may be empty").end()) < len(value):
        if (parameter := _PARAMETER.match(value, at)) is not None and scheme:
            name, bare, quoted = parameter.groups()
            if name.lower() in parameters:
                raise Malformed(f"{name} is there twice")
            parameters[name.lower()] = bare if quoted is None else _ESCAPED.sub(r"\1", quoted)
            at = parameter.end()
        elif (begin := _BEGIN.match(value, at)) is not None:
            if scheme == _SCHEME:
                yield parameters
            scheme, parameters = begin[1].lower(), {}
            at = begin.end()
            if _PARAMETER.match(value, at) is None and (other := _TOKEN68.match(value, at)):
                at = other.end()
        else:
            raise Malformed("it is no list of challenges")
    if scheme == _SCHEME:
        yield parameters
