"""The raw request from the server: headers, and a body of bounded size."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from bursar.errors import ApiError, ErrorCode
from bursar.form.strict_json import MAX_BODY_BYTES
from bursar.ids import new_id

if TYPE_CHECKING:
    from bursar.access.limits import Verdict

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# What a caller may send as its request id. It appears in logs and headers, so the pattern keeps out
# an API key sent by mistake.
_REQUEST_ID = re.compile(r"(?!bur_)[A-Za-z0-9._:-]{1,100}", re.ASCII)
# How much of a refused body is still read, and for how long, so that the caller gets its answer.
_DISCARD_BYTES: Final = 16 * MAX_BODY_BYTES
_DISCARD_SECONDS: Final = 5


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's own request id if it is well-formed, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(own := given.decode("latin-1")):
        return own
    return new_id("req")


def announced(headers: Mapping[bytes, bytes]) -> int | None:
    """The declared length of the body; None when it comes in chunks."""
    length = headers.get(b"content-length", b"")
    return int(length[:20]) if length.isdigit() else None


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


class Request:
    """The raw request, and what is known about it so far, for the log."""

    __slots__ = ("_receive", "headers", "id", "key_id", "method", "path", "route_name", "scope",
                 "unread", "verdict")  # fmt: skip

    def __init__(self, scope: AsgiScope, headers: Mapping[bytes, bytes], receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = headers
        self.id = request_id(headers)
        self.route_name = "unknown"
        self.key_id: str | None = None
        self.verdict: Verdict | None = None
        self.unread = has_body(headers)
        self._receive = receive

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def read_body(self) -> bytes:
        """The whole body. It is refused as soon as it is too large."""
        length = announced(self.headers)
        if length is not None and length > MAX_BODY_BYTES:
            raise _too_large()
        pieces: list[bytes] = []
        size = 0
        while self.unread:
            piece = await self._piece()
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise _too_large()
            if size == length:
                # The body is complete by its declared length. Awaiting the server's end mark would
                # double the cost of reading a request.
                self.unread = False
        return b"".join(pieces)

    async def _piece(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            self.unread = False
            raise ApiError(
                ErrorCode.VALIDATION_ERROR, "The connection closed before the body was complete."
            )
        self.unread = message.get("more_body", False)
        return message.get("body", b"")

    async def discard_rest(self) -> None:
        """Reads on after a refusal: closing a connection with unread data would lose the answer."""
        if not self.unread:
            return
        size = 0
        with contextlib.suppress(TimeoutError, ApiError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while self.unread and size < _DISCARD_BYTES:
                    size += len(await self._piece())


def _too_large() -> ApiError:
    return ApiError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"The body may have at most {MAX_BODY_BYTES // 1024} KiB."
    )
