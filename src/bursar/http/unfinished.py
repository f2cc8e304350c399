"""Requests whose body is still on its way, bounded in number per peer: who announces bodies and
sends none must not be able to use up the connections of all others."""

from collections import Counter
from collections.abc import MutableMapping
from typing import Any, Final

import msgspec

from bursar.errors import unavailable
from bursar.http.peer import Proxies, peer_of
from bursar.http.request import AsgiScope, Receive, Send, request_id

_CLOSED: Final = (b"connection", b"close")


class Unfinished:
    def __init__(self, most: int, proxies: Proxies) -> None:
        self._most = most
        self._proxies = proxies
        self._count: Counter[str] = Counter()

    def watch(self, scope: AsgiScope, receive: Receive) -> "Watched | None":
        """None: this peer has too many. Whoever got one calls `end` when the request is over."""
        peer = peer_of(scope)
        if self._count[peer] >= self._most and not self._proxies.is_one(peer):
            return None
        self._count[peer] += 1
        return Watched(self._count, peer, _announced(scope), receive)


class Watched:
    """One such request: counted until the last of its body is here."""

    __slots__ = ("_count", "_left", "_peer", "_receive")

    def __init__(self, count: Counter[str], peer: str, left: int | None, receive: Receive) -> None:
        self._count = count
        self._peer: str | None = peer
        self._left = left
        self._receive = receive

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
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
    """At once and without reading on: what is refused here would only be waited for."""
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
