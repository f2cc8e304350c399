"""Makes one delivery attempt over HTTP: only to a checked address, bounded in time and size."""

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from bursar import __version__
from bursar.errors import check
from bursar.webhook.target import Allowed, Target, TargetRefused, check_address, parse_target

CONNECT_SECONDS: Final = 5
# How much of an answer is read, and how much of that is kept to show. Only the status decides.
_READ_BYTES: Final = 4_096
_KEPT_CHARACTERS: Final = 1_000
# Name look-ups at once. Each blocks a thread. They have their own threads, so that a name server
# that hangs cannot block the few that the event loop uses for everything else.
_LOOKUP_THREADS: Final = 128
_CACHED_TARGETS: Final = 4_096
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_log = structlog.get_logger()

# Resolves a host to a list of addresses, as text.
Lookup = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class Outcome:
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
    later.

    Tests replace the system's resolver by `lookup`, to make names resolve to forbidden addresses.
    """

    def __init__(self, allowed: Allowed, timeout_seconds: float, lookup: Lookup | None = None):
        self._allowed = allowed
        self._timeout_seconds = timeout_seconds
        self._gate = _Gate(allowed, lookup)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                # The worker bounds how many run at once.
                limit=0,
                resolver=self._gate,
                use_dns_cache=False,
                socket_factory=self._gate.open_socket,
                ssl=ssl.create_default_context(),
            ),
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
        self._target = lru_cache(_CACHED_TARGETS)(self._parse)

    async def close(self) -> None:
        await self._session.close()
        self._gate.shut()

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        """Never raises because of what a receiver or its name server does."""
        try:
            target = self._target(url)
            address = URL(url, encoded=True)
            # Our parser and aiohttp's must read the same host from the same URL.
            check((address.host or "").lower() == target.host, "the host that was checked is used")
            check(address.port == target.port, "the port that was checked is used")
            async with self._session.post(
                address, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return await self._read(answer)
        except TargetRefused as problem:
            return Outcome(None, f"refused: the URL {problem}")
        except TimeoutError:
            return Outcome(None, f"no answer within {self._timeout_seconds:g} s")
        except aiohttp.ClientConnectorDNSError:
            return Outcome(None, "the host cannot be resolved")
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            # The log is the operator's and may name the address; the tenant must not learn internal
            # addresses.
            _log.info("webhook_attempt_failed", host=URL(url).host, problem=repr(problem))
            return Outcome(None, _reason(problem))

    def _parse(self, url: str) -> Target:
        return parse_target(url, self._allowed)

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


class _Gate(AbstractResolver):
    """Resolves a host once and checks every address; opens sockets to nothing else."""

    def __init__(self, allowed: Allowed, lookup: Lookup | None) -> None:
        self._allowed = allowed
        self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, "webhook-lookup")
        self._lookup = lookup or self._ask_system
        # One look-up per host at a time. Attempts that arrive meanwhile share it, so a name server
        # that hangs blocks one thread and not all.
        self._running: dict[tuple[str, int], asyncio.Task[list[str]]] = {}
        # What the hosts in BURSAR_WEBHOOKS_ALLOW resolved to. They are listed by hand, so they are
        # few.
        self._vouched: set[str] = set()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        del family
        task = self._running.get((host, port))
        if task is None:
            task = self._running[host, port] = asyncio.ensure_future(self._lookup(host, port))
            task.add_done_callback(lambda ended: self._looked_up(host, port, ended))
        addresses = await asyncio.shield(task)
        if not addresses:
            raise OSError(f"{host} has no address")
        for address in addresses:
            # One forbidden address refuses the host, even beside allowed ones: an attacker could
            # add those as bait.
            check_address(host, address, self._allowed)
        if self._allowed.host(host):
            self._vouched.update(addresses)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    def open_socket(self, address: Any) -> socket.socket:
        """Checks once more. A URL with a literal address skips the resolver, but every socket is
        made here."""
        family, kind, proto, _, place = address
        if place[0] not in self._vouched:
            check_address("", place[0], self._allowed)
        opened = socket.socket(family, kind, proto)
        opened.setblocking(False)
        return opened

    async def close(self) -> None:
        """Part of aiohttp's interface. Does nothing: the owner calls `shut`."""

    def shut(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _looked_up(self, host: str, port: int, task: asyncio.Task[list[str]]) -> None:
        self._running.pop((host, port), None)
        if not task.cancelled():
            # If every attempt has given up waiting, nobody fetches the failure, and asyncio would
            # log it.
            task.exception()

    async def _ask_system(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _reason(problem: Exception) -> str:
    """Why there was no answer, without naming an address."""
    match problem:
        case aiohttp.ClientConnectorCertificateError():
            detail = getattr(problem.certificate_error, "verify_message", "")
            return f"Certificate not accepted: {detail}"
        case OSError(errno=int(number)):
            return f"no connection: {os.strerror(number)}"
        case OSError():
            return f"no connection ({type(problem).__name__})"
        case _:
            return f"the answer is not HTTP ({type(problem).__name__})"


def _printable(text: str) -> str:
    return _CONTROL.sub(" ", text)
