"""Bounds how many requests with an unfinished body each peer may have: a peer that announces bodies
and sends none must not use up everybody's connections."""

import asyncio
from collections import Counter
from collections.abc import MutableMapping
from typing import Any, Final

import msgspec

from bursar.errors import unavailable
from bursar.http.peer import Proxies, peer_of
from bursar.http.request import AsgiScope, Receive, Send, request_id

_CLOSED: Final = (b"connection", b"close")
# How long a request beyond the bound may take to send its first byte. An honest burst of requests
# has done so by then; a silent peer has not.
_CROWDED_SECONDS: Final = 1.0


class Unfinished:
    def __init__(self, most: int, proxies: Proxies) -> None:
        self._most = most
        self._proxies = proxies
        self._count: Counter[str] = Counter()

    def watch(self, scope: AsgiScope, receive: Receive) -> "Watched":
        """The caller must call `end` when the request is over."""
        peer = peer_of(scope)
        crowded = self._count[peer] >= self._most and not self._proxies.is_one(peer)
        self._count[peer] += 1
        return Watched(self._count, peer, _announced(scope), receive, crowded)


class Watched:
    """One request, counted until its body is complete."""

    __slots__ = ("_count", "_first", "_left", "_peer", "_receive", "crowded")

    def __init__(
        self,
        count: Counter[str],
        peer: str,
        left: int | None,
        receive: Receive,
        crowded: bool,
    ) -> None:
        # Whether its peer had too many unfinished requests when it arrived.
        self.crowded = crowded
        self._count = count
        self._peer: str | None = peer
        self._left = left
        self._receive = receive
        self._first: MutableMapping[str, Any] | None = None

    async def begins(self) -> bool:
        """Whether the body's first byte arrives in time."""
        try:
            async with asyncio.timeout(_CROWDED_SECONDS):
                self._first = await self._receive()
        except TimeoutError:
            return False
        return True

    async def receive(self) -> MutableMapping[str, Any]:
        message, self._first = self._first or await self._receive(), None
        if self._left is not None:
            self._left -= len(message.get("body", b""))
        if not message.get("more_body", False) or self._left == 0:
            self.end()
        return message

    def end(self) -> None:
        if self._peer is None:
            return
        self._count[self._peer] -= 1
        if not self._count[self._peer]:
            del self._count[self._peer]
        self._peer = None


async def refuse(scope: AsgiScope, send: Send) -> None:
    """Answers without reading the body, which may never come."""
    problem = unavailable("Too many requests of yours are unfinished: send their bodies first.")
    name = request_id(dict(scope["headers"]))
    body = msgspec.json.encode(problem.body(name))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", name.encode("ascii")),
        (b"retry-after", b"1"),
        _CLOSED,
    ]
    await send({"type": "http.response.start", "status": problem.code.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def has_body(scope: AsgiScope) -> bool:
    return any(
        (name == b"content-length" and value != b"0") or name == b"transfer-encoding"
        for name, value in scope["headers"]
    )


def _announced(scope: AsgiScope) -> int | None:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length[:20]) if length.isdigit() else None
