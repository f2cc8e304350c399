"""One connection to a stranger: a request goes out, an answer comes back, one after the other.

The parser is llhttp, maintained by others. What is here is what a parser leaves open: how much an
answer may weigh, and what its end means.
"""

import asyncio
import contextlib
import re
from typing import Final, NamedTuple

import httptools

from bursar.errors import check
from bursar.outbound.failure import NoAnswer, NotHttp, no_connection

# Of an answer's head: how many headers, how long one may be, how long the words behind the status,
# and all of it, answers in between included.
MOST_HEADERS: Final = 64
MOST_HEADER_BYTES: Final = 32 * 1024
_MOST_REASON_BYTES: Final = 8 * 1024
_MOST_HEAD_BYTES: Final = 160 * 1024

# What the parser lets through where it is told not to mind odd characters.
_BREAK: Final = re.compile(rb"[\r\n\x00]")
_FIRST: Final = 100
_SWITCHING_PROTOCOLS: Final = 101
_FIRST_FINAL: Final = 200


class Answer(NamedTuple):
    """As it came: nothing is unpacked, and no redirect was followed."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    # Whether the body was cut: too long, too slow, or broken off.
    truncated: bool


class Line(asyncio.Protocol):
    """A connection that `ask` may be called on as long as it `is_free`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._reading: _Reading | None = None
        self._is_open = True
        # By the event loop's clock: since when nothing is asked.
        self.free_since = 0.0
        # Whether anything came since something was asked.
        self.has_heard = False

    @property
    def is_free(self) -> bool:
        return self._is_open and self._reading is None

    async def ask(
        self, request: bytes, *, wants_body: bool, most_bytes: int, deadline: float
    ) -> Answer:
        """Raises NoAnswer, and TimeoutError by the event loop's clock. An answer whose body is not
        whole by then is one."""
        check(self._reading is None, "answers come one after the other")
        if not self._is_open:  # whoever speaks first, or leaves at once, is not asked
            raise NoAnswer("the connection ended before an answer")
        loop = asyncio.get_running_loop()
        reading = self._reading = _Reading(loop.create_future(), wants_body, most_bytes)
        self.has_heard = False
        late = loop.call_at(deadline, self._give_up)
        try:
            self._transport.write(request)
            return await reading.answer
        except BaseException:
            # Also when whoever asked is cancelled with the answer at hand: nobody else closes it.
            self.close()
            raise
        finally:
            late.cancel()
            self.free_since = loop.time()
            del reading  # it knows the failure, which knows this frame

    def close(self) -> None:
        """At once: nothing more is asked, and what still comes is of no use."""
        self._is_open = False
        self._let_go()
        self._transport.abort()

    # What the event loop tells ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        reading = self._reading
        if reading is None:  # nobody asked
            self.close()
            return
        self.has_heard = True
        reading.feed(data)
        if reading.answer.done():
            self._let_go()
            if not reading.may_go_on:
                self.close()

    def eof_received(self) -> None:
        # The connection is lost some turns of the event loop later. Until then nothing is asked.
        self._is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if self._reading is not None:
            self._reading.end(exc)
            self._let_go()

    def _give_up(self) -> None:
        if self._reading is not None:
            self._reading.stop()
        self.close()

    def _let_go(self) -> None:
        if self._reading is not None:
            self._reading.release()
            self._reading = None


class _Reading:
    """One answer while it arrives, as the parser tells it."""

    def __init__(self, answer: "asyncio.Future[Answer]", wants_body: bool, most_bytes: int) -> None:
        self.answer = answer
        # Whether another answer may follow on the same connection.
        self.may_go_on = False
        self._wants_body = wants_body
        self._most_bytes = most_bytes
        # Since something of a body came: heads, trailers, and what is around chunks.
        self._fed = 0
        self._reason_bytes = 0
        # 0 until the head is whole.
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        # Whether it is told where the body ends, other than by the end of the connection.
        self._is_delimited = False
        parser = self._parser = httptools.HttpResponseParser(self)
        # As other clients are: sellers and receivers that get their line ends or a header wrong are
        # heard by those too. How long an answer is stays strict.
        parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )

    def feed(self, data: bytes) -> None:
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(NotHttp("it changes the protocol"))
        except httptools.HttpParserError as problem:
            self._fail(_fault(problem))
        if self._fed > _MOST_HEAD_BYTES:
            self._too_long()

    def _too_long(self) -> None:
        if self._status:
            self._finish(truncated=True)
        else:
            self._fail(NotHttp("its head is too long"))

    def stop(self) -> None:
        """Its time is over."""
        if self._status:
            self._finish(truncated=True)
        else:
            self._fail(TimeoutError())

    def end(self, problem: Exception | None) -> None:
        """The connection is lost."""
        if self._status:
            self._finish(truncated=self._is_delimited or problem is not None)
        elif isinstance(problem, OSError):
            failure = no_connection(problem)
            failure.__cause__ = problem
            self._fail(failure)
        else:
            self._fail(NoAnswer("the connection ended before an answer"))

    def release(self) -> None:
        """It and its parser know each other, and the garbage collector seldom runs here."""
        with contextlib.suppress(AttributeError):
            del self._parser

    # What the parser tells ----------------------------------------------------------------------

    def on_status(self, reason: bytes) -> None:
        self._reason_bytes += len(reason)
        if self._reason_bytes > _MOST_REASON_BYTES:
            raise _Refused("its status line is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:  # a trailer
            return
        if len(self._headers) == MOST_HEADERS:
            raise _Refused("it has too many headers")
        if len(name) + len(value) > MOST_HEADER_BYTES:
            raise _Refused("a header is too long")
        if _BREAK.search(value):
            raise _Refused("a header has a break in it")
        name = name.rstrip(b" ")  # the parser minds it no more than others do
        self._headers.append((name, value))
        self._is_delimited |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == _SWITCHING_PROTOCOLS:
            raise _Refused("it changes the protocol")
        if status < _FIRST:  # the parser would take what follows for its body
            raise _Refused("its status is none")
        if status < _FIRST_FINAL:  # more follows
            self._headers.clear()
            self._is_delimited = False
            self._reason_bytes = 0
            return
        self._status = status
        if not self._wants_body:
            # Its length is that of an answer with a body, so the parser would wait for one.
            self._finish(truncated=False)

    def on_body(self, part: bytes) -> None:
        self._fed = 0
        self._body += part
        if len(self._body) > self._most_bytes:
            del self._body[self._most_bytes :]
            self._finish(truncated=True)

    def on_message_complete(self) -> None:
        if self._status:
            self.may_go_on = not self.answer.done() and self._parser.should_keep_alive()
            self._finish(truncated=False)

    def on_message_begin(self) -> None:
        # An answer that nobody asked for follows.
        self.may_go_on = False

    def _finish(self, *, truncated: bool) -> None:
        if not self.answer.done():
            body = bytes(self._body)
            self.answer.set_result(Answer(self._status, tuple(self._headers), body, truncated))

    def _fail(self, problem: Exception) -> None:
        self.may_go_on = False
        if not self.answer.done():
            self.answer.set_exception(problem)


class _Refused(Exception):
    pass


def _fault(problem: httptools.HttpParserError) -> NotHttp:
    """The parser hides what a callback raised behind an error of its own."""
    cause = problem.__context__ or problem.__cause__
    return NotHttp(str(cause) if isinstance(cause, _Refused) else type(problem).__name__)
