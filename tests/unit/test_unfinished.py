import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bursar.clock import SystemClock
from bursar.errors import ApiError
from bursar.http import unfinished as module
from bursar.http.peer import Proxies
from bursar.http.unfinished import Unfinished, Watched

Message = MutableMapping[str, Any]


async def _never() -> Message:
    raise AssertionError("nothing is asked for")


async def _is_silent() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def _unfinished(most: int, trusted: tuple[str, ...] = ()) -> Unfinished:
    return Unfinished(most, Proxies(trusted), SystemClock())


def _watch(
    unfinished: Unfinished, peer: str, receive: Callable[[], Awaitable[Message]] = _never
) -> Watched:
    """A request that announces five bytes."""
    return unfinished.watch({"client": (peer, 1)}, {b"content-length": b"5"}, receive)


def test_a_peer_has_so_many_and_takes_none_from_others():
    """Goal: the bound is per peer; one that ended makes room, however often its end is told."""
    unfinished = _unfinished(2)
    first, second, third = (_watch(unfinished, "192.0.2.1") for _ in range(3))
    assert [one.crowded for one in (first, second, third)] == [False, False, True]
    assert not _watch(unfinished, "192.0.2.2").crowded
    for _ in range(2):
        first.end()
        third.end()
    assert not _watch(unfinished, "192.0.2.1").crowded
    assert _watch(unfinished, "192.0.2.1").crowded


def test_a_trusted_proxy_speaks_for_many():
    unfinished = _unfinished(1, ("192.0.2.0/24", "2001:db8::7"))
    for peer in ("192.0.2.9", "2001:db8::7"):
        assert not any(_watch(unfinished, peer).crowded for _ in range(5))


async def test_a_body_that_is_here_no_longer_counts():
    """Goal: a request that has been read may take its time without taking somebody's place."""
    parts = [b"abc", b"de"]

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(0), "more_body": True}

    unfinished = _unfinished(1)
    watched = _watch(unfinished, "192.0.2.1", receive)
    await watched.receive()
    other = _watch(unfinished, "192.0.2.1")
    assert other.crowded
    other.end()
    await watched.receive()
    assert not _watch(unfinished, "192.0.2.1").crowded


async def test_a_crowd_that_speaks_is_heard():
    """Goal: many requests at once from one peer are none of them refused if their bodies come."""

    async def speaks() -> Message:
        return {"type": "http.request", "body": b"hello", "more_body": False}

    unfinished = _unfinished(0)
    heard = _watch(unfinished, "192.0.2.1", speaks)
    assert heard.crowded
    assert await heard.begins()
    assert (await heard.receive())["body"] == b"hello"
    assert not await _watch(unfinished, "192.0.2.1", _is_silent).begins()


@asynccontextmanager
async def _looking(unfinished: Unfinished, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_BODY_SECONDS", 0.05)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    looking = asyncio.create_task(unfinished.end_late_ones())
    yield
    looking.cancel()
    await asyncio.wait({looking})


async def test_a_body_that_comes_too_late_is_no_longer_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Goal: refused in time, and its place is free; the reader goes on as after any refusal."""
    unfinished = _unfinished(1)
    async with _looking(unfinished, monkeypatch), asyncio.timeout(10):
        watched = _watch(unfinished, "192.0.2.1", _is_silent)
        with pytest.raises(ApiError, match="did not arrive"):
            await watched.receive()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        assert not _watch(unfinished, "192.0.2.1").crowded


async def test_a_request_that_waits_for_something_else_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    """Goal: it is the body that is late: who does not wait for it yet learns of it when it does."""
    unfinished = _unfinished(1)
    async with _looking(unfinished, monkeypatch), asyncio.timeout(10):
        watched = _watch(unfinished, "192.0.2.1")
        while (other := _watch(unfinished, "192.0.2.1")).crowded:
            other.end()
            await asyncio.sleep(0.01)
        with pytest.raises(ApiError, match="did not arrive"):
            await watched.receive()


async def test_who_is_cancelled_by_another_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    """Goal: a cancellation that is not ours is not taken for a late body, before it or with it."""
    unfinished = _unfinished(9)
    for late in (False, True):
        watched = _watch(unfinished, "192.0.2.1", _is_silent)
        reading = asyncio.create_task(watched.receive())
        await asyncio.sleep(0)
        if late:
            watched.give_up()
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
