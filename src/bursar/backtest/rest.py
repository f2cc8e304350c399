"""What keeps replays out of the way of spends: a worker rests longer than it works."""

import asyncio
from typing import Final

from bursar.clock import Clock

_TIMES: Final = 1.5
_MOST_SECONDS: Final = 2.0


async def rest(clock: Clock, began_ns: int) -> None:
    """After a piece of work that began then."""
    worked = (clock.monotonic_ns() - began_ns) / 1e9
    await asyncio.sleep(min(worked * _TIMES, _MOST_SECONDS))
