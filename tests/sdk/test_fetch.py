"""`fetch`, on both clients: what was bought, as httpx would hand it back, and clear words where
nothing was."""

import asyncio
import gzip
import pickle
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Literal, cast

import httpx
import pytest

import bursar
from bursar import AsyncBursar, Bought, Bursar
from bursar.client.codec import read
from bursar.client.model import Purchase
from tests.sellers.served import selling, shop_of
from tests.support import Service, new_account

Colour = Literal["sync", "async"]
BOTH: list[Colour] = ["sync", "async"]


@asynccontextmanager
async def _buyer(served: Service, **policy: Any) -> AsyncGenerator[tuple[str, AsyncBursar]]:
    """The key of an agent with 1 USDC, and a client of its admin."""
    account = new_account()
    wanted: dict[str, Any] = {"daily_cap": "1", "allowlist": ["*"]} | policy
    async with AsyncBursar(await served.key(account=account), served.url) as admin:
        agent = await admin.agents.create("buyer", **wanted)
        await admin.wallets.fund(agent.id, amount="1")
        yield await served.key(account=account, scope="agent", agent_id=agent.id), admin


async def _fetch(colour: Colour, served: Service, key: str, url: str, **options: Any) -> Bought:
    if colour == "sync":
        with Bursar(key, served.url) as client:
            return await asyncio.to_thread(client.fetch, url, **options)
    async with AsyncBursar(key, served.url) as client:
        return await client.fetch(url, **options)


@pytest.mark.parametrize("colour", BOTH)
async def test_it_buys_and_feels_like_httpx(served: Service, colour: Colour):
    """Goal: one line buys; what comes back is a response, and says what it cost."""
    async with _buyer(served) as (key, admin), shop_of(served) as shop:
        bought = await _fetch(colour, served, key, shop.url, max_amount="0.01", memo="weather")
        (listed,) = [row async for row in admin.purchases.list()]
    assert isinstance(bought, httpx.Response)
    assert bought.raise_for_status().json()["sky"] == "clear"
    assert (bought.status_code, bought.headers["content-type"].partition(";")[0]) == (
        200,
        "application/json",
    )
    assert str(bought.url) == shop.url
    assert not bought.truncated
    purchase = bought.purchase
    assert purchase.status in ("presented", "paid")
    assert (purchase.amount, purchase.protocol, purchase.memo) == (
        Decimal("0.001"),
        "x402",
        "weather",
    )
    assert repr(bought) == "<Bought [200 OK] 0.001000 USDC>"
    kept = pickle.loads(pickle.dumps(bought))
    assert (kept.content, kept.purchase) == (bought.content, purchase)
    assert (listed.id, listed.header, listed.response) == (purchase.id, None, None)


@pytest.mark.parametrize("colour", BOTH)
async def test_a_seller_that_stumbles_is_shown_the_same_payment_again(
    served: Service, colour: Colour
):
    """Goal: the goods arrive by themselves, and were paid for once."""
    async with _buyer(served) as (key, _), selling(served, "503 twice") as seller:
        bought = await _fetch(colour, served, key, seller.url)
        assert bought.json() == {"weather": "fair"}
        assert (len(seller.presented), len(set(seller.presented))) == (3, 1)
        assert len(set(seller.settled)) == 1


@pytest.mark.parametrize("colour", BOTH)
async def test_the_same_key_is_the_same_purchase(served: Service, colour: Colour):
    async with _buyer(served) as (key, _), selling(served, "honest") as seller:
        first = await _fetch(colour, served, key, seller.url, idempotency_key="weather-1")
        again = await _fetch(colour, served, key, seller.url, idempotency_key="weather-1")
        assert (again.purchase.id, again.content) == (first.purchase.id, first.content)
        assert len(seller.presented) == 1


@pytest.mark.parametrize("colour", BOTH)
async def test_where_nothing_was_bought_it_says_why(served: Service, colour: Colour):
    """Goal: no answer of the seller is made up, and each exception has the purchase."""
    async with (
        _buyer(served, approval_threshold="0") as (key, admin),
        selling(served, "honest") as seller,
    ):
        with pytest.raises(bursar.PurchaseRefused, match="max_amount_exceeded") as refused:
            await _fetch(colour, served, key, seller.url, max_amount="0.000999")
        assert refused.value.reject_code == "max_amount_exceeded"
        decision = refused.value.purchase.decision
        assert decision is not None
        assert decision.max_amount_now == Decimal("0.000999")

        with pytest.raises(bursar.PurchasePending, match=r"0\.001000 USDC") as pending:
            await _fetch(colour, served, key, seller.url)
        waiting = pending.value.purchase
        assert waiting.transaction_id is not None
        assert pickle.loads(pickle.dumps(pending.value)).purchase == waiting
        await admin.transactions.approve(waiting.transaction_id)
        went_on = await admin.purchases.continue_(waiting.id)
        assert Bought(went_on).json() == {"weather": "fair"}

        with pytest.raises(bursar.PurchaseFailed, match="seller_unreachable") as failed:
            await _fetch(colour, served, key, "http://127.0.0.1:1/closed")
        assert failed.value.failure_code == "seller_unreachable"


async def test_goods_that_never_come_are_no_success(served: Service):
    """Goal: after its retries an answer that was lost is an exception, and a 503 is a response."""
    async with _buyer(served) as (key, _), selling(served, "reset") as seller:
        with pytest.raises(bursar.PurchaseUnanswered, match="pays nothing more") as lost:
            await _fetch("async", served, key, seller.url)
        assert lost.value.purchase.status in ("presented", "paid")
        assert len(set(seller.presented)) == 1
    async with _buyer(served) as (key, _), selling(served, "503 always") as seller:
        stumbled = await _fetch("async", served, key, seller.url)
        with pytest.raises(httpx.HTTPStatusError, match="503"):
            stumbled.raise_for_status()
        assert len(set(seller.presented)) == 1


class _Scripted:
    """Purchases whose seller answered so, and whose retry the service does not take."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.keys: list[str] = []
        self.purchases = self.transport = self

    def pause(self, seconds: float) -> None:
        pass

    def create(self, url: str, *, idempotency_key: str, **order: Any) -> Purchase:
        self.keys.append(idempotency_key)
        made = _answered(status=self.status)
        object.__setattr__(made, "status", "presented")
        return made

    def retry(self, purchase_id: str, **options: Any) -> Purchase:
        raise bursar.RateLimitExceeded("No.", status=429, idempotency_key="of the retry")


@pytest.mark.parametrize("status", [402, 408, 425, 429, 500, 503])
def test_what_fails_after_the_purchase_carries_the_key_of_the_purchase(status: int):
    """Goal: a seller that stumbles is asked again; if that fails, the key of the exception finds
    what was paid, and pays nothing more."""
    scripted = _Scripted(status)
    client = Bursar("bur_test_00000000000000000000000000000000000000", "http://127.0.0.1:1")
    client.purchases = cast("Any", scripted)
    with pytest.raises(bursar.RateLimitExceeded) as failed:
        client.fetch("https://api.example.com/a")
    assert [failed.value.idempotency_key] == scripted.keys


# What is sent and what comes back -----------------------------------------------------------------


UNUSED = (
    "rejectCode",
    "failureCode",
    "problem",
    "decision",
    "protocol",
    "amount",
    "payTo",
    "transactionId",
    "transaction",
    "header",
    "memo",
)


def _answered(**response: Any) -> Purchase:
    said = {"status": 200, "headers": {}, "body": "", "encoding": "text", "truncated": False}
    return read(
        Purchase,
        {
            "id": "pur_1",
            "agentId": "ag_1",
            "url": "https://api.example.com/a",
            "method": "GET",
            "host": "api.example.com",
            "status": "free",
            **dict.fromkeys(UNUSED),
            "response": said | response,
            "metadata": {},
            "createdBy": "key_1",
            "createdAt": "2026-11-15T09:30:00.123Z",
            "updatedAt": "2026-11-15T09:30:00.123Z",
        },
    )


GZIP = gzip.compress(b"goods")


def _packed(how: str, content: bytes) -> dict[str, Any]:
    body = b64encode(content).decode()
    return {"headers": {"Content-Encoding": how}, "body": body, "encoding": "base64"}


@pytest.mark.parametrize(
    ("response", "holds"),
    [
        ({"body": "naïve"}, lambda b: b.text == "naïve" and b.content == "naïve".encode()),
        ({"body": "/w==", "encoding": "base64"}, lambda b: b.content == b"\xff"),
        (
            # gzip of b"goods".
            {
                "headers": {"Content-Encoding": "gzip"},
                "body": "H4sIAAAAAAACA0vPz08pBgAtuWMFBQAAAA==",
                "encoding": "base64",
            },
            lambda b: b.content == b"goods" and "content-encoding" not in b.headers,
        ),
        (_packed("deflate", zlib.compress(b"goods")), lambda b: b.content == b"goods"),
        (_packed("gzip", GZIP + b"more"), lambda b: b.content == GZIP + b"more"),
        (_packed("gzip", GZIP[:-1]), lambda b: b.content == GZIP[:-1]),
        (_packed("gzip, gzip", GZIP), lambda b: b.content == GZIP),
        (_packed("br", b"?\xff"), lambda b: b.content == b"?\xff"),
        (
            {
                "headers": {"Content-Encoding": "gzip"},
                "body": "H4sI",
                "encoding": "base64",
                "truncated": True,
            },
            lambda b: b.truncated and b.content == b"\x1f\x8b\x08",
        ),
        ({"headers": {"Content-Encoding": "gzip"}, "body": "x"}, lambda b: b.text == "x"),
        ({"status": 404}, lambda b: b.is_client_error),
        (
            # "naïve" in UTF-8, as the service shows it.
            {"headers": {"Content-Disposition": "na\u00c3\u00afve"}},
            lambda b: b.headers["content-disposition"] == "na\u00efve",
        ),
        (
            # b"not gzip" and a byte that is no text.
            {
                "headers": {"Content-Encoding": "gzip"},
                "body": "bm90IGd6aXD/",
                "encoding": "base64",
            },
            lambda b: b.content == b"not gzip\xff" and "content-encoding" not in b.headers,
        ),
    ],
)
def test_what_came_back(response: dict[str, Any], holds: Callable[[Bought], bool]):
    assert holds(Bought(_answered(**response)))
    assert "free" in repr(Bought(_answered(**response)))


def test_a_small_answer_unpacks_to_no_huge_one():
    """Goal: what a seller packed takes no more memory than a bound; more is handed on as it came,
    with nothing of it lost."""
    bomb = gzip.compress(bytes(2**30), compresslevel=9)
    assert len(bomb) < 1_100_000, "as the service takes from a seller, about"
    purchase = _answered(**_packed("gzip", bomb))
    tracemalloc.start()
    bought = Bought(purchase)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bought.content == bomb
    assert most < 100_000_000


@pytest.mark.parametrize(
    ("status", "helps", "does_not"),
    [
        ("presented", "purchases.retry", "purchases.get"),
        ("paid", "purchases.retry", "purchases.get"),
        ("open", "purchases.get", "purchases.retry"),
        ("free", "fetch it again", "purchases.retry"),
    ],
)
def test_where_no_answer_is_there_it_says_what_helps(status: str, helps: str, does_not: str):
    """Goal: what the service would refuse is not advised: it retries what was presented only."""
    purchase = _answered()
    object.__setattr__(purchase, "status", status)
    object.__setattr__(purchase, "response", None)
    with pytest.raises(bursar.PurchaseUnanswered, match=helps) as unanswered:
        Bought(purchase)
    assert does_not not in str(unanswered.value)


def test_what_cannot_be_sent_is_refused_before_anything_is():
    client = Bursar("bur_test_00000000000000000000000000000000000000", "http://127.0.0.1:1")
    with pytest.raises(TypeError, match="not both"):
        client.fetch("https://api.example.com", content="a", json={})
    with pytest.raises(UnicodeDecodeError):
        client.fetch("https://api.example.com", content=b"\xff")
    with pytest.raises(TypeError, match="Decimal"):
        client.fetch("https://api.example.com", max_amount=cast("Decimal", 0.1))
