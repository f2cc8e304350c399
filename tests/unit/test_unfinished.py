import asyncio
from collections.abc import MutableMapping
from typing import Any

from bursar.http.peer import Proxies
from bursar.http.unfinished import Unfinished


def _scope(peer: str, length: int) -> dict[str, Any]:
    return {"client": (peer, 1), "headers": [(b"content-length", b"%d" % length)]}


async def _never() -> MutableMapping[str, Any]:
    raise AssertionError("nothing is asked for")


def test_a_peer_has_so_many_and_takes_none_from_others():
    """Goal: the bound is per peer; one that ended makes room, however often its end is told."""
    unfinished = Unfinished(2, Proxies([]))
    first, second, third = (unfinished.watch(_scope("192.0.2.1", 5), _never) for _ in range(3))
    assert [one.crowded for one in (first, second, third)] == [False, False, True]
    assert not unfinished.watch(_scope("192.0.2.2", 5), _never).crowded
    for _ in range(2):
        first.end()
        third.end()
    assert not unfinished.watch(_scope("192.0.2.1", 5), _never).crowded
    assert unfinished.watch(_scope("192.0.2.1", 5), _never).crowded


def test_a_trusted_proxy_speaks_for_many():
    unfinished = Unfinished(1, Proxies(["192.0.2.0/24", "2001:db8::7"]))
    for peer in ("192.0.2.9", "2001:db8::7"):
        assert not any(unfinished.watch(_scope(peer, 5), _never).crowded for _ in range(5))


async def test_a_body_that_is_here_no_longer_counts():
    """Goal: a request that has been read may take its time without taking somebody's place."""
    parts = [b"abc", b"de"]

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": True}

    unfinished = Unfinished(1, Proxies([]))
    watched = unfinished.watch(_scope("192.0.2.1", 5), receive)
    await watched.receive()
    other = unfinished.watch(_scope("192.0.2.1", 5), _never)
    assert other.crowded
    other.end()
    await watched.receive()
    assert not unfinished.watch(_scope("192.0.2.1", 5), _never).crowded


async def test_a_crowd_that_speaks_is_heard():
    """Goal: many requests at once from one peer are none of them refused if their bodies come."""

    async def speaks() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"hello", "more_body": False}

    async def is_silent() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    unfinished = Unfinished(0, Proxies([]))
    heard = unfinished.watch(_scope("192.0.2.1", 5), speaks)
    assert heard.crowded
    assert await heard.begins()
    assert (await heard.receive())["body"] == b"hello"
    assert not await unfinished.watch(_scope("192.0.2.1", 5), is_silent).begins()
