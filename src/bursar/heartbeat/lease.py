"""What one of several workers does at a time: the one that holds the lease, until that ends."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from bursar.db import OUT_OF_REACH, Database
from bursar.heartbeat import store

# How much longer than its holder's rests a lease lasts, and how often it is renewed meanwhile.
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
        """The work, renewing the lease as long as it takes; `otherwise` while another holds it."""
        if not await self._take():
            otherwise()
            return 0
        renewing = asyncio.create_task(self._renew())
        try:
            return await work()
        finally:
            renewing.cancel()

    async def give_up(self) -> None:
        """Whoever comes next need not wait for its end."""
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
                continue  # the work finds that out for itself
