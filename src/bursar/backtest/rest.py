"""What keeps replays out of the way of spends: they take a small share of a processor.

Counted is processor time and not the time of day: where others keep the processors or the database
busy, a piece takes longer but costs no more.
"""

import asyncio
import time
from typing import Final

# How much longer a worker rests than a piece has kept its processor. It pays for what the piece
# costs the database as well.
_TIMES: Final = 6
_MOST_SECONDS: Final = 2.0


def worked_ns() -> int:
    """The processor time of this thread so far."""
    return time.thread_time_ns()


async def rest(began_ns: int) -> None:
    """After a piece of work that began at that time of `worked_ns`."""
    worked = (worked_ns() - began_ns) / 1e9
    await asyncio.sleep(min(worked * _TIMES, _MOST_SECONDS))
