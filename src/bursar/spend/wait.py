"""`Prefer: wait=N`: the answer waits until a spend is settled or rejected, or a purchase made."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from bursar.db import OUT_OF_REACH, Database, Tx

MAX_SECONDS: Final = 30
_POLL_SECONDS: Final = 0.1
_WAIT = re.compile(r"\bwait\s*=\s*\"?(\d{1,6})\"?", re.ASCII | re.IGNORECASE)


def wanted_seconds(prefer: str | None) -> int:
    """The N of a `Prefer` header, 0 when there is none; at most 30."""
    match = None if prefer is None else _WAIT.search(prefer)
    return 0 if match is None else min(int(match[1]), MAX_SECONDS)


class Named(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Named)


class Waiter(Generic[R]):
    """One poll for all requests of this process that wait, however many there are. `ended` tells
    which of these ids need not be waited for any longer."""

    def __init__(
        self, db: Database, ended: Callable[[Tx, Sequence[str]], Awaitable[Sequence[R]]]
    ) -> None:
        self._db = db
        self._ended = ended
        # A future for each request: one that gives up must not end the wait of the others.
        self._waiting: dict[str, set[asyncio.Future[R]]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def wait(self, id_: str, seconds: float) -> R | None:
        """The row once it has ended; None when it still has not after that long."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id_, set()).add(future)
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return None
        finally:
            others = self._waiting.get(id_, set())
            others.discard(future)
            if not others:
                self._waiting.pop(id_, None)

    async def _poll(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(_POLL_SECONDS)
                try:
                    async with self._db.connection() as tx:
                        done = await self._ended(tx, list(self._waiting))
                except OUT_OF_REACH:
                    continue  # each request has its own time-out
                for row in done:
                    for future in self._waiting.pop(row.id, ()):
                        if not future.done():
                            future.set_result(row)
        finally:
            self._polling = None
