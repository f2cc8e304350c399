"""Time as the API shows it: UTC, three places, what is shown is what is compared."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.clock import SystemClock, iso, iso_or_none, truncate

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MILLIS = st.integers(0, 253_370_764_800_000)  # 1970 to the end of 9998
MOMENTS = st.builds(
    lambda millis, micros: EPOCH + timedelta(milliseconds=millis, microseconds=micros),
    MILLIS,
    st.integers(0, 999),
)


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (datetime(2026, 11, 15, 9, 30, 0, 123_000, UTC), "2026-11-15T09:30:00.123Z"),
        (datetime(2026, 11, 15, 9, 30, 0, 0, UTC), "2026-11-15T09:30:00.000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 6_999, UTC), "2026-01-02T03:04:05.006Z"),
        (datetime(1970, 1, 1, tzinfo=UTC), "1970-01-01T00:00:00.000Z"),
        (datetime(9998, 12, 31, 23, 59, 59, 999_999, UTC), "9998-12-31T23:59:59.999Z"),
    ],
)
def test_a_moment_has_exactly_three_places(moment: datetime, shown: str):
    """Goal: the form of the contract, also where the fraction is zero."""
    assert iso(moment) == shown


@given(MOMENTS)
def test_what_is_shown_is_what_is_compared(moment: datetime):
    """Goal: a moment cut to the millisecond is shown whole and reads back as itself."""
    cut = truncate(moment)
    assert datetime.fromisoformat(iso(cut)) == cut
    assert timedelta(0) <= moment - cut < timedelta(milliseconds=1)
    assert truncate(cut) == cut


def test_no_moment_is_null():
    """Goal: a time that has not come is null, not a text."""
    assert iso_or_none(None) is None
    assert iso_or_none(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000Z"


def test_the_system_clock_is_utc_to_the_millisecond():
    """Goal: wall time is cut like every stored moment, and the other clock never goes back."""
    clock = SystemClock()
    now = clock.now()
    assert now.tzinfo is UTC
    assert now.microsecond % 1000 == 0
    assert abs(datetime.now(UTC) - now) < timedelta(seconds=5)
    readings = [clock.monotonic_ns() for _ in range(1_000)]
    assert readings == sorted(readings)
