"""Exact rate limits: no span of 60 seconds ever holds more requests than the limit."""

from collections import deque
from enum import Enum
from typing import Final, Protocol

import msgspec

from bursar.clock import Clock
from bursar.config import Mode

WINDOW_SECONDS: Final = 60
_WINDOW_NS: Final = WINDOW_SECONDS * 1_000_000_000
_SWEEP_EVERY_NS: Final = 10 * _WINDOW_NS


class Category(Enum):
    """The rows of the limit table: requests per minute for live and for test keys."""

    AGENT_MANAGEMENT = ("Agent Management", 120, 300)
    AGENT_READS = ("Agent Reads", 600, 1200)
    SPEND_AUTHORISE = ("Spend Authorise", 1200, 3000)
    WALLET_OPERATIONS = ("Wallet Operations", 300, 600)
    TRANSACTIONS = ("Transactions", 300, 600)
    WEBHOOK_MANAGEMENT = ("Webhook Management", 60, 120)

    def __init__(self, label: str, live: int, test: int) -> None:
        self.label = label
        self.live = live
        self.test = test

    # Each is one object. An enumeration hashes the name, in Python, wherever a count is looked up.
    __hash__ = object.__hash__

    def limit(self, mode: Mode) -> int:
        return self.live if mode == "live" else self.test


class Verdict(msgspec.Struct, frozen=True):
    allowed: bool
    limit: int
    remaining: int
    # Seconds until the oldest counted request leaves the window. After a refusal: seconds until one
    # request passes again.
    reset_seconds: int


class Limiter(Protocol):
    async def take(self, key_id: str, category: Category, mode: Mode) -> Verdict:
        """Counts one request if it is within the limit. A refused one does not count.

        Raises ApiError (503) when the counter is out of reach: without a count nothing passes.
        """
        ...

    async def reachable(self) -> bool: ...

    async def close(self) -> None: ...


class ProcessLimiter:
    """Counts in this process, by its monotonic clock. A restart forgets the counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._admitted: dict[tuple[str, Category], deque[int]] = {}
        self._next_sweep_ns = 0

    async def take(self, key_id: str, category: Category, mode: Mode) -> Verdict:
        now = self._clock.monotonic_ns()
        if now >= self._next_sweep_ns:
            self._sweep(now)
        admitted = self._admitted.get((key_id, category))
        if admitted is None:
            admitted = self._admitted[key_id, category] = deque()
        # A request leaves the count only when strictly more than 60 s have passed, so that even a
        # closed span of 60 s holds no more than the limit.
        while admitted and now - admitted[0] > _WINDOW_NS:
            admitted.popleft()
        limit = category.limit(mode)
        allowed = len(admitted) < limit
        if allowed:
            admitted.append(now)
        # floor + 1 and not ceil: at exactly 60 s the request would still be refused, so a refused
        # one may be told 61. While there is room no request waits, and 60 is the most.
        reset = (admitted[0] + _WINDOW_NS - now) // 1_000_000_000 + 1
        if allowed:
            reset = min(reset, WINDOW_SECONDS)
        return Verdict(allowed, limit, limit - len(admitted), reset)

    async def reachable(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is open."""

    def _sweep(self, now: int) -> None:
        """Forgets keys without a recent request, so idle keys cost no memory."""
        self._admitted = {
            name: admitted
            for name, admitted in self._admitted.items()
            if admitted and now - admitted[-1] <= _WINDOW_NS
        }
        self._next_sweep_ns = now + _SWEEP_EVERY_NS


class Unlimited:
    """`BURSAR_RATE_LIMITS=off`, for benchmarks: every request passes."""

    async def take(self, key_id: str, category: Category, mode: Mode) -> Verdict:
        del key_id
        limit = category.limit(mode)
        return Verdict(True, limit, limit, 0)

    async def reachable(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is open."""
