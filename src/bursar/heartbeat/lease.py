"""Work that only one of several workers does at a time: the one that holds the lease."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from bursar.db import OUT_OF_REACH, Database
from bursar.heartbeat import store

# A lease lasts this much longer than its holder rests between rounds, and is renewed this often
# during one.
_GRACE_SECONDS: Final = 10.0
_RENEW_SECONDS: Final = 3.0


@dataclass(slots=True)
class Lease:
    """`rest_seconds`: how long its holder rests between two rounds of the work."""

    db: Database
    name: str
    rest_seconds: float
    holder: str = field(default_factory=lambda: uuid4().hex)

    async def run(self, work: Callable[[], Awaitable[int]], otherwise: Callable[[], None]) -> int:
        """Runs the work and renews the lease meanwhile; runs `otherwise` if another worker holds
        the lease."""
        if not await self._take():
            otherwise()
            return 0
        renewing = asyncio.create_task(self._renew())
        try:
            return await work()
        finally:
            renewing.cancel()

    async def give_up(self) -> None:
        """Ends the lease now, so that the next worker need not wait until it runs out."""
        async with self.db.connection() as tx:
            await store.give_up_lease(tx, self.name, self.holder)

    async def _take(self) -> bool:
        async with self.db.connection() as tx:
            return await store.take_lease(
                tx, self.name, self.holder, self.rest_seconds + _GRACE_SECONDS
            )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self._take()
            except OUT_OF_REACH:
                continue  # the work itself notices that the database is away
