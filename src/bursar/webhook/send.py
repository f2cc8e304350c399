"""Makes one delivery attempt over HTTP: only to a checked address, bounded in time and size."""

import asyncio
import re
from functools import lru_cache, partial
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from bursar import __version__
from bursar.config import Config
from bursar.outbound.ask import Asker, Bounds
from bursar.outbound.failure import NoAnswer
from bursar.outbound.gate import Gate, Lookup
from bursar.outbound.line import Answer
from bursar.outbound.target import Allowed, TargetRefused, parse_target

CONNECT_SECONDS: Final = 5
# How much of an answer is read, and how much of that is kept to show. Only the status decides.
_READ_BYTES: Final = 4_096
_KEPT_CHARACTERS: Final = 1_000
_CACHED_TARGETS: Final = 4_096
_OURS: Final = (
    ("User-Agent", f"Bursar/{__version__}"),
    ("Accept", "*/*"),
    ("Content-Type", "application/json"),
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_log = structlog.get_logger()


def webhook_targets(config: Config) -> Allowed:
    return Allowed("BURSAR_WEBHOOKS_ALLOW", config.webhooks_allow)


class Outcome(msgspec.Struct, frozen=True):
    """`status` is None when there was no answer; then `error` says why."""

    status: int | None
    error: str | None = None
    response: str | None = None
    retry_after: str | None = None

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Sender:
    """Connects only to addresses that passed `check_address`, even if a name resolves differently
    later."""

    def __init__(self, allowed: Allowed, timeout_seconds: float, lookup: Lookup | None = None):
        self._timeout_seconds = timeout_seconds
        self._gate = Gate(allowed, lookup)
        self._asker = Asker(self._gate, reuses=("POST",))
        self._target = lru_cache(_CACHED_TARGETS)(partial(parse_target, allowed=allowed))

    async def close(self) -> None:
        self._asker.close()
        self._gate.shut()

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        """Never raises because of what a receiver or its name server does."""
        now = asyncio.get_running_loop().time()
        bounds = Bounds(now + CONNECT_SECONDS, now + self._timeout_seconds, _READ_BYTES)
        try:
            target = self._target(url)
            answer = await self._asker.ask("POST", target, (*_OURS, *headers.items()), body, bounds)
        except TargetRefused as problem:
            return Outcome(None, f"refused: the URL {problem}")
        except TimeoutError:
            return Outcome(None, f"no answer within {self._timeout_seconds:g} s")
        except NoAnswer as problem:
            # The log is the operator's and may name the address; the tenant must not learn internal
            # addresses.
            cause = problem.__cause__ or problem
            _log.info("webhook_attempt_failed", host=urlsplit(url).hostname, problem=repr(cause))
            return Outcome(None, str(problem))
        return _outcome(answer)


def _outcome(answer: Answer) -> Outcome:
    # The status stands even if the body is slow or breaks off.
    text = _printable(answer.body.decode("utf-8", "replace"))[:_KEPT_CHARACTERS]
    error = "redirects are not followed" if 300 <= answer.status < 400 else None
    retry_after = (value for name, value in answer.headers if name.lower() == b"retry-after")
    return Outcome(
        answer.status, error, text or None, next(retry_after, b"").decode("latin-1") or None
    )


def _printable(text: str) -> str:
    return _CONTROL.sub(" ", text)
