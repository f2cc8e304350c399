"""Charts as plain rectangles: settled upwards, refused downwards, one pair a bucket; and the small
ones of a list, settled alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from bursar.console.store import Bucket

# The drawing is stretched to the width of the page, so these units are only proportions.
_STEP: Final = 20
_BAR: Final = 14
_UP: Final = 100
_DOWN: Final = 40
_FEW: Final = 4
_SPARK_STEP: Final = 8
_SPARK_BAR: Final = 6
_SPARK_UP: Final = 24


@dataclass(frozen=True, slots=True)
class Bar:
    start: datetime
    x: int
    settled_micros: int
    rejected: int
    settled_y: int
    settled_height: int
    rejected_height: int


@dataclass(frozen=True, slots=True)
class Chart:
    bars: list[Bar]
    # Labels under the axis, evenly spaced.
    ticks: list[datetime]
    by_hour: bool
    width: int
    most_micros: int
    total_micros: int
    total_rejected: int
    bar_width: int = _BAR
    axis: int = _UP
    height: int = _UP + _DOWN + 1

    @property
    def empty(self) -> bool:
        return self.total_micros == 0 and self.total_rejected == 0


def by_hour(buckets: Sequence[Bucket], now: datetime, hours: int) -> Chart:
    last = now.replace(minute=0, second=0, microsecond=0)
    return _chart(buckets, [last - timedelta(hours=n) for n in reversed(range(hours))], 6, True)


def by_day(buckets: Sequence[Bucket], today: date, days: int) -> Chart:
    last = datetime(today.year, today.month, today.day, tzinfo=UTC)
    return _chart(buckets, [last - timedelta(days=n) for n in reversed(range(days))], 7, False)


@dataclass(frozen=True, slots=True)
class Spark:
    """A chart for one line of a list: a bar for each day, as one path."""

    path: str
    width: int
    height: int
    total_micros: int
    most_micros: int


def spark(settled: Mapping[date, int], today: date, days: int) -> Spark:
    values = [settled.get(today - timedelta(days=n), 0) for n in reversed(range(days))]
    most = max(values)
    bars: list[str] = []
    for place, value in enumerate(values):
        if value:
            up = _height(value, most, _SPARK_UP)
            left = place * _SPARK_STEP
            bars.append(f"M{left} {_SPARK_UP}v-{up}h{_SPARK_BAR}v{up}z")
    return Spark("".join(bars), days * _SPARK_STEP - 2, _SPARK_UP, sum(values), most)


def _chart(buckets: Sequence[Bucket], starts: list[datetime], every: int, hours: bool) -> Chart:
    found = {_moment(bucket.start): bucket for bucket in buckets}
    nothing = [Bucket(start, 0, 0, 0) for start in starts]
    shown = [found.get(start, empty) for start, empty in zip(starts, nothing, strict=True)]
    most = max(bucket.settled_micros for bucket in shown)
    # A single refusal is a short bar, not a full one.
    most_rejected = max(_FEW, *(bucket.rejected for bucket in shown))
    bars: list[Bar] = []
    for place, (start, bucket) in enumerate(zip(starts, shown, strict=True)):
        up = _height(bucket.settled_micros, most, _UP)
        bars.append(
            Bar(
                start=start,
                x=place * _STEP + (_STEP - _BAR) // 2,
                settled_micros=bucket.settled_micros,
                rejected=bucket.rejected,
                settled_y=_UP - up,
                settled_height=up,
                rejected_height=_height(bucket.rejected, most_rejected, _DOWN),
            )
        )
    return Chart(
        bars=bars,
        ticks=[*starts[:-1:every], starts[-1]],
        by_hour=hours,
        width=len(starts) * _STEP,
        most_micros=most,
        total_micros=sum(bucket.settled_micros for bucket in shown),
        total_rejected=sum(bucket.rejected for bucket in shown),
    )


def _height(value: int, most: int, room: int) -> int:
    """Proportional, but high enough that a small value is still seen."""
    return 0 if value == 0 else max(value * room // most, 2)


def _moment(start: datetime | date) -> datetime:
    if isinstance(start, datetime):
        return start
    return datetime(start.year, start.month, start.day, tzinfo=UTC)
