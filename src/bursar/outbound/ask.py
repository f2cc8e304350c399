"""Asks strangers over HTTP/1.1: once, only at addresses that passed, bounded in time and size."""

import asyncio
import contextlib
import re
import socket
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from bursar.errors import check
from bursar.outbound.failure import NoAnswer, no_connection
from bursar.outbound.gate import Gate
from bursar.outbound.line import Answer, Line
from bursar.outbound.target import Target

# How long a connection is kept for the next request.
_KEPT_SECONDS: Final = 15.0
# Those of which a request without a body says nothing about one.
_WITHOUT_BODY: Final = frozenset(("GET", "HEAD", "OPTIONS"))
# Those that a server takes twice as it takes them once, if it keeps to HTTP.
REPEATABLE: Final = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))
_BREAK: Final = re.compile(r"[\r\n\x00]")

Headers = Sequence[tuple[str, str]]


class Bounds(NamedTuple):
    """By the event loop's clock. What comes after `most_bytes` of a body is not read."""

    connected: float
    answered: float
    most_bytes: int


class Asker:
    """Its connections are its own: those who must not share one have an asker each. `reuses`: the
    methods that are asked over one that was kept. It may end at any time, and what was just sent is
    lost with it."""

    def __init__(self, gate: Gate, reuses: Collection[str]) -> None:
        self._gate = gate
        self._reuses = reuses
        # The one that was used last is taken first, so that the others may end.
        self._free: dict[tuple[str, int, bool], list[Line]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def close(self) -> None:
        """What is being asked goes on, and is not kept."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for line in [line for lines in self._free.values() for line in lines]:
            line.close()
        self._free.clear()

    async def ask(
        self, method: str, target: Target, headers: Headers, body: bytes, bounds: Bounds
    ) -> Answer:
        """Follows no redirect, and asks once: whoever did not hear an answer may still have got the
        request. Once more only what may be repeated, where a kept connection ended without a word:
        that may have been while nothing was asked. Raises TargetRefused, NoAnswer and
        TimeoutError."""
        request = _request(method, target, headers, body)
        wants_body = method != "HEAD"
        kept = self._kept(target) if method in self._reuses else None
        if kept is not None:
            try:
                return await self._asked(kept, target, request, wants_body, bounds)
            except NoAnswer:
                if kept.has_heard or method not in REPEATABLE:
                    raise
        line = await self._connected(target, bounds)
        return await self._asked(line, target, request, wants_body, bounds)

    async def _asked(
        self, line: Line, target: Target, request: bytes, wants_body: bool, bounds: Bounds
    ) -> Answer:
        answer = await line.ask(
            request,
            wants_body=wants_body,
            most_bytes=bounds.most_bytes,
            deadline=bounds.answered,
        )
        if line.is_free and not self._is_closed:
            self._keep(target, line)
        else:
            line.close()
        return answer

    async def _connected(self, target: Target, bounds: Bounds) -> Line:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(min(bounds.connected, bounds.answered)):
            opened = await self._gate.connect(target.host, target.port)
            try:
                _, line = await loop.create_connection(
                    Line,
                    sock=opened,
                    ssl=self._gate.tls if target.is_tls else None,
                    server_hostname=target.host.removesuffix(".") if target.is_tls else None,
                )
            except OSError as problem:
                raise no_connection(problem) from problem
            except BaseException:
                # Cancelled before a handshake begins, the event loop goes on with it and has the
                # socket: it must not be closed under it. Of a cut one it makes an end itself.
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
                raise
        return line

    # What is kept -------------------------------------------------------------------------------

    def _kept(self, target: Target) -> Line | None:
        lines = self._free.get((target.host, target.port, target.is_tls))
        while lines:
            line = lines.pop()
            if line.is_free:
                return line
        return None

    def _keep(self, target: Target, line: Line) -> None:
        self._free.setdefault((target.host, target.port, target.is_tls), []).append(line)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._let_go)

    def _let_go(self) -> None:
        """Closes what was not used for long, and looks again as long as anything is kept."""
        loop = asyncio.get_running_loop()
        old = loop.time() - _KEPT_SECONDS
        for place, lines in list(self._free.items()):
            stay = [line for line in lines if line.is_free and line.free_since > old]
            for line in lines:
                if line not in stay:
                    line.close()
            if stay:
                self._free[place] = stay
            else:
                del self._free[place]
        self._sweep = loop.call_later(_KEPT_SECONDS / 3, self._let_go) if self._free else None


def _request(method: str, target: Target, headers: Headers, body: bytes) -> bytes:
    host = f"[{target.host}]" if ":" in target.host else target.host.removesuffix(".")
    port = "" if target.port == target.usual_port else f":{target.port}"
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {host}{port}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method not in _WITHOUT_BODY:
        lines.append(f"Content-Length: {len(body)}")
    check(not any(map(_BREAK.search, lines)), "a line of a request is one line")
    return "\r\n".join((*lines, "", "")).encode() + body
