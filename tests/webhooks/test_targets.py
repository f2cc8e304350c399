"""Hostile URLs and names: each is refused with a reason, and no connection is made.

A connection would be noticed: every socket the sender opens is counted, and a listener waits on the
address that the names lead to.
"""

import asyncio
import gc
import ipaddress
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web

from bursar.outbound.gate import Lookup
from bursar.outbound.target import Allowed, TargetRefused, parse_target, refusal
from bursar.webhook.send import Outcome, Sender
from tests.certificate import certificate_of
from tests.hostile_targets import HOSTILE_ADDRESSES, HOSTILE_URLS, PUBLIC, opened_sockets


def _allow(entries: Sequence[str]) -> Allowed:
    return Allowed("BURSAR_WEBHOOKS_ALLOW", entries)


NOTHING = _allow([])
T = TypeVar("T")


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return opened_sockets(monkeypatch)


class Guarded:
    """A sender for which every name resolves to the same."""

    def __init__(self) -> None:
        self._resolved: tuple[str, ...] = ()
        self._sender = Sender(NOTHING, 2, self._lookup)
        self.close = self._sender.close

    async def send(self, url: str, *resolved: str) -> Outcome:
        self._resolved = resolved
        return await self._sender.send(url, {}, b"{}")

    async def _lookup(self, host: str, port: int) -> list[str]:
        return list(self._resolved)


@pytest.fixture(scope="module")
async def guarded() -> AsyncGenerator[Guarded]:
    made = Guarded()
    yield made
    await made.close()


async def _send(url: str, *resolved: str, allowed: Allowed = NOTHING) -> Outcome:
    async def lookup(host: str, port: int) -> list[str]:
        return list(resolved)

    return await _with(lookup, lambda sender: sender.send(url, {}, b"{}"), allowed)


async def _with(
    lookup: Lookup, work: Callable[[Sender], Awaitable[T]], allowed: Allowed = NOTHING
) -> T:
    sender = Sender(allowed, 2, lookup)
    try:
        return await work(sender)
    finally:
        await sender.close()


def test_there_are_enough_of_them():
    assert len(HOSTILE_URLS) == len(set(HOSTILE_URLS))
    assert len(HOSTILE_URLS) + len(HOSTILE_ADDRESSES) >= 160


@pytest.mark.parametrize("url", HOSTILE_URLS)
async def test_a_hostile_url_is_refused(url: str, guarded: Guarded, sockets: list[Any]):
    """Goal: refused with a sentence when it is registered, and again when it is sent to, even if
    its name were to resolve to a good address."""
    with pytest.raises(TargetRefused) as refused:
        parse_target(url, NOTHING)
    assert len(str(refused.value)) > 10
    outcome = await guarded.send(url, *PUBLIC)
    assert outcome.status is None
    assert "refused" in (outcome.error or "")
    assert sockets == []


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
async def test_a_name_that_leads_inside_is_refused(
    address: str, guarded: Guarded, sockets: list[Any]
):
    """Goal: one bad address among the answers is enough, first, last or alone."""
    for resolved in ((address,), (*PUBLIC, address), (address, *PUBLIC)):
        outcome = await guarded.send("https://hooks.example.com/x", *resolved)
        assert (outcome.status, "refused" in (outcome.error or "")) == (None, True), resolved
    assert sockets == []


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_public(address: str):
    """Goal: the rules do not refuse the world."""
    assert refusal(ipaddress.ip_address(address)) is None
    shown = f"[{address}]" if ":" in address else address
    assert parse_target(f"https://{shown}:8443/x?y=1", NOTHING).port == 8443


@pytest.fixture
async def listener() -> AsyncGenerator[tuple[int, list[str]]]:
    """Something inside that must not be reached: (port, what reached it)."""
    reached: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(text="inside")

    runner = web.AppRunner(app := web.Application())
    app.router.add_route("*", "/{path:.*}", handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1], reached
    await runner.cleanup()


async def test_a_name_that_changes_its_mind_is_asked_once(listener: tuple[int, list[str]]):
    """Goal: what is checked is what is connected to: a name that is public for the check and
    loopback for the connection never gets the second question."""
    port, reached = listener
    asked: list[str] = []

    async def rebinding(host: str, _: int) -> list[str]:
        asked.append(host)
        # A public address that nobody routes to here; then the listener's.
        return ["8.8.8.8"] if len(asked) == 1 else ["127.0.0.1"]

    outcome = await _with(
        rebinding, lambda sender: sender.send(f"https://rebind.example.com:{port}/", {}, b"{}")
    )
    assert outcome.status is None
    assert asked == ["rebind.example.com"]
    again = await _send(f"https://rebind.example.com:{port}/", "127.0.0.1")
    assert "leads to an address that is not public" in (again.error or "")
    assert reached == []


async def test_the_last_gate_holds_alone(listener: tuple[int, list[str]]):
    """Goal: were an unchecked address to get past the resolver, no socket is opened to it."""
    sender = Sender(NOTHING, 2)
    info = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", listener[0]))
    with pytest.raises(TargetRefused):
        sender._gate.open_socket(info)
    await sender.close()


async def test_nobody_is_followed_and_no_proxy_is_asked(
    listener: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
):
    """Goal: variables of the environment do not send deliveries elsewhere."""
    port, reached = listener
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    outcome = await _send("https://hooks.example.com/", "127.0.0.1")
    assert "refused" in (outcome.error or "")
    assert reached == []


async def test_what_is_listed_may_be_reached(listener: tuple[int, list[str]]):
    """Goal: BURSAR_WEBHOOKS_ALLOW opens exactly what it lists, http included."""
    port, reached = listener
    network, host = _allow(["127.0.0.0/8"]), _allow(["inside.test"])
    for url, allowed, good in (
        (f"http://127.0.0.1:{port}/a", network, True),
        (f"http://inside.test:{port}/b", host, True),
        (f"http://other.test:{port}/c", host, False),
        (f"http://127.0.0.1:{port}/d", host, False),
        (f"http://[::1]:{port}/e", network, False),
        (f"http://2130706433:{port}/f", network, False),
    ):
        outcome = await _send(url, "127.0.0.1", allowed=allowed)
        assert (outcome.status == 200) is good, (url, outcome)
    assert reached == ["/a", "/b"]


async def test_a_hanging_name_server_delays_nobody_else():
    """Goal: while one name does not resolve, another host is answered at once."""
    never = asyncio.Event()

    async def lookup(host: str, _: int) -> list[str]:
        if host == "stuck.example.com":
            await never.wait()
        return ["10.0.0.1"]

    async def work(sender: Sender) -> list[Outcome]:
        stuck = [
            asyncio.create_task(sender.send("https://stuck.example.com/", {}, b""))
            for _ in range(200)
        ]
        loop, times, others = asyncio.get_running_loop(), list[float](), list[Outcome]()
        # Hosts that were not looked up before. The machine may stall during one of them.
        for number in range(3):
            began = loop.time()
            others.append(await sender.send(f"https://other-{number}.example.com/", {}, b""))
            times.append(loop.time() - began)
        assert min(times) < 0.5
        assert not any(one.done() for one in stuck)
        outcomes = await asyncio.gather(*stuck)
        assert {outcome.error for outcome in outcomes} == {"no answer within 2 s"}
        never.set()
        return others

    assert all("not public" in (other.error or "") for other in await _with(lookup, work))


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
async def test_a_refused_name_does_not_tell_what_it_resolves_to(address: str, guarded: Guarded):
    """Goal: a tenant cannot use deliveries to look names up in the operator's network: neither the
    address nor its kind is in what it is shown."""
    outcome = await guarded.send("https://hooks.example.com/x", address)
    assert outcome.error is not None
    assert address not in outcome.error
    for kind in ("loopback", "private", "link-local", "metadata", "multicast"):
        assert kind not in outcome.error


async def test_a_failed_connection_does_not_tell_where_it_went():
    """Goal: where connecting is allowed and fails, the error names the failure, not the address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    inside = _allow(["127.0.0.0/8"])
    for resolved in (("127.0.0.1",), ("127.0.0.1", "127.0.0.2")):
        outcome = await _send(f"https://hooks.example.com:{port}/", *resolved, allowed=inside)
        assert outcome.status is None
        assert "127.0.0." not in (outcome.error or "")
        assert "no connection" in (outcome.error or "")


async def test_a_lookup_that_fails_late_is_not_left_behind():
    """Goal: a name server that refuses after everybody stopped waiting leaves no complaint of a
    task whose exception was never retrieved."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    release = asyncio.Event()

    async def lookup(host: str, port: int) -> list[str]:
        await release.wait()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    sender = Sender(NOTHING, 0.1, lookup)
    outcome = await sender.send("https://late.example.com/", {}, b"")
    assert "no answer within" in (outcome.error or "")
    running = next(iter(sender._gate._running.values()))
    release.set()
    await asyncio.wait({running})
    del running
    await asyncio.sleep(0)
    gc.collect()
    loop.set_exception_handler(None)
    await sender.close()
    assert complaints == []


async def test_the_certificate_must_be_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Goal: connecting to a checked address keeps the name: TLS asks for the host of the URL."""
    certificate = tmp_path / "cert.pem"
    certificate.write_bytes(certificate_of("right.test"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=request.headers["Host"])

    runner = web.AppRunner(app := web.Application())
    app.router.add_post("/", handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    allowed = _allow(["127.0.0.0/8"])
    right = await _send(f"https://right.test:{port}/", "127.0.0.1", allowed=allowed)
    assert (right.status, right.response) == (200, f"right.test:{port}")
    wrong = await _send(f"https://wrong.test:{port}/", "127.0.0.1", allowed=allowed)
    assert wrong.status is None
    assert "Certificate" in (wrong.error or "")
    assert names == ["right.test", "wrong.test"]
    await runner.cleanup()
