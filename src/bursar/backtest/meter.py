"""A meter in two histories at once: as it was, and as it would have been."""

from datetime import datetime
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final, NamedTuple

from bursar.policy.limits import METER, WINDOWS, window_start

_NUMBERS: Final = METER - 1
# Where the amounts stand, and that of the day; each count is next.
_AMOUNTS: Final = range(0, _NUMBERS, 2)
DAY: Final = 2 * WINDOWS.index("day")

Starts = tuple[datetime | None, ...]


class _Release(NamedTuple):
    place: int
    order: int
    starts: Starts
    amount_micros: int
    would_count: bool


class Meter:
    """Amounts and counts of each window. What was recorded is put right at each decision that kept
    it; what would have been keeps its distance from that."""

    def __init__(self) -> None:
        self.was = [0] * _NUMBERS
        self.would = [0] * _NUMBERS
        self._starts: Starts = (None,) * len(WINDOWS)
        self._releases: list[_Release] = []
        self._order = 0

    def come_to(self, at: datetime, place: int) -> None:
        """Just before a decision: windows that are over begin anew, and amounts that were given
        back before it count no longer."""
        starts = starts_of(at)
        if starts is not self._starts:
            for window, (new, old) in enumerate(zip(starts, self._starts, strict=True)):
                if new != old:
                    for numbers in (self.was, self.would):
                        numbers[2 * window : 2 * window + 2] = (0, 0)
            self._starts = starts
        while self._releases and self._releases[0].place <= place:
            release = heappop(self._releases)
            self._add(self.was, release.starts, -release.amount_micros, -1)
            if release.would_count:
                self._add(self.would, release.starts, -release.amount_micros, -1)

    def put_right(self, first: int, recorded: tuple[int, ...]) -> bool:
        """Takes what was recorded from a number on; returns whether it is what was counted."""
        if tuple(self.was[first : first + len(recorded)]) == recorded:
            return True
        for at, number in enumerate(recorded, first):
            self.would[at] += number - self.was[at]
            self.was[at] = number
        return False

    def count(self, at: datetime, amount_micros: int, *, was: bool, would: bool) -> None:
        starts = starts_of(at)
        if was:
            self._add(self.was, starts, amount_micros, 1)
        if would:
            self._add(self.would, starts, amount_micros, 1)

    def release(self, at: datetime, amount_micros: int, place: int, *, would: bool) -> None:
        """What was counted at that moment is given back before decisions from this place on."""
        self._order += 1
        heappush(self._releases, _Release(place, self._order, starts_of(at), amount_micros, would))

    def _add(self, numbers: list[int], starts: Starts, micros: int, spends: int) -> None:
        """To the windows that are open."""
        if starts is self._starts:
            for at in _AMOUNTS:
                numbers[at] += micros
                numbers[at + 1] += spends
            return
        for window, (start, now) in enumerate(zip(starts, self._starts, strict=True)):
            if start == now:
                numbers[2 * window] += micros
                numbers[2 * window + 1] += spends


@lru_cache(maxsize=4_096)
def _starts_of_hour(hour: datetime) -> Starts:
    return tuple(window_start(window, hour) for window in WINDOWS)


# All meters of a request ask for the same moment.
@lru_cache(maxsize=256)
def starts_of(at: datetime) -> Starts:
    """When each window of this moment began."""
    return _starts_of_hour(at.replace(minute=0, second=0, microsecond=0))
