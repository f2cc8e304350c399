"""What strangers send is not kept for longer, nor in more memory, than it has to be.

The service's garbage collector runs seldom, so nothing here may wait for it: without it, what is
over must be gone.
"""

import asyncio
import gc
import tracemalloc
from collections.abc import Generator

import pytest

from bursar.http.connection import Connection
from bursar.http.exchange import Exchange
from tests.http_server.raw import Loop, run, serving, until

HEAD = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture
def no_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _left(kind: type) -> int:
    return sum(isinstance(one, kind) for one in gc.get_objects())


def test_of_a_body_that_was_waited_for_nothing_stays(loop: Loop, no_collector: None):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call()
            for _ in range(20):
                await caller.send(HEAD)
                await until(lambda: len(world.app.begun) > len(world.app.ended))
                await caller.send(b"x" * 100_000)
                await caller.answer()
            assert _left(Exchange) <= 1

    run(loop, scenario())


@pytest.mark.parametrize(
    ("sent", "rest"),
    [
        (b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n", b""),
        (HEAD + b"x", b""),
        (b"POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"x\r\n"),
        (b"nonsense\r\n\r\n", b""),
    ],
    ids=["answered", "half a body", "a broken body", "not HTTP"],
)
def test_of_a_closed_connection_nothing_stays(
    loop: Loop, no_collector: None, sent: bytes, rest: bytes
):
    async def scenario() -> None:
        async with serving() as world:
            for _ in range(20):
                caller = await world.call(sent)
                await asyncio.sleep(0.01)
                if rest:
                    await caller.send(rest)
                caller.writer.write_eof()
                await caller.answer()
                await caller.close()
            await until(lambda: not world.server._all)
            await asyncio.sleep(0.05)
            assert _left(Connection) <= 1
            assert _left(Exchange) <= 1

    run(loop, scenario())


def test_small_chunks_take_no_more_than_they_bring(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(b"POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            await until(lambda: bool(world.app.begun))
            [exchange] = world.app.unfinished._watched
            tracemalloc.start()
            for _ in range(20):
                await caller.send(b"2\r\nxx\r\n" * 13_000)
            await until(lambda: exchange.size == 520_000)
            assert tracemalloc.get_traced_memory()[0] < 3_000_000

    try:
        run(loop, scenario())
    finally:
        tracemalloc.stop()
