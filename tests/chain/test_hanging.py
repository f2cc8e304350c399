"""Goal: a node that takes the connection and gives no answer costs a bounded time, whatever it does
with the connection: then the next one is asked, or it is not known."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from bursar.chain.port import Unknown
from tests.chain.conftest import OpenChain
from tests.chain.support import new_address
from tests.chain.test_failures import PATIENCE, ask_everything
from tests.localnet.support import Rpc
from tests.machine import Watch
from tests.processes import until

TIMEOUT = 0.3
# What it says at once, and what again and again: a byte now and then, so that it is never idle.
WAYS = {
    "says nothing": (b"", b""),
    "an endless head": (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"),
    "one head after another": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "an endless body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
    "endless chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a body without end": (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
}


@dataclass
class Hanging:
    url: str = ""
    connections: int = 0
    asked: int = 0


@asynccontextmanager
async def hanging_node(way: str) -> AsyncGenerator[Hanging]:
    node = Hanging()
    at_once, again = WAYS[way]

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            node.asked += 1
            writer.write(at_once)
            left = asyncio.create_task(_left(reader))
            while not left.done():
                writer.write(again)
                await writer.drain()
                await asyncio.wait({left}, timeout=TIMEOUT / 10)
        node.connections -= 1
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    node.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield node


async def _left(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass


@pytest.fixture(params=WAYS)
async def hanging(request: pytest.FixtureRequest) -> AsyncGenerator[Hanging]:
    async with hanging_node(request.param) as node:
        yield node


async def test_every_read_is_given_up_in_time(hanging: Hanging, open_chain: OpenChain):
    """Goal: twice the timeout for each, thrice for a look, which asks one by one after it asked for
    all; and no connection is left behind."""
    watch = Watch()
    await ask_everything(open_chain(hanging.url, timeout=TIMEOUT))
    assert watch.wall_seconds >= 2 * TIMEOUT
    assert watch.seconds < 3 * TIMEOUT + 2
    assert hanging.asked > 10

    async def all_gone() -> bool:
        return hanging.connections == 0

    await until(all_gone, seconds=10)


async def test_what_was_sent_there_is_unknown_in_time(hanging: Hanging, open_chain: OpenChain):
    """Goal: it may have been taken, so nothing is concluded from it; and it is sent once to each
    node, not once a round."""
    chain, raw, watch = open_chain(hanging.url, timeout=TIMEOUT), bytes(100), Watch()
    assert isinstance(await chain.send(raw), Unknown)
    assert hanging.asked == 1
    assert await chain.send_many([raw, raw]) == [raw, raw]
    assert watch.seconds < 2 * TIMEOUT + 2


async def test_beside_another_it_slows_nothing_but_once(
    hanging: Hanging, rpc: Rpc, open_chain: OpenChain
):
    """Goal: with a timeout that nobody could wait for, payments wait for its word a moment, and
    then leave it alone for a while."""
    chain, watch = open_chain(rpc.url, hanging.url, timeout=PATIENCE), Watch()
    first = await chain.look([new_address()])
    assert watch.seconds < 6
    watch = Watch()
    for _ in range(3):
        assert (await chain.look([new_address()])).blockhash.slot >= first.blockhash.slot
    assert watch.seconds < 1.5
    assert hanging.asked == 1
