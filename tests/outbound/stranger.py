"""A stranger on loopback that says exactly the bytes it is told to, and somebody who asks it."""

import asyncio
import gc
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bursar.outbound.ask import Asker, Bounds
from bursar.outbound.gate import Gate, Lookup
from bursar.outbound.line import Answer
from bursar.outbound.target import Allowed, Target

LOOPBACK = Allowed("X", ("127.0.0.0/8", "inside.test"))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
MOST_BYTES = 1_000


@dataclass
class Caller:
    """One connection, as the stranger sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heard: int = 0
    is_over: bool = False

    async def request(self) -> bytes:
        request = await self.reader.readuntil(b"\r\n\r\n")
        self.heard += 1
        return request

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def hang_up(self) -> None:
        self.writer.close()

    def break_off(self) -> None:
        self.writer.transport.abort()


Behaviour = Callable[[Caller], Awaitable[None]]


@dataclass
class Stranger:
    behave: Behaviour
    port: int = 0
    callers: list[Caller] = field(default_factory=list)

    @property
    def open(self) -> int:
        return sum(not caller.is_over for caller in self.callers)

    @property
    def heard(self) -> int:
        """Requests, without their bodies."""
        return sum(caller.heard for caller in self.callers)

    def target(self, *, is_tls: bool = False, host: str = "127.0.0.1") -> Target:
        return Target("", is_tls, host, self.port, "/x")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the caller closes: only then is a connection over."""
        caller = Caller(reader, writer)
        self.callers.append(caller)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.behave(caller)
        with suppress(OSError):
            while await reader.read(65_536):
                pass
        caller.is_over = True
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def stranger(
    behave: Behaviour, context: ssl.SSLContext | None = None
) -> AsyncGenerator[Stranger]:
    made = Stranger(behave)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        # Those that are over are closed; early Pythons 3.11 fail to abort a TLS connection then.
        for caller in made.callers:
            if not caller.is_over:
                caller.break_off()
        await server.wait_closed()
        # What they still have to do.
        await asyncio.sleep(0.01)


async def answers(caller: Caller) -> None:
    while True:
        await caller.request()
        await caller.say(OK)


def says(data: bytes) -> Behaviour:
    """To the first request. It does not hang up."""

    async def behave(caller: Caller) -> None:
        await caller.request()
        await caller.say(data)

    return behave


async def inside(_host: str, _port: int) -> list[str]:
    """A name server to which everything is on loopback."""
    return ["127.0.0.1"]


@asynccontextmanager
async def asking(
    lookup: Lookup | None = None,
    allowed: Allowed = LOOPBACK,
    reuses: Collection[str] = ("GET", "POST"),
) -> AsyncGenerator[Asker]:
    gate = Gate(allowed, lookup)
    asker = Asker(gate, reuses)
    try:
        yield asker
    finally:
        asker.close()
        gate.shut()


async def ask(
    asker: Asker, target: Target, method: str = "GET", *, seconds: float = 5, body: bytes = b""
) -> Answer:
    now = asyncio.get_running_loop().time()
    bounds = Bounds(now + seconds, now + seconds, MOST_BYTES)
    return await asker.ask(method, target, (), body, bounds)


def complaints() -> list[dict[str, Any]]:
    """What the event loop has to complain of from now on."""
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    return heard


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def left(*kinds: type) -> int:
    return sum(isinstance(one, kinds) for one in gc.get_objects())
