import asyncio

import pytest

from bursar.clock import SystemClock
from bursar.errors import ApiError, ErrorCode
from bursar.http import unfinished as module
from bursar.http.exchange import Exchange
from bursar.http.peer import Proxies
from bursar.http.unfinished import Unfinished
from tests.http_server.wire import Wire, announced


def _unfinished(most: int, trusted: tuple[str, ...] = ()) -> Unfinished:
    return Unfinished(most, Proxies(trusted), SystemClock())


def _exchange(peer: str = "192.0.2.1") -> Exchange:
    return announced(Wire(peer))


def test_a_peer_has_so_many_and_takes_none_from_others():
    """Goal: the bound is per peer; one that ended makes room, however often its end is told."""
    unfinished = _unfinished(2)
    first, second, third = _exchange(), _exchange(), _exchange()
    assert [unfinished.watch(one) for one in (first, second, third)] == [False, False, True]
    assert not unfinished.watch(_exchange("192.0.2.2"))
    for _ in range(2):
        unfinished.forget(first)
        unfinished.forget(third)
    assert not unfinished.watch(_exchange())
    assert unfinished.watch(_exchange())


def test_a_trusted_proxy_speaks_for_many():
    unfinished = _unfinished(1, ("192.0.2.0/24", "2001:db8::7"))
    for peer in ("192.0.2.9", "2001:db8::7"):
        assert not any(unfinished.watch(_exchange(peer)) for _ in range(5))


async def test_a_body_that_is_here_no_longer_counts():
    """Goal: a request that has been read may take its time without taking somebody's place."""
    unfinished = _unfinished(1)
    watched = _exchange()
    unfinished.watch(watched)
    watched.take(b"abc")
    other = _exchange()
    assert unfinished.watch(other)
    unfinished.forget(other)
    watched.take(b"de")
    watched.end()
    assert await watched.body() == b"abcde"
    assert not unfinished.watch(_exchange())


async def test_whether_a_body_begins():
    """Goal: of many requests at once from one peer, only those are refused that stay silent."""
    speaks, ends, breaks, silent = (_exchange() for _ in range(4))
    waiting = [asyncio.create_task(one.begins(5)) for one in (speaks, ends, breaks)]
    await asyncio.sleep(0)
    speaks.take(b"h")
    ends.end()
    breaks.fail(lambda: ApiError(ErrorCode.VALIDATION_ERROR, "broken"))
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert not await silent.begins(0.01)


async def test_a_body_that_comes_too_late_is_no_longer_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Goal: refused in time, and its place is free; who does not wait for it yet learns of it when
    it does."""
    unfinished = _unfinished(1)
    waited_for, not_yet = _exchange(), _exchange("192.0.2.2")
    unfinished.watch(waited_for)
    unfinished.watch(not_yet)
    reading = asyncio.create_task(waited_for.body())
    await asyncio.sleep(0)
    unfinished.end_late_ones()
    await asyncio.sleep(0)
    assert not reading.done()
    monkeypatch.setattr(module, "_BODY_SECONDS", 0)
    unfinished.end_late_ones()
    for late in (reading, not_yet.body()):
        with pytest.raises(ApiError, match="did not arrive"):
            await late
    assert not unfinished.watch(_exchange())


def test_the_oldest_makes_room():
    unfinished = _unfinished(9)
    wires = [Wire() for _ in range(3)]
    for wire in wires:
        unfinished.watch(announced(wire))
    assert unfinished.drop_oldest()
    assert [wire.is_aborted for wire in wires] == [True, False, False]
    assert unfinished.drop_oldest()
    assert unfinished.drop_oldest()
    assert not unfinished.drop_oldest()
