"""A server with an application of a few lines, and a caller that sends bytes as they are."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bursar.clock import SystemClock
from bursar.errors import ApiError
from bursar.http.exchange import Exchange
from bursar.http.peer import Proxies
from bursar.http.server import Server
from bursar.http.unfinished import Unfinished
from bursar.service.ports import bound_socket

Loop = Callable[[], asyncio.AbstractEventLoop]
LONG_SECONDS = 20


def run(loop: Loop, scenario: Coroutine[Any, Any, None]) -> None:
    """Runs it on one of the loops; nothing may be left unfinished for longer than a test takes."""

    async def bounded() -> None:
        async with asyncio.timeout(LONG_SECONDS):
            await scenario

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(bounded())


@dataclass
class App:
    """Tells what it was asked; some paths do something else."""

    unfinished: Unfinished
    # Paths, as they were begun and ended.
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, exchange: Exchange) -> None:
        self.begun.append(exchange.path)
        if not exchange.is_complete:
            self.unfinished.watch(exchange)
        try:
            await self._answer(exchange)
        finally:
            self.unfinished.forget(exchange)
            self.ended.append(exchange.path)

    async def _answer(self, exchange: Exchange) -> None:
        match exchange.path:
            case "/waits":
                await self.go_on.wait()
            case "/crashes":
                raise ZeroDivisionError
            case "/says nothing":
                return
            case "/two lines":
                exchange.send(200, [(b"x-a", b"1\r\nx-b: 2")], b"")
                return
            case "/empty":
                exchange.send(204, [], b"")
                return
            case "/large":
                exchange.send(200, [], b"x" * 8_000_000)
                return
            case "/refuses":
                if not exchange.is_complete:
                    await exchange.discard()
                exchange.send(401, [], b"no")
                return
            case "/refuses at once":
                exchange.send(503, [], b"no")
                return
            case "/streams":
                await exchange.stream(200, [], _pieces(3))
                return
            case "/streams on":
                await exchange.stream(200, [], _pieces(10**6))
                return
            case "/breaks off":
                await exchange.stream(200, [], _pieces(3, breaks=True))
                return
            case _:
                pass
        try:
            body = await exchange.body()
        except ApiError as problem:
            await exchange.discard()
            exchange.send(problem.code.status, [], str(problem).encode())
            return
        told = {
            "method": exchange.method,
            "path": exchange.path,
            "query": exchange.query.decode("latin-1"),
            "headers": {
                name.decode(): value.decode("latin-1") for name, value in exchange.headers.items()
            },
            "body": body.decode("latin-1"),
        }
        exchange.send(200, [(b"content-type", b"application/json")], msgspec.json.encode(told))


async def _pieces(count: int, *, breaks: bool = False) -> AsyncIterator[bytes]:
    for number in range(count):
        yield b"%d," % number + (b"x" * 100_000 if count > 3 else b"")
        if breaks:
            raise ZeroDivisionError


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        assert self.status == 200, (self.status, self.body)
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> str:
        """The code of an error in the form that every error has."""
        error = msgspec.json.decode(self.body)["error"]
        assert error["requestId"] == self.headers["x-request-id"]
        return error["code"]


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, head: bool = False) -> Answer:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        for line in lines[1:-2]:
            name, value = line.split(": ", 1)
            assert name == name.lower()
            assert name not in headers
            headers[name] = value
        if status == "100":
            return Answer(100, headers, b"")
        assert "date" in headers
        body = b""
        if head or int(status) == 204:
            pass
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        else:
            body = await self.reader.read()
        return Answer(int(status), headers, body)

    async def is_closed(self) -> bool:
        """Waits for the end; nothing may come before it."""
        return await self.reader.read() == b""

    async def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True)
class World:
    server: Server
    app: App
    port: int
    callers: list[Caller] = field(default_factory=list)

    async def call(self, data: bytes = b"", *, room: int | None = None) -> Caller:
        """`room`: how many bytes the caller's socket takes unread, about."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, **({"limit": room} if room else {})
        )
        caller = Caller(reader, writer)
        self.callers.append(caller)
        if data:
            await caller.send(data)
        return caller

    async def ask(self, data: bytes) -> Answer:
        return await (await self.call(data)).answer()


@asynccontextmanager
async def serving(*, most: int = 100) -> AsyncGenerator[World]:
    clock = SystemClock()
    unfinished = Unfinished(100, Proxies(()), clock)
    app = App(unfinished)
    server = Server(app, unfinished, clock, most)
    bound = bound_socket("127.0.0.1", 0)
    world = World(server, app, bound.getsockname()[1])
    await server.listen(bound)
    try:
        yield world
    finally:
        app.go_on.set()
        for caller in world.callers:
            await caller.close()
        server.stop()
        await server.close(1)


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - of conditions that nobody announces
        await asyncio.sleep(0.005)


async def gone(waiting: Awaitable[Any]) -> bool:
    """Whether it ends because the other side broke the connection off."""
    try:
        await waiting
    except (ConnectionError, asyncio.IncompleteReadError):
        return True
    return False
