"""What keeps replays out of the way of spends: a bounded number of requests a second."""

import asyncio
from typing import Final

# So 100,000 take less than a minute, and the cores a small part of it.
_REQUESTS_A_SECOND: Final = 2_500


async def rest(requests: int) -> None:
    """After so many were read."""
    await asyncio.sleep(requests / _REQUESTS_A_SECOND)
