"""Shares of what many use together, so that none of them takes all of it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Turns:
    free: asyncio.Semaphore
    # And waited for.
    taken: int = 0


@dataclass(slots=True)
class Shares(Generic[T]):
    """At most so many at once for each user, first come, first served."""

    most: int
    _users: dict[T, _Turns] = field(default_factory=dict)

    @asynccontextmanager
    async def one_of(self, user: T, deadline: float) -> AsyncGenerator[None]:
        """Raises TimeoutError when none was free until then, by the clock of the event loop."""
        turns = self._users.get(user)
        if turns is None:
            turns = self._users[user] = _Turns(asyncio.Semaphore(self.most))
        turns.taken += 1
        try:
            if turns.free.locked():
                async with asyncio.timeout_at(deadline):
                    await turns.free.acquire()
            else:  # at once
                await turns.free.acquire()
            try:
                yield
            finally:
                turns.free.release()
        finally:
            turns.taken -= 1
            if turns.taken == 0:
                del self._users[user]
