"""Bounds how many requests with an unfinished body each peer may have, and for how long: a peer
that announces bodies and sends none must not use up everybody's connections."""

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import msgspec

from bursar.clock import Clock
from bursar.errors import ApiError, ErrorCode, unavailable
from bursar.http.peer import Proxies, peer_of
from bursar.http.request import AsgiScope, Receive, Send, announced, request_id

_CLOSED: Final = (b"connection", b"close")
# How long a request beyond the bound may take to send its first byte. An honest burst of requests
# has done so by then; a silent peer has not.
_CROWDED_SECONDS: Final = 1.0
_BODY_SECONDS: Final = 30
# How often bodies that take longer are looked for. A timer for each request would cost more than
# reading its body.
_LOOK_SECONDS: Final = 1.0


class Unfinished:
    def __init__(self, most: int, proxies: Proxies, clock: Clock) -> None:
        self._most = most
        self._proxies = proxies
        self._clock = clock
        self._count: dict[str, int] = {}
        # Oldest first.
        self._watched: dict[Watched, None] = {}

    def watch(
        self, scope: AsgiScope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> "Watched":
        """The caller must call `end` when the request is over."""
        peer = peer_of(scope)
        count = self._count.get(peer, 0)
        self._count[peer] = count + 1
        watched = Watched(self, peer, announced(headers), receive, self._clock.monotonic_ns())
        watched.crowded = count >= self._most and not self._proxies.is_one(peer)
        self._watched[watched] = None
        return watched

    def forget(self, watched: "Watched") -> None:
        if watched not in self._watched:
            return
        del self._watched[watched]
        count = self._count[watched.peer] - 1
        if count:
            self._count[watched.peer] = count
        else:
            del self._count[watched.peer]

    async def end_late_ones(self) -> None:
        """Gives up on bodies that take too long. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            latest = self._clock.monotonic_ns() - int(_BODY_SECONDS * 1e9)
            for watched in list(self._watched):
                if watched.since_ns > latest:
                    break
                watched.give_up()


class Watched:
    """One request, counted until its body is complete."""

    __slots__ = ("_all", "_first", "_is_late", "_left", "_reader", "_receive", "crowded", "peer",
                 "since_ns")  # fmt: skip

    def __init__(
        self, all_: Unfinished, peer: str, left: int | None, receive: Receive, since_ns: int
    ) -> None:
        # Whether its peer had too many unfinished requests when it arrived.
        self.crowded = False
        self.peer = peer
        self.since_ns = since_ns
        self._all = all_
        self._left = left
        self._receive = receive
        self._first: MutableMapping[str, Any] | None = None
        # The task that is waiting for the next piece now.
        self._reader: asyncio.Task[Any] | None = None
        self._is_late = False

    async def begins(self) -> bool:
        """Whether the body's first byte arrives in time."""
        try:
            async with asyncio.timeout(_CROWDED_SECONDS):
                self._first = await self._receive()
        except TimeoutError:
            return False
        return True

    async def receive(self) -> MutableMapping[str, Any]:
        """The next piece. Raises ApiError when the whole takes too long."""
        message, self._first = self._first, None
        if message is None:
            if self._is_late:
                raise _late()
            reader = self._reader = asyncio.current_task()
            try:
                message = await self._receive()
            except asyncio.CancelledError:
                # As in `asyncio.timeout`: if nobody else cancelled the task too, the body is late.
                if reader is not None and self._is_late and reader.uncancel() == 0:
                    raise _late() from None
                raise
            finally:
                self._reader = None
        if self._left is not None:
            self._left -= len(message.get("body", b""))
        if not message.get("more_body", False) or self._left == 0:
            self.end()
        return message

    def give_up(self) -> None:
        self.end()
        self._is_late = True
        if self._reader is not None:
            self._reader.cancel()

    def end(self) -> None:
        self._all.forget(self)


def _late() -> ApiError:
    return ApiError(
        ErrorCode.VALIDATION_ERROR, f"The body did not arrive within {_BODY_SECONDS} s."
    )


async def refuse(headers: Mapping[bytes, bytes], send: Send) -> None:
    """Answers without reading the body, which may never come."""
    problem = unavailable("Too many requests of yours are unfinished: send their bodies first.")
    name = request_id(headers)
    body = msgspec.json.encode(problem.body(name))
    answer = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", name.encode("ascii")),
        (b"retry-after", b"1"),
        _CLOSED,
    ]
    await send({"type": "http.response.start", "status": problem.code.status, "headers": answer})
    await send({"type": "http.response.body", "body": body})
