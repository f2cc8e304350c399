"""Counts and logs answers, whether they come from the API or from the console, and sends the long
ones."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from bursar.api.call import Stream
from bursar.clock import Clock
from bursar.http.request import Request
from bursar.logs import RequestLine, write_requests
from bursar.metrics import HttpMetrics

# Answers are counted and logged in bulk: as soon as there are this many, or after this long.
_GATHER: Final = 500
_GATHER_SECONDS: Final = 0.1

_log = structlog.get_logger()


class _Answered(msgspec.Struct, frozen=True):
    request_id: str
    key_id: str | None
    route: str
    status: int
    elapsed_ns: int
    at_ns: int


class Answers:
    def __init__(self, clock: Clock, *, logs: bool) -> None:
        self._clock = clock
        self._logs = logs
        self._answered: list[_Answered] = []

    async def stream(
        self,
        request: Request,
        stream: Stream,
        headers: Sequence[tuple[bytes, bytes]],
        started_ns: int,
    ) -> None:
        """Sends an answer piece by piece. `started_ns` is when the request arrived."""
        headers = (
            *headers,
            (b"content-type", stream.content_type.encode("ascii")),
            (b"content-disposition", f'attachment; filename="{stream.filename}"'.encode("ascii")),
            (b"cache-control", b"no-store"),
        )
        try:
            await request.exchange.stream(200, headers, stream.pieces)
        except Exception as problem:  # noqa: BLE001 - the status was sent already
            has_hung_up = isinstance(problem, ConnectionResetError) and request.exchange.is_lost
            if not has_hung_up:
                # The body has no end, so the caller cannot mistake half an export for all of it.
                HttpMetrics.broken(request.route_name)
                _log.error(
                    "answer_broken",
                    request_id=request.id,
                    route=request.route_name,
                    exc_info=problem,
                )
        self.note(request, 200, started_ns)

    def note(self, request: Request, status: int, started_ns: int) -> None:
        """Counts and logs an answer that was sent."""
        now = self._clock.monotonic_ns()
        self._answered.append(
            _Answered(request.id, request.key_id, request.route_name, status, now - started_ns, now)
        )
        if len(self._answered) == 1:
            asyncio.get_running_loop().call_later(_GATHER_SECONDS, self.flush)
        elif len(self._answered) >= _GATHER:
            self.flush()

    def flush(self) -> None:
        """Counts and logs what has gathered."""
        gathered, self._answered = self._answered, []
        if not gathered:
            return
        times: dict[tuple[str, int], list[float]] = {}
        for one in gathered:
            times.setdefault((one.route, one.status), []).append(one.elapsed_ns / 1e9)
        for (route, status), seconds in times.items():
            HttpMetrics.answered(route, status, seconds)
        if self._logs:
            now, now_ns = self._clock.now(), self._clock.monotonic_ns()
            write_requests(
                RequestLine(
                    timestamp=now - timedelta(microseconds=(now_ns - one.at_ns) // 1_000),
                    request_id=one.request_id,
                    key_id=one.key_id,
                    route=one.route,
                    status=one.status,
                    latency_ms=one.elapsed_ns // 1_000 / 1_000,
                )
                for one in gathered
            )
