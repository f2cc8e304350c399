"""Waits for a condition, with a bound, instead of sleeping and hoping."""

import asyncio
from collections.abc import Awaitable, Callable

import psutil

LONG_SECONDS = 20.0


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], seconds: float = LONG_SECONDS
) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} seconds"
        await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
