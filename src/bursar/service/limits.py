"""Rate limits of several HTTP processes on one machine: one process counts, and the others ask it.

`bursar serve` itself counts: it lives as long as the service and has little else to do. The others
ask over a Unix socket, one line per request: `key category mode` is answered by `allowed limit
remaining reset`. Answers come in the order of the questions.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import structlog

from bursar.access.limits import Category, Limiter, Verdict
from bursar.config import Mode, parse_mode
from bursar.errors import ApiError, present, unavailable

# The counting process is on this machine and never waits, so if it takes this long it has died.
_ANSWER_SECONDS: Final = 1.0
_LINE_BYTES: Final = 1_024

_log = structlog.get_logger()


@asynccontextmanager
async def counting_limits(socket: Path, limiter: Limiter) -> AsyncGenerator[None]:
    """Counts for every process that connects to the socket, so its folder must be private."""
    asking: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = present(asyncio.current_task(), "this runs in a task")
        asking.add(task)
        try:
            while line := await reader.readline():
                key_id, category, mode = line.decode("ascii").split()
                verdict = await limiter.take(key_id, Category[category], parse_mode(mode))
                writer.write(_encode(verdict))
                await writer.drain()
        except ConnectionError:
            pass  # the process that asked has died
        finally:
            asking.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(answer, socket, limit=_LINE_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in list(asking):
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


class SocketLimiter:
    """Asks the process that counts. Connects at the first use, and again after the connection was
    lost."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._line: _Line | None = None
        self._connecting = asyncio.Lock()

    async def take(self, key_id: str, category: Category, mode: Mode) -> Verdict:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                line = await self._connected()
                return await line.ask(f"{key_id} {category.name} {mode}\n".encode("ascii"))
        except (OSError, TimeoutError, _Cut) as problem:
            _log.warning("limits_out_of_reach", problem=type(problem).__name__)
            raise _out_of_reach() from None

    async def reachable(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._connected()
        except (OSError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        if self._line is not None:
            self._line.close()

    async def _connected(self) -> "_Line":
        # One at a time: all requests of a process share one connection.
        async with self._connecting:
            if self._line is None or self._line.cut:
                loop = asyncio.get_running_loop()
                _, self._line = await loop.create_unix_connection(_Line, str(self._socket))
        return self._line


class _Cut(Exception):
    """The connection ended before the answer."""


class _Line(asyncio.Protocol):
    """One connection. Answers come in the order of the questions."""

    def __init__(self) -> None:
        self.cut = False
        self._waiting: deque[asyncio.Future[Verdict]] = deque()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the same methods but is not of that class.
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, question: bytes) -> Verdict:
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        if self.cut:
            raise _Cut
        self._waiting.append(answer)
        self._transport.write(question)
        return await answer

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = self._waiting.popleft()
            if not answer.done():  # else the request has given up waiting
                answer.set_result(_decode(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut = True
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(_Cut())

    def close(self) -> None:
        self._transport.close()


def _encode(verdict: Verdict) -> bytes:
    return b"%d %d %d %d\n" % (
        verdict.allowed,
        verdict.limit,
        verdict.remaining,
        verdict.reset_seconds,
    )


def _decode(line: bytes) -> Verdict:
    allowed, limit, remaining, reset = map(int, line.split())
    return Verdict(bool(allowed), limit, remaining, reset)


def _out_of_reach() -> ApiError:
    return unavailable("The rate limits cannot be counted now. Try again.")
