"""Idempotency for routes whose effect is not one database transaction, such as minting."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from bursar.access import idempotency
from bursar.access.idempotency import IdempotencyKey
from bursar.db import Database


class Once:
    """Runs the work of an idempotency key once in this process and then stores its answer.

    Another process may run it at the same time, and after a crash it runs again. So the work itself
    must be safe to repeat. The first answer that is stored is the answer of all.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._running: dict[tuple[int, str, str, str], asyncio.Future[None]] = {}

    async def answer(
        self, key: IdempotencyKey | None, work: Callable[[], Awaitable[tuple[int, Any]]]
    ) -> tuple[int, Any, bool]:
        """(status, body, whether this is a replay)."""
        if key is None:
            return *await work(), False
        while (running := self._running.get(key.place)) is not None:
            await self._wait(running)
        # Nothing is awaited since the look-up above, so two requests at once cannot both start the
        # work.
        done = self._running[key.place] = asyncio.get_running_loop().create_future()
        try:
            async with self._db.connection() as tx:
                stored = (await idempotency.find(tx, [key])).get(key.place)
            if stored is not None:
                idempotency.matching(stored, key)
                return stored.status, msgspec.Raw(stored.body), True
            status, body = await work()
            async with self._db.transaction() as tx:
                earlier = await idempotency.claim(tx, key)
                if earlier is not None:
                    return earlier.status, msgspec.Raw(earlier.body), True
                await idempotency.record(tx, key, status, msgspec.json.encode(body))
            return status, body, False
        finally:
            del self._running[key.place]
            done.set_result(None)

    async def _wait(self, running: "asyncio.Future[None]") -> None:
        try:
            await asyncio.wait_for(asyncio.shield(running), idempotency.WAIT_SECONDS)
        except TimeoutError:
            raise idempotency.in_progress() from None
