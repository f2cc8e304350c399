"""Listens, and keeps the connections: how many there are, how long each may take, how all end."""

import asyncio
import contextlib
import socket
from email.utils import format_datetime
from itertools import chain
from typing import Final

from bursar.clock import Clock
from bursar.http.connection import LINGER_SECONDS, App, Connection
from bursar.http.unfinished import Unfinished

# Connections that may wait to be accepted while the process is busy.
_BACKLOG: Final = 1024
# How long a connection may wait for its next request, and how long the head of one may take.
_IDLE_SECONDS: Final = 75
_HEAD_SECONDS: Final = 15
# How long a caller may take nothing of an answer.
_STALL_SECONDS: Final = 60
# How often the late ones are looked for. A timer for each would cost more than their requests.
_LOOK_SECONDS: Final = 1.0


class Server:
    def __init__(self, app: App, unfinished: Unfinished, clock: Clock, most: int) -> None:
        self.app = app
        # As of the last look: to the second, as the header has it.
        self.date = _date(clock)
        self.is_stopping = False
        self._unfinished = unfinished
        self._clock = clock
        self._most = most
        self._all: set[Connection] = set()
        self._left = asyncio.Event()
        # Requests, those that wait for their turn too.
        self._unanswered = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        # Each since when, oldest first; with the bytes that were unsent then.
        self._idle: dict[Connection, float] = {}
        self._dawdling: dict[Connection, float] = {}
        self._stalled: dict[Connection, tuple[float, int]] = {}
        self._ended: dict[Connection, tuple[float, int]] = {}
        self._listener: asyncio.Server | None = None

    async def listen(self, bound: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = await self._loop.create_server(
            lambda: Connection(self), sock=bound, backlog=_BACKLOG
        )

    async def look_after(self) -> None:
        """Ends what takes too long. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.date = _date(self._clock)
            self.end_late_ones()

    def end_late_ones(self) -> None:
        now = self._loop.time()
        self._unfinished.end_late_ones()
        for waiting, seconds in ((self._idle, _IDLE_SECONDS), (self._dawdling, _HEAD_SECONDS)):
            for connection in [one for one, since in waiting.items() if since < now - seconds]:
                connection.close_idle()
        for slow in (self._stalled, self._ended):
            for connection, (since, unsent) in list(slow.items()):
                left = connection.unsent_bytes
                if left < unsent:
                    slow[connection] = now, left
                elif left and since < now - _STALL_SECONDS:
                    connection.abort()
        for connection, (since, unsent) in list(self._ended.items()):
            if not unsent and since < now - LINGER_SECONDS:
                connection.close()

    # What connections tell --------------------------------------------------------------------

    def joins(self, connection: Connection) -> bool:
        if len(self._all) >= self._most and not self._make_room():
            return False
        self._all.add(connection)
        self._left.clear()
        return True

    def waits(self, connection: Connection) -> None:
        self._idle.setdefault(connection, self._loop.time())

    def dawdles(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._dawdling.setdefault(connection, self._loop.time())

    def comes(self) -> None:
        self._unanswered += 1
        self._quiet.clear()

    def begins(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._dawdling.pop(connection, None)

    def finishes(self) -> None:
        self._unanswered -= 1
        if self._unanswered == 0:
            self._quiet.set()

    def stalls(self, connection: Connection) -> None:
        self._stalled[connection] = self._loop.time(), connection.unsent_bytes

    def flows(self, connection: Connection) -> None:
        self._stalled.pop(connection, None)

    def ends(self, connection: Connection) -> None:
        self._forget(connection)
        self._ended[connection] = self._loop.time(), connection.unsent_bytes

    def leaves(self, connection: Connection) -> None:
        self._forget(connection)
        self._all.discard(connection)
        if not self._all:
            self._left.set()

    def _forget(self, connection: Connection) -> None:
        for some in (self._idle, self._dawdling, self._stalled, self._ended):
            some.pop(connection, None)

    def _make_room(self) -> bool:
        """Closes the connection that is missed least. Who is being answered keeps its place."""
        closed = (one for one in self._ended if not one.unsent_bytes)
        oldest = next(chain(self._idle, self._dawdling, closed), None)
        if oldest is None and self._unfinished.drop_oldest():
            return True
        oldest = oldest or next(chain(self._stalled, self._ended), None)
        if oldest is None:
            return False
        self._forget(oldest)
        oldest.abort()
        return True

    # The end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Takes no more connections, and no more requests on those that there are."""
        self.is_stopping = True
        if self._listener is not None:
            self._listener.close()
        for connection in [*self._idle, *self._dawdling]:
            connection.close()

    async def drained(self, seconds: float) -> bool:
        """Waits until every request is answered; False when some are not after that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, seconds: float) -> None:
        """Lets callers take the answers that are written, for that long at most."""
        for connection in list(self._all):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._all:
                    await self._left.wait()
        for connection in list(self._all):
            connection.abort()


def _date(clock: Clock) -> bytes:
    return f"date: {format_datetime(clock.now(), usegmt=True)}\r\n".encode("ascii")
