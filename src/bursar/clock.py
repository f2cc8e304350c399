"""The only place that reads a clock. Whoever decides by the time is handed a `Clock`.

Times that decide about money (the day of a spend, an expiry) come from the database's clock
instead, so that every process agrees on them.
"""

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall clock, UTC, cut to the millisecond that the API shows."""
        ...

    def monotonic_ns(self) -> int:
        """Never steps backwards; only differences mean anything."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return truncate(datetime.now(UTC))

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


def unix_milliseconds() -> int:
    """For ids, which only need to sort roughly by age. All that is decided by it is when old rows
    are looked at; whether they are old enough to go, their own times say."""
    return time.time_ns() // 1_000_000


def truncate(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


# All that one transaction writes has one moment, so most are asked for many times.
@lru_cache(maxsize=1_024)
def iso(moment: datetime) -> str:
    """`2026-11-15T09:30:00.123Z`: UTC with exactly three places. Takes only UTC datetimes."""
    return moment.isoformat(timespec="milliseconds")[:23] + "Z"


def iso_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)
