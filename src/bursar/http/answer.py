"""Sends an answer, and times and logs it, whether it comes from the API or from the console."""

from collections.abc import Awaitable

import structlog

from bursar.api.call import Stream
from bursar.clock import Clock
from bursar.http.request import Request, Send
from bursar.logs import AccessLog
from bursar.metrics import HttpMetrics

_log = structlog.get_logger()


class AnswerSender:
    def __init__(self, clock: Clock, log: AccessLog, metrics: HttpMetrics) -> None:
        self._clock = clock
        self._access_log = log
        self._metrics = metrics

    async def send(
        self, request: Request, status: int, sending: Awaitable[None], started_ns: int
    ) -> None:
        """Awaits `sending`, which sends the answer. `started_ns` is when the request arrived."""
        try:
            await sending
        except Exception as problem:  # noqa: BLE001 - the status was sent already
            # The body has no end, so the server breaks the connection: the caller cannot mistake
            # half an export for all of it.
            self._metrics.broken(request.route_name)
            _log.error(
                "answer_broken",
                request_id=request.id,
                route=request.route_name,
                exc_info=problem,
            )
        elapsed = self._clock.monotonic_ns() - started_ns
        self._metrics.observe(request.route_name, status, elapsed)
        self._access_log.write(request.id, request.key_id, request.route_name, status, elapsed)


async def send_stream(
    stream: Stream, request: Request, headers: list[tuple[bytes, bytes]], send: Send
) -> None:
    headers += [
        (b"content-type", stream.content_type.encode("ascii")),
        (b"content-disposition", f'attachment; filename="{stream.filename}"'.encode("ascii")),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if request.method != "HEAD":
        async for piece in stream.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
