"""JSON lines on standard error: what happened, never a secret, a body or a header."""

import logging
import re
import sys
import traceback
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_encoder = msgspec.json.Encoder()


def set_up_logs(level: str, process: str) -> None:
    """Call once at the start of a process. `process` is its name in every line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(_traceback),
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(serializer=_to_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    # Libraries speak through the standard logger; their warnings are worth a line, no more.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _OneLine(logging.Formatter):
    """What a library says, as a line of JSON: of an error only its kind."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _SECRET.sub("…", record.getMessage()),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["problem"] = record.exc_info[0].__name__
        return _to_json(line)


def _traceback(exc_info: Any) -> str:
    """Where it happened and what kind of error: never the values that were at hand.

    PostgreSQL's details quote whole rows, and messages of other errors may quote a key.
    """
    kind, problem, trace = exc_info
    lines = traceback.format_tb(trace, limit=_MOST_FRAMES)
    message = str(problem).partition("\n")[0][:200]
    return "".join([*lines, f"{kind.__name__}: {_SECRET.sub('…', message)}"])


_MOST_FRAMES: Final = 30
# API keys, webhook secrets, and anything as long as a private key.
_SECRET: Final = re.compile(r"bur_(?:test|live)_\w+|whsec_\S+|[A-Za-z0-9+/]{60,}={0,2}")


def _to_json(line: Any, **_: Any) -> str:
    return _encoder.encode(line).decode()


class RequestLine(msgspec.Struct, kw_only=True):
    message: str = "request"
    level: str = "info"
    timestamp: datetime
    request_id: str
    key_id: str | None
    route: str
    status: int
    latency_ms: float


def write_requests(lines: Iterable[RequestLine]) -> None:
    """Many at once, because a write for each would cost more than the request."""
    sys.stderr.buffer.write(_encoder.encode_lines(lines))
    sys.stderr.buffer.flush()
