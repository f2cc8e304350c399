"""One connection: requests come out of the parser, are answered in their order, one at a time.

The parser is llhttp in its strict mode, maintained by others. What is here is what a parser leaves
open: bounds, order, and how a connection ends.
"""

import asyncio
import re
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

import httptools
import msgspec
import structlog

from bursar.errors import ApiError, ErrorCode, unavailable
from bursar.http.exchange import Exchange
from bursar.ids import new_id

# Names, values and 32 bytes for each, as HTTP/2 counts them; the address too.
MAX_HEAD_BYTES: Final = 64 * 1024
_EACH_HEADER_BYTES: Final = 32
# Requests sent ahead, before the answer to the one before. Who sends more at once is answered that
# many, and then has to connect again.
_MAX_AHEAD: Final = 16
# How long a connection is still read after the last answer, so that it arrives.
LINGER_SECONDS: Final = 3

_AUTHORITY: Final = re.compile(rb"\A[^/?#]*")
_METHOD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ")

App = Callable[[Exchange], Awaitable[None]]

_log = structlog.get_logger()


class Keeper(Protocol):
    """The server, as far as a connection tells it how it fares."""

    app: App
    date: bytes
    is_stopping: bool

    def joins(self, connection: "Connection") -> bool:
        """Whether there is room for it."""
        ...

    def waits(self, connection: "Connection") -> None:
        """For a request, of which nothing is here."""
        ...

    def dawdles(self, connection: "Connection") -> None:
        """A part of a request's head is here."""
        ...

    def comes(self) -> None:
        """A request is here."""
        ...

    def begins(self, connection: "Connection") -> None:
        """It is answering a request."""
        ...

    def finishes(self) -> None:
        """A request is answered, or given up."""
        ...

    def stalls(self, connection: "Connection") -> None:
        """Its caller does not take what was written."""
        ...

    def flows(self, connection: "Connection") -> None: ...

    def ends(self, connection: "Connection") -> None:
        """The last answer is written."""
        ...

    def leaves(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        # One that the parser does not know.
        self._method: str | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._in_head = False
        # What came last, and how much came that brought nothing but parts of a head, or of what may
        # follow a body. The parser keeps such parts, so they are bounded.
        self._fed = 0
        self._spent = 0
        # Whether what the parser is fed is a head of ours, see `_go_on_without_upgrade`.
        self._continuing = False
        # The request whose body is arriving, the ones that wait for their turn, and the one that is
        # being answered.
        self._receiving: Exchange | None = None
        self._ahead: deque[Exchange] = deque()
        self._running: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        # Why nothing that comes after the requests so far can be read.
        self._fault: Callable[[], ApiError] | None = None
        self._is_reading = True
        # Whether the caller will send no more.
        self._reached_end = False
        # Set while the caller does not take what was written.
        self._unblocked: asyncio.Future[None] | None = None
        self.peer = ""
        self.is_lost = False
        # Whether the last answer is written. What still comes is thrown away.
        self.is_ended = False

    @property
    def date(self) -> bytes:
        return self._keeper.date

    @property
    def is_ending(self) -> bool:
        return self._keeper.is_stopping and not self._ahead

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    # What the event loop tells ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]
        name = transport.get_extra_info("peername")
        self.peer = name[0] if name else ""
        if self._keeper.joins(self):
            self._keeper.waits(self)
        else:
            self._say(unavailable("Too many connections are open: try again later."))
            self.close()

    def data_received(self, data: bytes) -> None:
        if self.is_ended or self._fault is not None:
            return
        self._fed = len(data)
        receiving = self._receiving
        before = 0 if receiving is None else receiving.size
        self._feed(data)
        still = receiving if receiving is self._receiving else None
        if self._in_head or (still is not None and still.size == before):
            self._spent += self._fed
            if self._spent > MAX_HEAD_BYTES:
                self._break(_head_too_large)
        self._go_on()

    def eof_received(self) -> bool:
        """A caller that has closed its half still gets its answers."""
        self._reached_end = True
        if self._receiving is not None:
            self._receiving.fail(_gone)
        if self.is_ended:
            return False
        self._go_on()
        return not self.is_ended

    def connection_lost(self, exc: Exception | None) -> None:
        """What is being done is done to its end: it may be a payment."""
        self.is_lost = self.is_ended = True
        self._give_up_ahead()
        if self._receiving is not None:
            self._receiving.fail(_gone)
            self._receiving = None
        # The parser knows its callbacks, which know it: such a circle would wait for the garbage
        # collector, which runs seldom.
        del self._parser
        self.resume_writing()
        self._keeper.leaves(self)

    def pause_writing(self) -> None:
        if self._unblocked is None:
            self._unblocked = asyncio.get_running_loop().create_future()
            self._keeper.stalls(self)

    def resume_writing(self) -> None:
        unblocked, self._unblocked = self._unblocked, None
        if unblocked is not None:
            unblocked.set_result(None)
            self._keeper.flows(self)
            # Not at once: the transport is in the middle of writing.
            asyncio.get_running_loop().call_soon(self._go_on)

    # What the parser tells --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._continuing:
            return
        if len(self._ahead) >= _MAX_AHEAD:
            raise _TooFarAheadError
        self._url = b""
        self._headers = {}
        self._head_bytes = 0
        # What came with it is not all its own, and no more than one reading of the socket.
        self._spent = -self._fed
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        if not self._continuing:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers, which come after the body, say nothing that is used here.
        if self._in_head:
            self._head_bytes += len(name) + len(value) + _EACH_HEADER_BYTES
            if self._head_bytes > MAX_HEAD_BYTES:
                raise _HeadTooLargeError
            name, value = name.lower(), value.rstrip(b" \t")
            if name == b"cookie" and name in self._headers:
                value = self._headers[name] + b"; " + value  # a proxy may part them
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self._continuing:
            self._continuing = False
            return
        self._in_head = False
        parser, url, headers = self._parser, self._url, self._headers
        if len(url) + self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLargeError
        path, _, query = (url if url.startswith(b"/") else _without_origin(url)).partition(b"?")
        if b"%" in path:
            path = unquote_to_bytes(path)
        is_modern = parser.get_http_version() == "1.1"
        self._receiving = Exchange(
            self,
            self._method or parser.get_method().decode("ascii"),
            path.decode("utf-8", "replace"),
            query,
            headers,
            keep_alive=is_modern and parser.should_keep_alive(),
            is_chunked=is_modern,
        )
        self._method = None
        self._ahead.append(self._receiving)
        self._keeper.comes()

    def on_body(self, piece: bytes) -> None:
        if self._receiving is not None:
            self._receiving.take(piece)

    def on_message_complete(self) -> None:
        if self._receiving is not None and not self._parser.should_upgrade():
            self._receiving.end()
            self._receiving = None

    def _feed(self, data: bytes) -> None:
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._go_on_without_upgrade()
        except httptools.HttpParserInvalidMethodError:
            self._feed_unknown_method(data)
        except httptools.HttpParserCallbackError as problem:
            if isinstance(problem.__context__, _TooFarAheadError):
                self._break(_too_far_ahead)
            elif isinstance(problem.__context__, _HeadTooLargeError):
                self._break(_head_too_large)
            else:
                raise
        except httptools.HttpParserError:
            self._break(_not_http)

    def _feed_unknown_method(self, data: bytes) -> None:
        """The parser knows the registered methods only. Any other may be sent, and is no more wrong
        than one that a path does not take, so it gets the same answer."""
        named = _METHOD.match(data)
        if named is None or self._method is not None or self._is_busy:
            self._break(_not_http)
            return
        self._method = named[1].decode("ascii")
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"POST" + data[named.end(1) :])

    @property
    def _is_busy(self) -> bool:
        """Whether any request is under way."""
        return bool(self._running or self._ahead or self._receiving)

    def _go_on_without_upgrade(self) -> None:
        """The caller offered another protocol, as Java's client does with its first request. The
        offer is ignored: what follows is the body, and the next request. The parser would leave
        both to that protocol, so another goes on, which is told how the body is framed."""
        exchange = self._receiving
        self._parser = httptools.HttpRequestParser(self)
        if exchange is None:
            return
        framed = [
            b"%b: %b\r\n" % (name, exchange.headers[name])
            for name in (b"content-length", b"transfer-encoding")
            if name in exchange.headers and exchange.method != "CONNECT"
        ]
        if exchange.method == "CONNECT":
            exchange.keep_alive = False
        self._continuing = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framed))

    def _break(self, problem: Callable[[], ApiError]) -> None:
        """Nothing more can be read. Requests that came before are answered."""
        self._fault = problem
        if self._receiving is not None:
            self._receiving.fail(problem)
            self._receiving.keep_alive = False
            self._receiving = None

    # From one request to the next -------------------------------------------------------------

    def _go_on(self) -> None:
        """Begins the next request, or waits for one, or ends the connection, once nothing is being
        answered and the caller has taken what was."""
        if self.is_ended:
            return
        if self._running is None and self._unblocked is None:
            if self._ahead:
                exchange = self._running = self._ahead.popleft()
                self._keeper.begins(self)
                self._task = asyncio.get_running_loop().create_task(self._answer(exchange))
            elif self._fault is not None:
                self._refuse(self._fault())
                return
            elif self._reached_end or self._keeper.is_stopping:
                self._end()
                return
            elif self._in_head:
                self._keeper.dawdles(self)
            else:
                self._keeper.waits(self)
        # What has to wait, or is not understood, is not read: it stays with the caller.
        self._read(not self._ahead and self._unblocked is None and self._fault is None)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._keeper.app(exchange)
        except Exception as problem:  # noqa: BLE001 - breaks this request only
            _log.error("request_broken", path=exchange.path, exc_info=problem)
        finally:
            self._running = self._task = None
            self._keeper.finishes()
            if not self.is_ended:
                self._go_on_after(exchange)

    def _go_on_after(self, exchange: Exchange) -> None:
        if exchange.is_answered and exchange.keep_alive:
            self._go_on()
        elif not exchange.is_begun:
            self._refuse(_broken(), exchange.method)
        elif _is_half_of_what_has_no_end(exchange):
            self._reset()
        else:
            self._end()

    def _read(self, wanted: bool) -> None:
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Writing, and the end ---------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.is_ended:
            self._transport.write(data)

    async def flushed(self) -> None:
        if self._unblocked is not None:
            await asyncio.shield(self._unblocked)
        if self.is_lost:
            raise ConnectionResetError("The caller closed the connection.")

    def close_idle(self) -> None:
        """Ends it if nothing is being answered, and nothing waits to be."""
        if self._running is None and not self._ahead and self._unblocked is None:
            self._end()

    def close(self) -> None:
        """At once, or when the rest is sent; what still comes is not waited for."""
        if self._running is not None and _is_half_of_what_has_no_end(self._running):
            self._reset()
        else:
            self.is_ended = True
            self._transport.close()

    def abort(self) -> None:
        """At once. Whoever does not get its whole answer can tell."""
        if self._running is not None or self.unsent_bytes:
            self._reset()
        else:
            self.is_ended = True
            self._transport.abort()

    def _reset(self) -> None:
        """The caller learns that something was lost; a connection that is closed just ends."""
        self.is_ended = True
        opened: socket.socket | None = self._transport.get_extra_info("socket")
        if opened is not None and not self.is_lost:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _refuse(self, problem: ApiError, method: str = "") -> None:
        self._say(problem, method)
        self._end()

    def _say(self, problem: ApiError, method: str = "") -> None:
        request_id = new_id("req")
        body = msgspec.json.encode(problem.body(request_id))
        refused = Exchange(self, method, "", b"", {}, keep_alive=False, is_chunked=True)
        headers = [
            (b"content-type", b"application/json"),
            (b"x-request-id", request_id.encode("ascii")),
            *(
                (name.lower().encode("ascii"), value.encode("ascii"))
                for name, value in problem.headers.items()
            ),
        ]
        refused.send(problem.code.status, headers, body)

    def _end(self) -> None:
        """Says that nothing more comes, and reads on for a moment: a connection that is closed on
        what was not read is reset, and the last answer may be lost with it."""
        if self.is_ended:
            return
        self.is_ended = True
        self._give_up_ahead()
        if self._reached_end:
            self._transport.close()
        else:
            with suppress(OSError):  # it is gone already, which the loop will tell
                self._transport.write_eof()
            self._read(True)
        self._keeper.ends(self)

    def _give_up_ahead(self) -> None:
        while self._ahead:
            self._ahead.pop()
            self._keeper.finishes()


class _TooFarAheadError(Exception):
    pass


class _HeadTooLargeError(Exception):
    pass


def _is_half_of_what_has_no_end(exchange: Exchange) -> bool:
    """Where the connection ends, such an answer does: only a reset tells that it is not whole."""
    return exchange.is_begun and not exchange.is_answered and not exchange.is_chunked


def _without_origin(url: bytes) -> bytes:
    """`http://host/path` as `/path`; what is neither of the two is at no path."""
    scheme, separator, rest = url.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return url
    path = _AUTHORITY.sub(b"", rest, count=1)
    return path if path.startswith(b"/") else b"/" + path


def _gone() -> ApiError:
    return ApiError(
        ErrorCode.VALIDATION_ERROR, "The connection closed before the body was complete."
    )


def _broken() -> ApiError:
    return ApiError(ErrorCode.INTERNAL_ERROR, "Something went wrong on our side; try again.")


def _not_http() -> ApiError:
    return ApiError(ErrorCode.VALIDATION_ERROR, "This is not a request that HTTP/1.1 allows.")


def _head_too_large() -> ApiError:
    return ApiError(
        ErrorCode.PAYLOAD_TOO_LARGE,
        f"Address and headers may have at most {MAX_HEAD_BYTES // 1024} KiB.",
    )


def _too_far_ahead() -> ApiError:
    return ApiError(
        ErrorCode.VALIDATION_ERROR,
        f"At most {_MAX_AHEAD} requests may be sent ahead of their answers.",
    )
