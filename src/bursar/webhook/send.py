"""Makes one delivery attempt over HTTP: only to a checked address, bounded in time and size."""

import contextlib
import re
from functools import lru_cache
from typing import Final

import aiohttp
import msgspec
import structlog
from yarl import URL

from bursar import __version__
from bursar.config import Config
from bursar.errors import check
from bursar.outbound.failure import reason_of
from bursar.outbound.gate import Gate, Lookup
from bursar.outbound.target import Allowed, TargetRefused, parse_target

CONNECT_SECONDS: Final = 5
# How much of an answer is read, and how much of that is kept to show. Only the status decides.
_READ_BYTES: Final = 4_096
_KEPT_CHARACTERS: Final = 1_000
_CACHED_TARGETS: Final = 4_096
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
        self._allowed = allowed
        self._timeout_seconds = timeout_seconds
        self._gate = Gate(allowed, lookup)
        self._session = aiohttp.ClientSession(
            # The worker bounds how many run at once.
            connector=self._gate.connector(limit=0),
            # No cookies, so that receivers share nothing; no proxy and no .netrc from the
            # environment.
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            # A small answer could unpack to a huge one.
            auto_decompress=False,
            headers={"User-Agent": f"Bursar/{__version__}", "Content-Type": "application/json"},
            skip_auto_headers=("Accept-Encoding",),
            timeout=aiohttp.ClientTimeout(
                total=timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds)
            ),
        )
        self._address = lru_cache(_CACHED_TARGETS)(self._checked)

    async def close(self) -> None:
        await self._session.close()
        self._gate.shut()

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        """Never raises because of what a receiver or its name server does."""
        try:
            async with self._session.post(
                self._address(url), data=body, headers=headers, allow_redirects=False
            ) as answer:
                return await self._read(answer)
        except TargetRefused as problem:
            return Outcome(None, f"refused: the URL {problem}")
        except TimeoutError:
            return Outcome(None, f"no answer within {self._timeout_seconds:g} s")
        except aiohttp.ClientConnectorDNSError as problem:
            return Outcome(None, reason_of(problem))
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            # The log is the operator's and may name the address; the tenant must not learn internal
            # addresses.
            _log.info("webhook_attempt_failed", host=URL(url).host, problem=repr(problem))
            return Outcome(None, reason_of(problem))

    def _checked(self, url: str) -> URL:
        target, address = parse_target(url, self._allowed), URL(url, encoded=True)
        # Our parser and aiohttp's must read the same host from the same URL.
        check((address.host or "").lower() == target.host, "the host that was checked is used")
        check(address.port == target.port, "the port that was checked is used")
        return address

    async def _read(self, answer: aiohttp.ClientResponse) -> Outcome:
        body = b""
        # The status stands even if the body is slow or breaks off.
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            while len(body) < _READ_BYTES and not answer.content.at_eof():
                body += await answer.content.read(_READ_BYTES - len(body))
        text = _printable(body.decode("utf-8", "replace"))[:_KEPT_CHARACTERS]
        error = None
        if 300 <= answer.status < 400:
            error = "redirects are not followed"
        return Outcome(answer.status, error, text or None, answer.headers.get("Retry-After"))


def _printable(text: str) -> str:
    return _CONTROL.sub(" ", text)
