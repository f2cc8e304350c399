"""Dates and times as callers write them."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

from bursar.clock import truncate
from bursar.errors import Fault
from bursar.form.kind import Schema


@dataclass(frozen=True, slots=True)
class Moment:
    """A full ISO-8601 timestamp; no offset means UTC."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        moment = parse_moment(value) if isinstance(value, str) and "T" in value else None
        if moment is None:
            faults.append(
                Fault(path, f"{path} must be an ISO-8601 time such as 2026-11-30T12:00:00Z.")
            )
        return moment

    def schema(self) -> Schema:
        return {"type": "string", "format": "date-time"}


class Span(NamedTuple):
    """The time that a boundary names: from its first moment up to, not including, `end`. An instant
    names an empty span."""

    start: datetime
    end: datetime

    def lies_after(self, other: "Span") -> bool:
        """Whether no moment can be both at or after this span and before or within the other."""
        return self.start > other.start and self.start >= other.end


@dataclass(frozen=True, slots=True)
class Boundary:
    """A date or timestamp that bounds a list. A bare date stands for its whole day.

    Rows have whole milliseconds, so an instant between two is rounded up: as a start it excludes
    the earlier millisecond, as an end it includes it.
    """

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        moment = parse_moment(value, up=True) if isinstance(value, str) else None
        if moment is None:
            faults.append(
                Fault(
                    path,
                    f"{path} must be an ISO-8601 date or time: 2026-11-30 or 2026-11-30T12:00:00Z.",
                )
            )
            return None
        whole_day = _BARE_DATE.fullmatch(value) is not None
        # One day before the calendar ends, so that adding a day cannot overflow; no row is that
        # late.
        moment = min(moment, _LATEST - _DAY)
        return Span(moment, moment + _DAY if whole_day else moment)

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 8, "examples": ["2026-11-30"]}


_BARE_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{8}", re.ASCII)

_DAY: Final = timedelta(days=1)

# The calendar's ends. A time that its offset would move beyond them is set to them.
_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)

_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


def parse_moment(text: str, *, up: bool = False) -> datetime | None:
    """Any ISO-8601 date or time as UTC, with milliseconds cut off or rounded up; None when it is
    not one."""
    if not text.isascii() or len(text) > 40:
        return None
    try:
        if _BARE_DATE.fullmatch(text):
            day = date.fromisoformat(text)
            moment = datetime(day.year, day.month, day.day)  # noqa: DTZ001 (made UTC below)
        elif "T" in text:
            # A '+' in a query string arrives as a space.
            moment = datetime.fromisoformat(text.replace(" ", "+"))
        else:
            return None
    except ValueError:
        return None
    try:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        moment = _LATEST if moment.year == _LATEST.year else _EARLIEST
    return truncate(min(moment, _LATEST) + timedelta(microseconds=999) if up else moment)
