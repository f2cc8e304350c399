"""The only way out to strangers: to addresses that passed, even if a name resolves differently
later."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, Final

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]

from bursar.outbound.failure import NoAnswer, no_connection
from bursar.outbound.target import Allowed, check_address

# Name look-ups at once. Each blocks a thread. They have their own threads, so that a name server
# that hangs cannot block the few that the event loop uses for everything else.
_LOOKUP_THREADS: Final = 128

# When the next address of a host is tried beside the one before, which may lead nowhere.
_NEXT_SECONDS: Final = 0.25

# Resolves a host to a list of addresses, as text.
Lookup = Callable[[str, int], Awaitable[list[str]]]


class Gate:
    """Resolves a host once and checks every address; opens sockets to nothing else.

    Tests replace the system's resolver by `lookup`, to make names resolve to forbidden addresses.
    """

    def __init__(self, allowed: Allowed, lookup: Lookup | None = None) -> None:
        self._allowed = allowed
        # For those who connect through it; to make one takes long.
        self.tls = ssl.create_default_context()
        self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, "lookup")
        self._lookup = lookup or self._ask_system
        # One look-up per host at a time. Attempts that arrive meanwhile share it, so a name server
        # that hangs blocks one thread and not all.
        self._running: dict[tuple[str, int], asyncio.Task[list[str]]] = {}
        # What the hosts that the setting lists resolved to. They are listed by hand, so they are
        # few.
        self._vouched: set[str] = set()

    async def connect(self, host: str, port: int) -> socket.socket:
        """To an address of the host. Raises TargetRefused and NoAnswer."""
        try:
            addresses = [str(ip_address(host))]
        except ValueError:
            addresses = await self._resolved(host, port)
        places = [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in addresses
        ]
        try:
            return await start_connection(
                places, happy_eyeballs_delay=_NEXT_SECONDS, socket_factory=self.open_socket
            )
        except OSError as problem:
            # Its traceback knows it, and the garbage collector seldom runs here.
            raise no_connection(problem) from problem.with_traceback(None)

    def open_socket(self, address: Any) -> socket.socket:
        """Checks once more. An address in place of a host is not resolved, but every socket is made
        here."""
        family, kind, proto, _, place = address
        if place[0] not in self._vouched:
            check_address("", place[0], self._allowed)
        opened = socket.socket(family, kind, proto)
        opened.setblocking(False)
        return opened

    def shut(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _resolved(self, host: str, port: int) -> list[str]:
        task = self._running.get((host, port))
        if task is None:
            task = self._running[host, port] = asyncio.ensure_future(self._lookup(host, port))
            task.add_done_callback(lambda ended: self._looked_up(host, port, ended))
        try:
            addresses = await asyncio.shield(task)
        except OSError as problem:
            raise NoAnswer("the host cannot be resolved") from problem
        finally:
            del task  # it knows the failure, which knows this frame
        if not addresses:
            raise NoAnswer("the host cannot be resolved")
        for address in addresses:
            # One forbidden address refuses the host, even beside allowed ones: an attacker could
            # add those as bait.
            check_address(host, address, self._allowed)
        if self._allowed.host(host):
            self._vouched.update(addresses)
        return addresses

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
