"""Sellers on loopback that do what a stranger may do: each spoils its own answer and nothing else.

Where a test says `raw`, the seller is a socket that sends exactly these bytes.
"""

import asyncio
import gzip
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bursar.config import Config, Mode, load_config
from bursar.errors import InvariantBroken
from bursar.outbound.gate import Lookup
from bursar.purchase.order import Order
from bursar.purchase.seller import (
    MOST_HEADER_BYTES,
    MOST_HEADERS,
    MOST_REDIRECTS,
    Seller,
    SellerAnswer,
    SellerUnreachable,
)
from tests.certificate import certificate_of
from tests.hostile_targets import HOSTILE_ADDRESSES, HOSTILE_URLS, PUBLIC, opened_sockets
from tests.processes import until

INSIDE = "127.0.0.0/8,localhost,inside.test"
CONFIG = load_config({"BURSAR_PURCHASES_ALLOW": INSIDE, "BURSAR_PURCHASES_TIMEOUT_SECONDS": "5"})
HASTY = replace(CONFIG, purchases_timeout_seconds=1)
PAYMENT = ("PAYMENT-SIGNATURE", "c2lnbmVk")
# Accounts that ask.
OURS, OTHER = 1, 2
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _order(url: str, method: str = "GET", body: bytes = b"", **headers: str) -> Order:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Order(url, method, named, body)


class Buying:
    """A purchase of one request: its turn, and what it asks then."""

    def __init__(self, seller: Seller) -> None:
        self._seller = seller

    async def ask(
        self, mode: Mode, realm_id: int, order: Order, payment: tuple[str, str] | None = None
    ) -> SellerAnswer:
        async with self._seller.turn(mode, realm_id, order) as visit:
            return await visit.ask(order, payment)


@asynccontextmanager
async def _asking(config: Config = CONFIG, lookup: Lookup | None = None) -> AsyncGenerator[Buying]:
    seller = Seller(config, lookup)
    try:
        yield Buying(seller)
    finally:
        await seller.close()


@asynccontextmanager
async def _raw(behave: Behaviour) -> AsyncGenerator[str]:
    """A seller that reads the head of a request and then does as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await behave(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"


async def _answer(seller: Buying, said: bytes) -> SellerAnswer:
    """What is made of these bytes, after which the seller hangs up."""

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    async with _raw(say) as url:
        return await seller.ask("test", OURS, _order(url))


class Shop:
    """A seller that shows what it was sent, and redirects as its path says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""

    async def serve(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append((request.method, request.path_qs, headers, await request.read()))
        if "to" in request.query:
            status = int(request.query.get("as", "307"))
            return web.Response(status=status, headers={"Location": request.query["to"]})
        if request.path == "/loop":
            number = int(request.query.get("n", "0")) + 1
            return web.Response(status=302, headers={"Location": f"?n={number}"})
        return web.Response(status=402, text="pay", headers={"Set-Cookie": "a=b"})

    @property
    def methods(self) -> list[str]:
        return [method for method, *_ in self.asked]


@asynccontextmanager
async def _serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    context: ssl.SSLContext | None = None,
) -> AsyncGenerator[int]:
    runner = web.AppRunner(app := web.Application(client_max_size=2**20), shutdown_timeout=0)
    app.router.add_route("*", "/{path:.*}", handler)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.fixture
async def shop() -> AsyncGenerator[Shop]:
    shop = Shop()
    async with _serving(shop.serve) as port:
        shop.url = f"http://127.0.0.1:{port}"
        yield shop


@pytest.fixture(scope="module")
async def seller() -> AsyncGenerator[Buying]:
    async with _asking() as made:
        yield made


# What is sent ------------------------------------------------------------------------------------


async def test_what_was_ordered_is_sent_and_nothing_else(shop: Shop, seller: Buying):
    order = _order(f"{shop.url}/a/%2e%2E//b?q=1&q=|", "POST", b'{"a": 1}', X_One="1", Cookie="c=d")
    answer = await seller.ask("test", OURS, order)
    assert (answer.status, answer.body, answer.truncated) == (402, b"pay", False)
    assert answer.order == order
    ((method, path, headers, body),) = shop.asked
    assert (method, path, body) == ("POST", "/a/%2e%2E//b?q=1&q=|", b'{"a": 1}')
    assert headers.pop("user-agent").startswith("Bursar/")
    assert headers == {
        "host": shop.url.removeprefix("http://"),
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-length": "8",
        "cookie": "c=d",
        "x-one": "1",
    }


async def test_headers_of_the_caller_win(shop: Shop, seller: Buying):
    await seller.ask(
        "test", OURS, _order(shop.url, User_Agent="me", Accept="a/b", Content_Type="c/d")
    )
    headers = shop.asked[0][2]
    assert (headers["user-agent"], headers["accept"]) == ("me", "a/b")
    assert headers["content-type"] == "c/d"


async def test_a_seller_is_not_remembered(shop: Shop, seller: Buying):
    """Goal: no cookie of one answer is in the next request."""
    for _ in range(2):
        answer = await seller.ask("test", OURS, _order(shop.url))
        assert ("Set-Cookie", "a=b") in answer.headers
    assert all("cookie" not in headers for _, _, headers, _ in shop.asked)


async def test_the_environment_sends_it_nowhere_else(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Goal: neither a proxy nor a password of the environment comes into it."""
    async with _asking() as seller:
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        assert (await seller.ask("test", OURS, _order(shop.url))).status == 402
    assert "authorization" not in shop.asked[0][2]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_methods(shop: Shop, seller: Buying, method: str):
    answer = await seller.ask("test", OURS, _order(shop.url, method), PAYMENT)
    assert (answer.status, answer.body) == (402, b"" if method == "HEAD" else b"pay")
    assert shop.methods == [method]
    assert shop.asked[0][2]["payment-signature"] == PAYMENT[1]


async def test_only_the_service_pays(shop: Shop, seller: Buying):
    order = _order(shop.url, authorization="Bearer x")
    with pytest.raises(InvariantBroken):
        await seller.ask("test", OURS, order, ("Authorization", "Payment x"))
    assert shop.asked == []


# Redirects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
async def test_a_redirect_within_the_origin_is_followed_as_browsers_do(
    shop: Shop, seller: Buying, method: str, status: int
):
    changes = (status == 303 and method in ("POST", "PUT")) or (
        status in (301, 302) and method == "POST"
    )
    order = _order(
        f"{shop.url}/a?as={status}&to=/b%23c", method, b"x", Content_Type="c/d", X_One="1"
    )
    answer = await seller.ask("test", OURS, order)
    assert answer.status == 402
    assert answer.order.url == f"{shop.url}/b"
    assert answer.order.method == ("GET" if changes else method)
    assert shop.methods == [method, answer.order.method]
    _, path, headers, body = shop.asked[1]
    assert (path, headers["x-one"]) == ("/b", "1")
    assert (body, "content-type" in headers) == ((b"", False) if changes else (b"x", True))
    # A payment goes where the price was asked.
    assert (await seller.ask("test", OURS, answer.order, PAYMENT)).order == answer.order
    assert shop.asked[2][:2] == (answer.order.method, "/b")


@pytest.mark.parametrize(
    "place",
    ["http://localhost:{port}/b", "http://127.0.0.1/b", "https://127.0.0.1:{port}/b",
     "//inside.test:{port}/b", "http://127.0.0.1:{port}@evil.example/", "/%5Cevil.example/b%5C",
     "http://127.0.0.2:{port}/b", "http://[::1]:{port}/", "ftp://127.0.0.1:{port}/", "data:,x",
     "http://127.0.0.1:{port}0000/", "http://[::1", "/a b", "/ä", "http:\\\\evil.example"],
)  # fmt: skip
async def test_a_redirect_out_of_the_origin_is_an_answer(shop: Shop, seller: Buying, place: str):
    port = shop.url.rpartition(":")[2]
    to = place.format(port=port).replace("ä", "%C3%A4")
    order = _order(f"{shop.url}/a?to={to}".replace(" ", "%20").replace("\\", "%5C"))
    answer = await seller.ask("test", OURS, order)
    assert (answer.status, answer.order) == (307, order)
    assert len(shop.asked) == 1


async def test_redirects_end(shop: Shop, seller: Buying):
    answer = await seller.ask("test", OURS, _order(f"{shop.url}/loop"))
    assert answer.status == 302
    assert len(shop.asked) == 1 + MOST_REDIRECTS


async def test_a_payment_is_not_carried_elsewhere(shop: Shop, seller: Buying):
    """Goal: what pays goes to the URL that was decided on and nowhere else."""
    for place in ("/b", f"{shop.url}/b"):
        answer = await seller.ask("test", OURS, _order(f"{shop.url}/a?to={place}"), PAYMENT)
        assert answer.status == 307
    assert len(shop.asked) == 2


async def test_two_places_are_none(seller: Buying):
    said = b"HTTP/1.1 302 Found\r\nLocation: /a\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
    assert (await _answer(seller, said)).status == 302


# Answers that spoil themselves -------------------------------------------------------------------


def _head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"", b""))


@pytest.mark.parametrize(
    "said",
    [
        b"", b"HTTP/1.1 200", b"\x00" * 100, b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 200 OK\r\nX",
        b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"HTTP/1.1 -1 OK\r\n\r\n",
        _head(status=b"99999 OK"), _head(status=b"099 No"), _head(status=b"999 No"),
        _head(b"Upgrade: x", b"Connection: upgrade", status=b"101 Switching Protocols"),
        _head(status=b"100 Continue"), _head(status=b"103 Early Hints") * 5_000,
        _head(b"Content-Length: -5"), _head(b"Content-Length: 1", b"Content-Length: 2"),
        _head(b"Content-Length: 5", b"Transfer-Encoding: chunked"), _head(b"no colon"),
        _head(b": empty"), _head(b"X: a\x00b"), _head(b"X: " + b"x" * 2**20),
        _head(b"X" * MOST_HEADER_BYTES + b": a"), _head(*[b"X: a"] * (MOST_HEADERS + 1)),
        _head(*[b"X: " + b"x" * (MOST_HEADER_BYTES - 9)] * 5), _head(status=b"200 " + b"x" * 9_000),
        _head(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\nzzz\r\n",
        _head(b"Transfer-Encoding: chunked") + b"f" * 17 + b"\r\n",
    ],
    ids=lambda said: repr(said[:40]),
)  # fmt: skip
async def test_what_is_not_an_answer_is_none(seller: Buying, said: bytes):
    with pytest.raises(SellerUnreachable) as problem:
        await _answer(seller, said)
    assert str(problem.value).startswith("The seller gave no answer: ")
    assert "127.0.0.1" not in str(problem.value)


async def test_interim_answers_are_passed_over(seller: Buying):
    said = _head(b"Link: x", status=b"103 Early Hints") + _head(b"Content-Length: 2") + b"ok"
    assert (await _answer(seller, said)).body == b"ok"


async def test_odd_headers_are_harmless(seller: Buying):
    """Goal: whatever is shown later can be written as JSON and stored."""
    said = _head(b"X-A: s\xfc\xdf\x01\x7f", b"x-a: again", b"Content-Length: 0")
    answer = await _answer(seller, said)
    assert answer.headers[:2] == (("X-A", "süß  "), ("x-a", "again"))


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (_head(b"Content-Length: 10") + b"abc", b"abc"),
        (_head(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n", b"abc"),
    ],
)
async def test_a_body_that_breaks_off_leaves_the_answer(seller: Buying, said: bytes, body: bytes):
    answer = await _answer(seller, said)
    assert (answer.status, answer.body, answer.truncated) == (200, body, True)


async def test_a_body_is_cut_at_the_limit():
    limited = replace(CONFIG, purchases_response_bytes=1_024)
    async with _asking(limited) as seller:
        for size, truncated in ((1_023, False), (1_024, False), (1_025, True), (500_000, True)):
            for how in (b"Content-Length: %d" % size, b"X: until the end"):
                answer = await _answer(seller, _head(how) + b"x" * size)
                assert (len(answer.body), answer.truncated) == (min(size, 1_024), truncated)


async def test_an_endless_body_is_cut_by_size(seller: Buying):
    async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_head())
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    began = time.monotonic()
    async with _raw(pour) as url:
        answer = await seller.ask("test", OURS, _order(url))
    assert (len(answer.body), answer.truncated) == (1024**2, True)
    assert time.monotonic() - began < 4


async def test_a_slow_body_is_cut_by_time():
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(b"PAYMENT-RESPONSE: x"))
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    began = time.monotonic()
    async with _raw(drip) as url, _asking(HASTY) as seller:
        answer = await seller.ask("test", OURS, _order(url), PAYMENT)
    assert time.monotonic() - began < 3
    assert ("PAYMENT-RESPONSE", "x") in answer.headers
    assert answer.truncated
    assert len(answer.body) > 1


async def test_nothing_unpacks(seller: Buying):
    """Goal: a thousand bytes that would unpack to a million stay a thousand."""
    packed = gzip.compress(bytes(10**6))
    for encoding in (b"gzip", b"br", b"zstd", b"nonsense"):
        head = _head(b"Content-Encoding: " + encoding, b"Content-Length: %d" % len(packed))
        answer = await _answer(seller, head + packed)
        assert (answer.body, answer.truncated) == (packed, False)


@pytest.mark.parametrize("silent", [True, False])
async def test_a_seller_that_says_nothing_is_given_up(silent: bool):
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            if not silent:
                writer.write(_head(status=b"100 Continue"))
                await writer.drain()
            await asyncio.sleep(0.05)

    began = time.monotonic()
    async with _raw(hang) as url, _asking(HASTY) as seller:
        with pytest.raises(SellerUnreachable, match="nothing came within 1 s"):
            await seller.ask("test", OURS, _order(url), PAYMENT)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_broken_connection_is_not_tried_again(seller: Buying, method: str):
    """Goal: when a seller is asked again is the caller's to decide, above all with a payment."""
    asked = 0

    async def abort(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.transport.abort()

    async with _raw(abort) as url:
        with pytest.raises(SellerUnreachable):
            await seller.ask("test", OURS, _order(url, method), PAYMENT)
    assert asked == 1


@pytest.mark.parametrize(("method", "connections"), [("GET", 1), ("PUT", 1), ("POST", 2)])
async def test_what_may_be_repeated_goes_over_one_connection(method: str, connections: int):
    """Goal: the payment follows the price without another handshake; but what a lost connection
    would leave in doubt has one of its own. Another purchase never shares either."""
    made = asked = 0

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made, asked
        made += 1
        while True:
            asked += 1
            writer.write(_head(b"Content-Length: 2", status=b"402 Payment Required") + b"no")
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")

    seller = Seller(CONFIG)
    async with _raw(behave) as url:
        for purchase in (1, 2):
            order = _order(url, method)
            async with seller.turn("test", OURS, order) as visit:
                assert (await visit.ask(order)).status == 402
                assert (await visit.ask(order, PAYMENT)).status == 402
            assert (made, asked) == (connections * purchase, 2 * purchase)
    await seller.close()


async def test_an_answer_before_the_body_was_read_stands(seller: Buying):
    """Goal: a seller that answers a large body unread, and hangs up, is heard."""

    async def early(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(b"Content-Length: 2", status=b"413 Too Large") + b"no")
        await writer.drain()

    async with _raw(early) as url:
        answer = await seller.ask("test", OURS, _order(url, "POST", bytes(256 * 1024)))
    assert (answer.status, answer.body) == (413, b"no")


async def test_a_slow_seller_delays_its_own_buyers_only(shop: Shop):
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with _raw(hang) as url, _asking(HASTY) as seller:
        stuck = [asyncio.create_task(seller.ask("test", OURS, _order(url))) for _ in range(200)]
        await asyncio.sleep(0)
        began = time.monotonic()
        assert (await seller.ask("test", OURS, _order(shop.url))).status == 402
        assert time.monotonic() - began < 0.9
        ended = await asyncio.gather(*stuck, return_exceptions=True)
    assert {type(one) for one in ended} == {SellerUnreachable}


async def test_its_time_begins_with_its_turn():
    """Goal: what waits for others of its account is not taken for a seller that is away."""

    async def slow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.2)
        writer.write(_head(b"Content-Length: 0"))

    async with _raw(slow) as url, _asking(replace(CONFIG, purchases_timeout_seconds=2)) as seller:
        asked = [seller.ask("test", OURS, _order(url)) for _ in range(12)]
        assert [one.status for one in await asyncio.gather(*asked)] == [200] * 12


async def test_asks_at_once_are_bounded(seller: Buying):
    """Goal: however many buy, only so many answers are read at the same time."""
    here, most = 0, 0
    release = asyncio.Event()

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here, most
        here += 1
        most = max(most, here)
        await release.wait()
        writer.write(_head(b"Content-Length: 0"))
        here -= 1

    async with _raw(count) as url:
        asked = [asyncio.create_task(seller.ask("test", n, _order(url))) for n in range(40)]
        await until(lambda: _is(lambda: here == 16), seconds=60, every=0.01)
        release.set()
        assert {one.status for one in await asyncio.gather(*asked)} == {200}
    assert most == 16


async def test_an_account_delays_itself_only(shop: Shop):
    """Goal: one that asks slow sellers as often as it may leaves room for others, even at the same
    sellers."""
    hung, release = 0, asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal hung
        hung += 1
        await release.wait()
        writer.write(_head(b"Content-Length: 0"))

    async with AsyncExitStack() as stack:
        seller = await stack.enter_async_context(_asking())
        slow = [await stack.enter_async_context(_raw(hang)) for _ in range(8)]
        asked = [
            asyncio.create_task(seller.ask("test", OURS, _order(url)))
            for url in slow
            for _ in range(20)
        ]
        await until(lambda: _is(lambda: hung == 16), seconds=60, every=0.01)
        assert (await seller.ask("test", OTHER, _order(shop.url))).status == 402
        others = [asyncio.create_task(seller.ask("test", OTHER, _order(slow[0])))]
        await until(lambda: _is(lambda: hung == 17), seconds=60, every=0.01)
        release.set()
        answers = await asyncio.gather(*asked, *others)
        assert {answer.status for answer in answers} == {200}
    assert hung == len(asked) + 1


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


# Where it may go ---------------------------------------------------------------------------------


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return opened_sockets(monkeypatch)


class Guarded:
    """A seller for which every name resolves to the same."""

    def __init__(self) -> None:
        self._resolved: tuple[str, ...] = ()
        self._seller = Seller(CONFIG, self._lookup)
        self.close = self._seller.close

    async def refusal(self, url: str, *resolved: str) -> str:
        self._resolved = resolved
        with pytest.raises(SellerUnreachable) as problem:
            await Buying(self._seller).ask("live", OURS, _order(url))
        return str(problem.value)

    async def _lookup(self, host: str, port: int) -> list[str]:
        return list(self._resolved)


@pytest.fixture(scope="module")
async def guarded() -> AsyncGenerator[Guarded]:
    made = Guarded()
    yield made
    await made.close()


@pytest.mark.parametrize("url", HOSTILE_URLS)
async def test_a_hostile_url_is_not_asked(url: str, guarded: Guarded, sockets: list[Any]):
    """Goal: even if such an order was stored, and its name resolved to a good address."""
    assert (await guarded.refusal(url, *PUBLIC)).startswith("The URL ")
    assert sockets == []


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
async def test_a_name_that_leads_inside_is_not_asked(
    address: str, guarded: Guarded, sockets: list[Any]
):
    """Goal: one bad address among the answers is enough; and what it is stays untold. What test
    mode may reach opens nothing in live mode."""
    for resolved in ((address,), (*PUBLIC, address), (address, *PUBLIC)):
        said = await guarded.refusal("https://shop.example.com/x", *resolved)
        assert said.startswith("The URL ")
        assert address not in said
        assert not any(kind in said for kind in ("loopback", "private", "link-local", "metadata"))
    assert sockets == []


async def test_a_name_that_changes_its_mind_is_asked_once(shop: Shop):
    """Goal: what is checked is what is connected to, at each ask anew."""
    asked: list[str] = []

    async def rebinding(host: str, _: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    order = _order(f"https://rebind.example.com:{shop.url.rpartition(':')[2]}/")
    async with _asking(replace(CONFIG, purchases_allow=("127.0.0.1/32",)), rebinding) as seller:
        for said in ("no TLS connection", "leads to an address that is not public"):
            with pytest.raises(SellerUnreachable, match=said):
                await seller.ask("test", OURS, order)
    assert asked == ["rebind.example.com"] * 2


async def test_what_is_listed_counts_in_test_mode_only(shop: Shop):
    port = shop.url.rpartition(":")[2]

    async def lookup(host: str, _: int) -> list[str]:
        return ["127.0.0.1"]

    async with _asking(lookup=lookup) as seller:
        for host in ("127.0.0.1", "localhost", "inside.test"):
            order = _order(f"http://{host}:{port}/")
            assert (await seller.ask("test", OURS, order)).status == 402
            with pytest.raises(SellerUnreachable):
                await seller.ask("live", OURS, order)
        for host in ("other.test", "[::1]", "2130706433"):
            with pytest.raises(SellerUnreachable):
                await seller.ask("test", OURS, _order(f"http://{host}:{port}/"))
    assert len(shop.asked) == 3


async def test_a_closed_port_does_not_tell_where_it_is():
    async with _raw(lambda _r, _w: asyncio.sleep(0)) as url:
        pass
    port = url.rpartition(":")[2].removesuffix("/x")

    async def lookup(host: str, _: int) -> list[str]:
        return ["127.0.0.1", "127.0.0.2"]

    async with _asking(lookup=lookup) as seller:
        with pytest.raises(SellerUnreachable) as problem:
            await seller.ask("test", OURS, _order(f"http://inside.test:{port}/"))
    assert "no connection" in str(problem.value)
    assert "127.0.0" not in str(problem.value)


async def test_a_name_that_does_not_resolve():
    async def lookup(host: str, _: int) -> list[str]:
        raise OSError("no such name")

    async with _asking(lookup=lookup) as seller:
        with pytest.raises(SellerUnreachable, match="cannot be resolved"):
            await seller.ask("live", OURS, _order("https://gone.example.com/"))


async def test_the_certificate_must_be_the_sellers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Goal: in test mode too: what a seller offers is worth what its certificate is."""
    certificate = tmp_path / "cert.pem"
    certificate.write_bytes(certificate_of("right.test"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    shop = Shop()

    async def lookup(host: str, _: int) -> list[str]:
        return ["127.0.0.1"]

    async with _serving(shop.serve, context) as port:
        order = _order(f"https://right.test:{port}/")
        async with _asking(lookup=lookup) as stranger:
            with pytest.raises(SellerUnreachable, match="Certificate"):
                await stranger.ask("test", OURS, order)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with _asking(lookup=lookup) as seller:
            assert (await seller.ask("test", OURS, order)).status == 402
            with pytest.raises(SellerUnreachable, match="Certificate"):
                await seller.ask("test", OURS, _order(f"https://wrong.test:{port}/"))
            with pytest.raises(SellerUnreachable):
                await seller.ask("test", OURS, _order(f"http://127.0.0.1:{port}/"))
    assert len(shop.asked) == 1


async def test_a_seller_that_speaks_no_tls(seller: Buying):
    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(status=b"400 Bad Request"))
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SellerUnreachable, match="no TLS connection"):
            await seller.ask("test", OURS, _order(f"https://127.0.0.1:{port}/"))
