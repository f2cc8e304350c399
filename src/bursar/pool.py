"""Connections to the database that take turns.

asyncpg's own pool makes a task and several timers for each use: it takes 90 µs, where a statement
takes 34. Whoever finds a free connection here gets it at once. Nothing has to be undone when one is
given back: settings are only changed with SET LOCAL, and locks end with their transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import asyncpg

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

# A connection that nobody needed for so long is closed, but for the last.
_IDLE_SECONDS: Final = 300.0


class Pool:
    """At most `most` at once, opened by `connect`. The one that was used last is taken first, so
    that the others may end; those who wait come in their order."""

    def __init__(
        self, connect: "Callable[[], Awaitable[Connection]]", most: int, timeout_seconds: float
    ) -> None:
        self.most: Final = most
        self._connect = connect
        self._timeout_seconds = timeout_seconds
        # Whoever uses a connection, opens or closes one, has a place.
        self._places = asyncio.Semaphore(most)
        # With the time of the event loop since when.
        self._free: list[tuple[Connection, float]] = []
        self._used: set[Connection] = set()
        # Those in use that are not used again.
        self._expired: set[Connection] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def acquire(self) -> "Connection":
        """Raises TimeoutError when its turn does not come or no connection is made until then,
        InterfaceError once the pool is closed, and whatever `connect` raises."""
        if self._is_closed:
            raise asyncpg.InterfaceError("the pool is closed")
        if self._places.locked() or not self._free:
            async with asyncio.timeout(self._timeout_seconds):
                connection = await self._taken()
        else:  # at once
            connection = await self._taken()
        self._used.add(connection)
        return connection

    def release(self, connection: "Connection", *, is_sound: bool) -> None:
        """`is_sound`: what it was last asked for has ended, well or with an error of its own. Any
        other is not used again."""
        self._used.remove(connection)
        is_old = connection in self._expired
        self._expired.discard(connection)
        if connection.is_closed():
            self._places.release()
        elif is_old or not is_sound or self._is_closed or connection.is_in_transaction():
            self._end(connection)
        else:
            loop = asyncio.get_running_loop()
            self._free.append((connection, loop.time()))
            if self._sweep is None:
                self._sweep = loop.call_later(_IDLE_SECONDS, self._let_go)
            self._places.release()

    def expire(self) -> None:
        """No connection that is there now is used again."""
        self._expired |= self._used
        while self._free:
            # Its server may be gone, and a place for its end would keep a new one waiting.
            self._free.pop()[0].terminate()

    async def close(self) -> None:
        """Once all are released."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for _ in range(self.most):
            await self._places.acquire()
        while self._free:
            await self._free.pop()[0].close()

    def terminate(self) -> None:
        """At once, whatever they are used for."""
        for connection in (*self._used, *(connection for connection, _ in self._free)):
            connection.terminate()

    async def _taken(self) -> "Connection":
        await self._places.acquire()
        try:
            while self._free:
                connection, _ = self._free.pop()
                if not connection.is_closed():
                    return connection
            return await self._connect()
        except BaseException:
            self._places.release()
            raise

    def _end(self, connection: "Connection") -> None:
        """Closes it, and then gives its place to another. A statement that was left in the middle
        is cancelled first."""

        async def close() -> None:
            try:
                with suppress(Exception):
                    await connection.close(timeout=self._timeout_seconds)
            finally:
                self._places.release()

        task = asyncio.create_task(close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _let_go(self) -> None:
        """Closes those that nobody needed for long: the first are free for the longest time."""
        loop = asyncio.get_running_loop()
        old = loop.time() - _IDLE_SECONDS
        while len(self._free) > 1 and self._free[0][1] <= old:
            self._free.pop(0)[0].terminate()
        self._sweep = loop.call_later(_IDLE_SECONDS / 5, self._let_go)
