"""`client.fetch(url)`: buys and hands back what was bought, as httpx hands back what was fetched.

The steps are one generator without a colour of its own: it yields what to do, and the blocking or
the asynchronous client does it.
"""

import json
import zlib
from base64 import b64decode
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

import httpx

from bursar.client.codec import Amount
from bursar.client.errors import (
    InvalidState,
    PurchaseError,
    PurchaseFailed,
    PurchasePending,
    PurchaseRefused,
    PurchaseUnanswered,
    RequestFailed,
)
from bursar.client.model import Purchase

Step = Callable[[], Any]
Steps = Generator[Step, Any, "Bought"]

# How long to wait before the seller is sent the same payment again.
_PAUSES_SECONDS: Final = (0.5, 1.0, 2.0, 4.0)
# Payment required, timeout, too early, too many requests: answers to ask again after. Whoever asks
# again by another `fetch` pays again.
_STUMBLES: Final = frozenset((402, 408, 425, 429))
_SELLERS_FAULT: Final = 500
# What sellers may pack answers with. The service asks them not to; a caller's header may.
_UNPACKED: Final = ("gzip", "x-gzip", "deflate")
# To zlib: read which of the two it is.
_EITHER_FORMAT: Final = zlib.MAX_WBITS | 32
# A megabyte, which is what the service takes from a seller, could unpack to a thousand.
_MOST_UNPACKED_BYTES: Final = 32 * 1024 * 1024


class Bought(httpx.Response):
    """The seller's answer: an httpx response, with the `purchase` that it belongs to.

    Of a purchase with a response only; others raise PurchaseUnanswered.
    """

    def __init__(self, purchase: Purchase) -> None:
        answer = purchase.response
        if answer is None:
            raise PurchaseUnanswered(purchase)
        text = answer.encoding == "text"
        content = answer.body.encode() if text else b64decode(answer.body)
        # Sellers write any bytes into a header; the service reads each as the letter of its number.
        headers = httpx.Headers(dict(answer.headers), encoding="latin-1")
        packed = headers.pop("content-encoding", None)
        # Text is not packed, whatever the seller says; what was cut cannot be unpacked.
        if packed is not None and not text and not answer.truncated:
            content = _unpacked(packed, content)
        super().__init__(
            answer.status,
            headers=headers,
            content=content,
            request=httpx.Request(purchase.method, purchase.url),
            default_encoding="utf-8",
        )
        self.purchase = purchase

    @property
    def truncated(self) -> bool:
        """Whether the service cut the content, which was too long, too slow, or broke off."""
        return self.purchase.response is not None and self.purchase.response.truncated

    def __repr__(self) -> str:
        paid = "free" if self.purchase.amount is None else f"{self.purchase.amount} USDC"
        return f"<Bought [{self.status_code} {self.reason_phrase}] {paid}>"


def _unpacked(how: str, content: bytes) -> bytes:
    """What the seller packed. If it is packed in another way than it says, or would be too much, it
    is paid for all the same, and is handed on as it came. Not by httpx, which knows no bound."""
    if how.strip().lower() not in _UNPACKED:
        return content
    unpacking = zlib.decompressobj(_EITHER_FORMAT)
    try:
        unpacked = unpacking.decompress(content, _MOST_UNPACKED_BYTES)
    except zlib.error:
        return content
    return unpacked if unpacking.eof and not unpacking.unused_data else content


def fetching(
    client: Any,
    url: str,
    *,
    method: str,
    headers: Mapping[str, str] | None,
    content: str | bytes | None,
    json_: Any,
    agent_id: str | None,
    max_amount: Amount | None,
    memo: str | None,
    metadata: Mapping[str, str] | None,
    wait: int | None,
    idempotency_key: str | None,
) -> Steps:
    """The steps of one purchase. `client` is a Bursar or an AsyncBursar; what it returns is sent
    back in, what it raises is thrown in."""
    purchases, pause = client.purchases, client.purchases.transport.pause
    headers, body = _sent(headers, content, json_)
    key = uuid4().hex if idempotency_key is None else idempotency_key
    purchase: Purchase = yield lambda: purchases.create(
        url,
        method=method,
        headers=headers,
        body=body,
        max_amount=max_amount,
        agent_id=agent_id,
        memo=memo,
        metadata=metadata,
        wait=wait,
        idempotency_key=key,
    )
    for seconds in _PAUSES_SECONDS:
        problem = problem_of(purchase)
        if problem is not None:
            raise problem
        if _delivered(purchase):
            break
        yield partial(pause, seconds)
        try:
            purchase = yield from _look(purchases, purchase, wait)
        except RequestFailed as failure:
            # The key of that one request finds no purchase. By this one it is found, and goes on.
            failure.idempotency_key = key
            raise
    problem = problem_of(purchase)
    if problem is not None:
        raise problem
    return Bought(purchase)


def _look(purchases: Any, purchase: Purchase, wait: int | None) -> Generator[Step, Any, Purchase]:
    if purchase.status == "open":
        # Another request of the same key is with the seller.
        return (yield lambda: purchases.get(purchase.id))
    try:
        return (yield lambda: purchases.retry(purchase.id, wait=wait))
    except InvalidState:
        # It ended meanwhile, or somebody else retries it just now.
        return (yield lambda: purchases.get(purchase.id))


def problem_of(purchase: Purchase) -> PurchaseError | None:
    """What ends the purchase without anything bought, if it has."""
    if purchase.status == "rejected":
        return PurchaseRefused(purchase)
    if purchase.status in ("failed", "unpaid"):
        return PurchaseFailed(purchase)
    return PurchasePending(purchase) if purchase.status == "pending" else None


def _delivered(purchase: Purchase) -> bool:
    """Whether the seller's answer stands. One that stumbled, or has not seen its money yet, may
    hand over the goods when it is shown the payment again."""
    answer = purchase.response
    if answer is None:
        return False
    stumbled = answer.status in _STUMBLES or answer.status >= _SELLERS_FAULT
    return purchase.status == "free" or not stumbled


def _sent(
    headers: Mapping[str, str] | None, content: str | bytes | None, json_: Any
) -> tuple[Mapping[str, str] | None, str | None]:
    """Headers and body as the API takes them."""
    if json_ is not None:
        if content is not None:
            raise TypeError("Give content or json, not both.")
        given = headers or {}
        has_type = any(name.lower() == "content-type" for name in given)
        kind: dict[str, str] = {} if has_type else {"Content-Type": "application/json"}
        return {**kind, **given}, json.dumps(json_, ensure_ascii=False)
    if isinstance(content, bytes):
        # The API takes bodies as text. Not UTF-8: UnicodeDecodeError, before anything is sent.
        content = content.decode()
    return headers, content
