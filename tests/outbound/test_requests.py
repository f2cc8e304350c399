"""What is sent, and where to: never a line more, and never to an address that did not pass."""

from contextlib import suppress
from typing import Any

import pytest

from bursar.errors import InvariantBroken
from bursar.outbound.ask import Bounds
from bursar.outbound.failure import NoAnswer
from bursar.outbound.target import Allowed, Target, TargetRefused
from tests.hostile_targets import HOSTILE_ADDRESSES, PUBLIC, opened_sockets
from tests.outbound.stranger import OK, Caller, answers, ask, asking, inside, stranger

SOON = Bounds(float("inf"), float("inf"), 100)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return opened_sockets(monkeypatch)


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("GET", b"", None), ("HEAD", b"", None), ("OPTIONS", b"", None), ("POST", b"", 0),
        ("DELETE", b"", 0), ("PUT", b"x", 1), ("GET", b"xy", 2),
    ],
)  # fmt: skip
async def test_a_request_says_how_long_its_body_is(method: str, body: bytes, length: int | None):
    heard: list[bytes] = []

    async def behave(caller: Caller) -> None:
        heard.append(await caller.request() + await caller.reader.readexactly(len(body)))
        await caller.say(OK)

    async with stranger(behave) as asked, asking() as asker:
        await ask(asker, asked.target(), method, body=body)
        lines = [f"{method} /x HTTP/1.1", f"Host: 127.0.0.1:{asked.port}"]
        lines += [] if length is None else [f"Content-Length: {length}"]
        assert heard == ["\r\n".join((*lines, "", "")).encode() + body]


@pytest.mark.parametrize("broken", ["\r", "\n", "\r\n", "\x00", "\r\nContent-Length: 9"])
@pytest.mark.parametrize("where", ["method", "path", "host", "name", "value"])
async def test_a_line_is_one_line(broken: str, where: str, sockets: list[Any]):
    """Goal: whoever lets a break through earlier sends nothing."""
    method, path, host, name, value = (
        text + (broken if part == where else "")
        for part, text in (
            ("method", "GET"), ("path", "/"), ("host", "a.b"), ("name", "X"), ("value", "y")
        )
    )  # fmt: skip
    async with asking(inside) as asker:
        with pytest.raises(InvariantBroken):
            await asker.ask(method, Target("", True, host, 443, path), [(name, value)], b"", SOON)
    assert sockets == []


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
async def test_nothing_leads_inside(address: str, sockets: list[Any]):
    """Goal: neither as a name's only address, nor as one of several, nor in place of a name, even
    where nobody had looked at the text before."""
    for found in ([address], [*PUBLIC, address], [address, *PUBLIC]):

        async def lookup(_host: str, _port: int, found: list[str] = found) -> list[str]:
            return found

        async with asking(lookup, Allowed("X", ())) as asker:
            for host in (address, "shop.example.com"):
                with pytest.raises(TargetRefused):
                    await asker.ask("GET", Target("", True, host, 443, "/"), (), b"", SOON)
    assert sockets == []


async def test_what_is_listed_by_name_is_not_reached_by_another():
    async with stranger(answers) as asked, asking(inside, Allowed("X", ("inside.test",))) as asker:
        assert (await ask(asker, asked.target(host="inside.test"))).body == b"ok"
        with pytest.raises(TargetRefused):
            await ask(asker, asked.target(host="other.test"))


async def test_a_name_without_addresses():
    async def lookup(_host: str, _port: int) -> list[str]:
        return []

    async with asking(lookup) as asker:
        with pytest.raises(NoAnswer, match="cannot be resolved"):
            await asker.ask("GET", Target("", True, "a.b", 443, "/"), (), b"", SOON)


async def test_a_kept_connection_is_only_for_its_host():
    """Goal: two names of one address have connections of their own, and are checked by name."""
    async with stranger(answers) as asked, asking(inside) as asker:
        for host in ("inside.test", "127.0.0.1", "inside.test", "127.0.0.1"):
            await ask(asker, asked.target(host=host))
        assert len(asked.callers) == 2
        with suppress(NoAnswer, TimeoutError):
            await ask(asker, asked.target(host="inside.test", is_tls=True), seconds=0.2)
        assert len(asked.callers) == 3
