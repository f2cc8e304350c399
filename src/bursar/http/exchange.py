"""One request as it came over its connection, and the answer to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Protocol

from bursar.errors import ApiError, ErrorCode, check
from bursar.form.strict_json import MAX_BODY_BYTES

Headers = Sequence[tuple[bytes, bytes]]

# How much of a refused body is still read, and for how long, so that the caller gets its answer:
# to close a connection on what was not read would lose it.
_DISCARD_BYTES: Final = 16 * MAX_BODY_BYTES
_DISCARD_SECONDS: Final = 5

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}
_NO_CONTENT: Final = (204, 304)


class Wire(Protocol):
    """What an exchange needs of its connection."""

    @property
    def peer(self) -> str: ...

    @property
    def date(self) -> bytes:
        """The header that every answer has."""
        ...

    @property
    def is_lost(self) -> bool: ...

    @property
    def is_ending(self) -> bool:
        """Whether it closes after this answer, whatever the caller asked for."""
        ...

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...

    async def flushed(self) -> None:
        """Waits until the caller has taken most of what was written."""
        ...


class Exchange:
    """The body arrives while the request is already being answered. No more of it is kept than a
    body may have."""

    __slots__ = ("_body", "_expects", "_problem", "_waiter", "_wire", "at_the_end", "headers",
                 "is_answered", "is_begun", "is_chunked", "is_complete", "keep_alive", "method",
                 "path", "query", "size")  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        method: str,
        path: str,
        query: bytes,
        headers: Mapping[bytes, bytes],
        *,
        keep_alive: bool,
        is_chunked: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        # Names in lower case. If one is sent twice, the last one counts.
        self.headers = headers
        self.keep_alive = keep_alive
        # Whether the caller knows chunks, and answers before the last, as with HTTP/1.1.
        self.is_chunked = is_chunked
        # Whether the body is here to its end.
        self.is_complete = False
        self.is_begun = False
        self.is_answered = False
        self._wire = wire
        # What has come of the body; None when it is not wanted any more.
        self._body: bytes | bytearray | None = b""
        # How much of the body has come.
        self.size = 0
        # Called when the body is complete.
        self.at_the_end: Callable[[Exchange], None] | None = None
        # Makes the error anew each time: one that is kept would keep all that it went through.
        self._problem: Callable[[], ApiError] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._expects = is_chunked and headers.get(b"expect", b"").lower() == b"100-continue"

    @property
    def peer(self) -> str:
        return self._wire.peer

    @property
    def is_lost(self) -> bool:
        """Whether the caller is gone."""
        return self._wire.is_lost

    # The body, as the connection hands it over -------------------------------------------------

    def take(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > MAX_BODY_BYTES:
            self._body = None
        if not self._body:
            self._body = None if self._body is None else piece
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body) + piece
        else:
            self._body += piece
        self._wake()

    def end(self) -> None:
        self.is_complete = True
        if self.at_the_end is not None:
            self.at_the_end(self)
        self._wake()

    def fail(self, problem: Callable[[], ApiError]) -> None:
        """The body will not come to its end: whoever reads it is told why."""
        if not self.is_complete and self._problem is None:
            self._problem = problem
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The body, as the application reads it -----------------------------------------------------

    async def body(self) -> bytes:
        """The whole body. It is refused as soon as it is too large."""
        length = self.headers.get(b"content-length", b"0")
        if len(length) > 10 or int(length) > MAX_BODY_BYTES:
            raise _too_large()
        while True:
            if self._body is None:
                raise _too_large()
            if self.is_complete:
                return bytes(self._body)
            if self._problem is not None:
                raise self._problem()
            await self._more()

    async def begins(self, seconds: float) -> bool:
        """Whether a byte of the body, or its end, arrives in time."""
        try:
            async with asyncio.timeout(seconds):
                while not (self.size or self.is_complete or self._problem):
                    await self._more()
        except TimeoutError:
            return False
        return True

    async def discard(self) -> None:
        """Reads on after a refusal, as far as that is worth it for the answer to arrive."""
        self._body = None
        if self._expects or self._problem is not None:
            return  # what was not asked for, or is late, will not come
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not (self.is_complete or self._problem or self.size > _DISCARD_BYTES):
                    await self._more()
        except TimeoutError:
            pass

    async def _more(self) -> None:
        if self._expects:
            self._expects = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def drop(self) -> None:
        """Closes the connection, because another needs the room."""
        self._wire.abort()

    # The answer --------------------------------------------------------------------------------

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        head = self._head(status, headers, None if status in _NO_CONTENT else len(body))
        self.is_answered = True
        self._wire.write(head if self.method == "HEAD" else head + body)

    async def stream(self, status: int, headers: Headers, pieces: AsyncIterator[bytes]) -> None:
        """Raises ConnectionResetError when the caller is gone. What breaks off has no end, so
        nobody takes half of it for all."""
        if not self.is_chunked:
            self.keep_alive = False  # where the connection ends, the body does
        framing = ((b"transfer-encoding", b"chunked"),) if self.is_chunked else ()
        self._wire.write(self._head(status, (*headers, *framing), None))
        if self.method != "HEAD":
            async for piece in pieces:
                if not piece:
                    continue  # an empty chunk is the end
                self._wire.write(
                    b"%x\r\n%b\r\n" % (len(piece), piece) if self.is_chunked else piece
                )
                await self._wire.flushed()
            if self.is_chunked:
                self._wire.write(b"0\r\n\r\n")
        self.is_answered = True

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        check(not self.is_begun, "a request is answered once")
        parts = [_STATUS_LINES[status], self._wire.date]
        parts += [b"%b: %b\r\n" % pair for pair in headers]
        if length is not None:
            parts.append(b"content-length: %d\r\n" % length)
        # What was not read of the body would be taken for the next request.
        if self._wire.is_ending or not self.is_complete:
            self.keep_alive = False
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        head = b"".join(parts)
        check(
            head.count(b"\n") == head.count(b"\r") == len(parts),
            "no header of an answer has a line end in it",
        )
        self.is_begun = True
        return head


def _too_large() -> ApiError:
    return ApiError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"The body may have at most {MAX_BODY_BYTES // 1024} KiB."
    )
