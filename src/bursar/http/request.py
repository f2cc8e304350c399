"""The raw request from the server: headers, and a body of bounded size and duration."""

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
_BODY_SECONDS: Final = 30
# How much of a refused body is still read, and for how long, so that the caller gets its answer.
_DISCARD_BYTES: Final = 16 * MAX_BODY_BYTES
_DISCARD_SECONDS: Final = 5


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's own request id if it is well-formed, else a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else new_id("req")


class Request:
    """The raw request, and what is known about it so far, for the log."""

    __slots__ = ("_receive", "_unread", "headers", "id", "key_id", "method", "path",
                 "route_name", "scope", "verdict")  # fmt: skip

    def __init__(self, scope: AsgiScope, receive: Receive, headers: dict[bytes, bytes]) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.route_name = "unknown"
        self.key_id: str | None = None
        self.verdict: Verdict | None = None
        self._receive = receive
        self.headers = headers
        self._unread = headers.get(b"content-length", b"0") != b"0" or (
            b"transfer-encoding" in headers
        )
        self.id = request_id(headers)

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def read_body(self) -> bytes:
        """The whole body. It is refused as soon as it is too large or too slow."""
        length = self.headers.get(b"content-length", b"")
        announced = int(length[:20]) if length.isdigit() else None
        if announced is not None and announced > MAX_BODY_BYTES:
            raise _too_large()
        if not self._unread:
            return b""
        body = await self._read_all(announced)
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        return body

    async def _read_all(self, announced: int | None) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            # The deadline covers the first byte too: a client that announces a body and sends none
            # must not keep the connection.
            async with asyncio.timeout(_BODY_SECONDS):
                while self._unread and size <= MAX_BODY_BYTES:
                    chunks.append(await self._chunk())
                    size += len(chunks[-1])
                    if size == announced:
                        # The body is complete by its declared length. Awaiting the server's end
                        # mark would double the cost of reading a request.
                        self._unread = False
        except TimeoutError:
            raise ApiError(
                ErrorCode.VALIDATION_ERROR, f"The body did not arrive within {_BODY_SECONDS} s."
            ) from None
        return b"".join(chunks)

    async def _chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            self._unread = False
            raise ApiError(
                ErrorCode.VALIDATION_ERROR, "The connection closed before the body was complete."
            )
        self._unread = message.get("more_body", False)
        return message.get("body", b"")

    async def discard_rest(self) -> None:
        """Reads on after a refusal: closing a connection with unread data would lose the answer."""
        if not self._unread:
            return
        size = 0
        with contextlib.suppress(TimeoutError, ApiError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while self._unread and size < _DISCARD_BYTES:
                    size += len(await self._chunk())


def _too_large() -> ApiError:
    return ApiError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"The body may have at most {MAX_BODY_BYTES // 1024} KiB."
    )
