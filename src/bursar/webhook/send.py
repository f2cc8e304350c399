"""One attempt over HTTP: to a checked address or to none, bounded in time and in size."""

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
# What is read of an answer, and what is kept of it to show. The status alone decides.
_READ_BYTES: Final = 4_096
_KEPT_CHARACTERS: Final = 1_000
# Name look-ups at once. Each blocks a thread. They have threads of their own, so that a name server
# that hangs cannot take the few that the event loop shares.
_LOOKUP_THREADS: Final = 128
_CACHED_TARGETS: Final = 4_096
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_log = structlog.get_logger()

# What a host resolves to: a list of textual addresses.
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
    """Connects only to addresses that passed `check_address`, whatever the names say meanwhile.

    `lookup` replaces the system's resolver, for tests of names that lie.
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
            # Receivers share nothing: no cookies. No proxy and no .netrc from the environment.
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            # A small answer that unpacks to a large one is not unpacked.
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
        """Never raises for what a receiver or its name server does."""
        try:
            target = self._target(url)
            address = URL(url, encoded=True)
            # Two readers of one text must not see two hosts.
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
            # The operator may read all of it; the tenant must not learn internal addresses.
            _log.info("webhook_attempt_failed", host=URL(url).host, problem=repr(problem))
            return Outcome(None, _reason(problem))

    def _parse(self, url: str) -> Target:
        return parse_target(url, self._allowed)

    async def _read(self, answer: aiohttp.ClientResponse) -> Outcome:
        body = b""
        # A body that comes too slowly or breaks off does not undo the status.
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
        # One look-up a host at a time: attempts that come meanwhile share it, and a name server
        # that hangs holds one thread, not all.
        self._running: dict[tuple[str, int], asyncio.Task[list[str]]] = {}
        # What hosts of BURSAR_WEBHOOKS_ALLOW resolved to. Few, because they are listed by hand.
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
            # One bad address spoils the answer: a good one beside it is a lure.
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
        """The last gate: addresses in URLs do not pass the resolver, but every socket is made
        here."""
        family, kind, proto, _, place = address
        if place[0] not in self._vouched:
            check_address("", place[0], self._allowed)
        opened = socket.socket(family, kind, proto)
        opened.setblocking(False)
        return opened

    async def close(self) -> None:
        """aiohttp asks for it; the owner calls `shut`."""

    def shut(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _looked_up(self, host: str, port: int, task: asyncio.Task[list[str]]) -> None:
        self._running.pop((host, port), None)
        if not task.cancelled():
            # The attempt may have given up waiting; asyncio logs a failure that is never fetched.
            task.exception()

    async def _ask_system(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _reason(problem: Exception) -> str:
    """Why there was no answer, in words that hold no address."""
    match problem:
        case aiohttp.ClientConnectorCertificateError():
            detail = getattr(problem.certificate_error, "verify_message", "")
            return f"Certificate not accepted: {detail}"
        case OSError(errno=int(number)):
            return f"no connection: {os.strerror(number)}"
        case OSError():
            return f"no connection ({type(problem).__name__})"
        case _:
            return f"no answer that is HTTP ({type(problem).__name__})"


def _printable(text: str) -> str:
    return _CONTROL.sub(" ", text)
