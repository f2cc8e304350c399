"""Windows of UTC time: where they begin and end, and what a meter counts in them."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.policy.limits import (
    METER,
    WINDOWS,
    Window,
    numbers_at,
    window_end,
    window_start,
    without,
)

MOMENTS: Final = st.timedeltas(timedelta(0), timedelta(days=36_500)).map(
    lambda since: datetime(2000, 1, 1, tzinfo=UTC) + since
)
TICKING: Final = [window for window in WINDOWS if window != "lifetime"]
# Each number of a meter is told from every other.
NUMBERS: Final = tuple(range(100, 100 + METER))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "at", "start", "end"),
    [
        ("hour", "2026-11-14T12:59:59.999", "2026-11-14T12:00", "2026-11-14T13:00"),
        ("hour", "2026-11-14T13:00", "2026-11-14T13:00", "2026-11-14T14:00"),
        ("hour", "2026-12-31T23:30", "2026-12-31T23:00", "2027-01-01T00:00"),
        ("day", "2026-11-14T23:59:59.999", "2026-11-14", "2026-11-15"),
        ("day", "2028-02-28T12:00", "2028-02-28", "2028-02-29"),
        ("day", "2028-02-29T00:00", "2028-02-29", "2028-03-01"),
        ("day", "2027-02-28T00:00", "2027-02-28", "2027-03-01"),
        # Sunday is the last day of its week, Monday the first of the next.
        ("week", "2026-11-15T23:59:59.999", "2026-11-09", "2026-11-16"),
        ("week", "2026-11-16T00:00", "2026-11-16", "2026-11-23"),
        ("week", "2026-12-31T12:00", "2026-12-28", "2027-01-04"),
        ("week", "2027-01-03T23:59:59.999", "2026-12-28", "2027-01-04"),
        ("week", "2028-02-29T12:00", "2028-02-28", "2028-03-06"),
        ("month", "2026-11-30T23:59:59.999", "2026-11-01", "2026-12-01"),
        ("month", "2026-12-01T00:00", "2026-12-01", "2027-01-01"),
        ("month", "2027-01-31T12:00", "2027-01-01", "2027-02-01"),
        ("month", "2027-02-28T12:00", "2027-02-01", "2027-03-01"),
        ("month", "2028-02-29T23:59:59.999", "2028-02-01", "2028-03-01"),
    ],
)
def test_where_a_window_begins_and_ends(window: Window, at: str, start: str, end: str):
    assert window_start(window, moment(at)) == moment(start)
    assert window_end(window, moment(at)) == moment(end)


def test_a_lifetime_has_no_ends():
    assert window_start("lifetime", moment("2026-11-14")) is None
    assert window_end("lifetime", moment("2026-11-14")) is None


@given(st.sampled_from(TICKING), MOMENTS)
def test_windows_follow_each_other_without_a_gap(window: Window, at: datetime):
    start, end = window_start(window, at), window_end(window, at)
    assert start is not None
    assert end is not None
    assert start <= at < end
    assert window_start(window, start) == start
    assert window_start(window, end) == end
    assert window_end(window, end - timedelta(microseconds=1)) == end


@given(MOMENTS, st.timedeltas(timedelta(0), timedelta(days=70)))
def test_a_meter_keeps_what_its_open_windows_count(windows_at: datetime, later: timedelta):
    at = windows_at + later
    kept = numbers_at(NUMBERS, windows_at, at)
    assert kept[0] == NUMBERS[0]
    for place, window in enumerate(WINDOWS):
        pair = slice(1 + 2 * place, 3 + 2 * place)
        end = window_end(window, windows_at)
        assert kept[pair] == (NUMBERS[pair] if end is None or at < end else (0, 0))


@given(MOMENTS, st.timedeltas(timedelta(microseconds=1), timedelta(days=70)))
def test_a_clock_set_back_forgets_no_window(windows_at: datetime, earlier: timedelta):
    assert numbers_at(NUMBERS, windows_at, windows_at - earlier) == NUMBERS


def test_a_meter_that_has_counted_nothing_goes_on_counting_nothing():
    assert numbers_at((0,) * METER, None, moment("2026-11-14")) == (0,) * METER


def test_a_spend_is_judged_again_as_if_it_had_not_been():
    """Goal: it is taken out of windows that run, and out of what is kept of those that are over;
    where nothing is kept it stood alone."""
    asked, now = moment("2026-11-30T23:30"), moment("2026-12-01T00:10")
    numbers = (9, 50, 5, 60, 6, 70, 7, 80, 8, 90, 9)
    left = without(numbers, now, asked, 10, {"hour": (30, 3), "day": (40, 4)})
    assert left == (9, 20, 2, 30, 3, 60, 6, 0, 0, 80, 8)
    assert without(numbers, asked, asked, 10, {}) == (9, 40, 4, 50, 5, 60, 6, 70, 7, 80, 8)


def test_a_limit_that_was_set_later_has_nothing_to_take_out():
    asked = moment("2026-11-30T23:30")
    numbers = (9, 50, 5, 60, 6, 70, 7, 80, 8, 90, 9)
    assert without(numbers, asked, asked, 0, {}) == numbers
    assert without((0,) * METER, None, asked, 0, {}) == (0,) * METER
