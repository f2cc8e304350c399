"""A small HTTP/1.1 client whose times mean something.

Answers are stamped as their bytes are read from the socket, with the time and the turn of the event
loop. Of two answers read in different turns, the later one was sent after the earlier one was: had
it been there already, it would have been read in the same turn.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec


class Cut(Exception):
    """The connection ended before the answer: whatever was asked for may have happened or not."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    started: float
    answered: float
    started_turn: int
    answered_turn: int

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def data(self) -> Any:
        """What a 2xx answer wraps."""
        assert 200 <= self.status < 300, (self.status, self.body)
        return self.json["data"]

    @property
    def error(self) -> dict[str, Any]:
        """The error of any other answer."""
        assert self.status >= 400, (self.status, self.body)
        return self.json["error"]


class Turns:
    """Counts the turns of the running event loop for as long as it is used."""

    def __init__(self) -> None:
        self.now = 0
        self._stopped = False

    def start(self) -> None:
        # One callback in every turn. The loop then never sleeps, so it is only started by tests
        # that need the order.
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._count)

    def stop(self) -> None:
        self._stopped = True

    def _count(self) -> None:
        self.now += 1
        if not self._stopped:
            self._loop.call_soon(self._count)


NO_TURNS = Turns()


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time. Opens itself again after a cut."""

    def __init__(self, url: str, key: str, turns: Turns = NO_TURNS) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._host, self._port = parts.hostname, parts.port
        self._key = key
        self._turns = turns
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[tuple[float, int]] | None = None
        self._buffer = b""
        self._length: int | None = None
        self._head: tuple[int, dict[str, str]] = (0, {})

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        seconds: float = 60,
    ) -> Answer:
        """`key` is the Idempotency-Key. Raises Cut when no whole answer comes."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            try:
                await loop.create_connection(lambda: self, self._host, self._port)
            except OSError as problem:
                raise Cut(str(problem)) from None
        if self._transport is None:
            raise Cut("closed as soon as it was open")
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bursar\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        )
        if key is not None:
            head += f"Idempotency-Key: {key}\r\n"
        self._waiting = loop.create_future()
        started, started_turn = time.monotonic(), self._turns.now
        self._transport.write(head.encode() + b"\r\n" + content)
        try:
            async with asyncio.timeout(seconds):
                answered, turn = await self._waiting
        except BaseException:
            self.close()
            raise
        body_bytes, self._buffer = self._buffer[: self._length], self._buffer[self._length :]
        self._length = None
        status, headers = self._head
        if headers.get("connection") == "close":
            self.close()
        return Answer(status, headers, body_bytes, started, answered, started_turn, turn)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._buffer, self._length = b"", None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every event loop's transport says that it is one.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._length is None:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            first, *lines = head.decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            self._head = int(first.split()[1]), headers
            self._length = int(headers.get("content-length", "0"))
            self._buffer = rest
        if (
            len(self._buffer) >= self._length
            and self._waiting is not None
            and not self._waiting.done()
        ):
            self._waiting.set_result((time.monotonic(), self._turns.now))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._buffer, self._length = b"", None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Cut(repr(exc)))
