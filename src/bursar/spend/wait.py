"""`Prefer: wait=N`: the answer waits until the spend is settled or rejected."""

import asyncio
import re
from typing import Final

from bursar.db import OUT_OF_REACH, Database
from bursar.spend import store
from bursar.spend.model import SpendRow

MAX_SECONDS: Final = 30
_POLL_SECONDS: Final = 0.1
_WAIT = re.compile(r"\bwait\s*=\s*\"?(\d{1,6})\"?", re.ASCII | re.IGNORECASE)


def wanted_seconds(prefer: str | None) -> int:
    """The N of a `Prefer` header, 0 when there is none; at most 30."""
    match = None if prefer is None else _WAIT.search(prefer)
    return 0 if match is None else min(int(match[1]), MAX_SECONDS)


class Waiter:
    """One poll for all requests of this process that wait, however many there are."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # A future for each request: one that gives up must not end the wait of the others.
        self._waiting: dict[str, set[asyncio.Future[SpendRow]]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def wait(self, spend_id: str, seconds: float) -> SpendRow | None:
        """The spend once it is settled or rejected; None when it still is not after that long."""
        future: asyncio.Future[SpendRow] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(spend_id, set()).add(future)
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return None
        finally:
            others = self._waiting.get(spend_id, set())
            others.discard(future)
            if not others:
                self._waiting.pop(spend_id, None)

    async def _poll(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(_POLL_SECONDS)
                try:
                    async with self._db.connection() as tx:
                        done = await store.finished(tx, list(self._waiting))
                except OUT_OF_REACH:
                    continue  # each request has its own time-out
                for spend in done:
                    for future in self._waiting.pop(spend.id, ()):
                        if not future.done():
                            future.set_result(spend)
        finally:
            self._polling = None
