"""The only way out to strangers: to addresses that passed, even if a name resolves differently
later."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from bursar.outbound.target import Allowed, check_address

# Name look-ups at once. Each blocks a thread. They have their own threads, so that a name server
# that hangs cannot block the few that the event loop uses for everything else.
_LOOKUP_THREADS: Final = 128

# Resolves a host to a list of addresses, as text.
Lookup = Callable[[str, int], Awaitable[list[str]]]


class Gate(AbstractResolver):
    """Resolves a host once and checks every address; opens sockets to nothing else.

    Tests replace the system's resolver by `lookup`, to make names resolve to forbidden addresses.
    """

    def __init__(self, allowed: Allowed, lookup: Lookup | None = None) -> None:
        self._allowed = allowed
        self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, "lookup")
        self._lookup = lookup or self._ask_system
        # One look-up per host at a time. Attempts that arrive meanwhile share it, so a name server
        # that hangs blocks one thread and not all.
        self._running: dict[tuple[str, int], asyncio.Task[list[str]]] = {}
        # What the hosts that the setting lists resolved to. They are listed by hand, so they are
        # few.
        self._vouched: set[str] = set()

    def connector(
        self, *, limit: int, limit_per_host: int = 0, force_close: bool = False
    ) -> TCPConnector:
        """For a session all of whose connections go through here, with verified TLS."""
        return TCPConnector(
            limit=limit,
            limit_per_host=limit_per_host,
            force_close=force_close,
            resolver=self,
            use_dns_cache=False,
            socket_factory=self.open_socket,
            ssl=ssl.create_default_context(),
        )

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
