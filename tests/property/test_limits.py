"""Rate limits against a simulated clock: exact in any 60 seconds, for every row of the table."""

from bisect import bisect_left
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bursar.access.limits import Category, ProcessLimiter, Unlimited, Verdict
from bursar.config import MODES, Mode

SECOND = 1_000_000_000
WINDOW = 60 * SECOND

# The table of the specification, written out again: live and test requests per minute.
TABLE = {
    "Agent Management": (120, 300),
    "Agent Reads": (600, 1200),
    "Spend Authorise": (1200, 3000),
    "Wallet Operations": (300, 600),
    "Transactions": (300, 600),
    "Webhook Management": (60, 120),
}
ROWS = [
    pytest.param(category, mode, id=f"{category.label}, {mode}")
    for category in Category
    for mode in MODES
]


class ManualClock:
    """Time that passes only when a test says so."""

    def __init__(self, at_ns: int = 5 * SECOND) -> None:
        self.at_ns = at_ns

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.at_ns // 1000)

    def monotonic_ns(self) -> int:
        return self.at_ns


class Counted:
    """A limiter, and an independent record of all it admitted to one key and category."""

    def __init__(self, category: Category, mode: Mode) -> None:
        self.clock = ManualClock()
        self.limiter = ProcessLimiter(self.clock)
        self.limit = TABLE[category.label][("live", "test").index(mode)]
        self.admitted: list[int] = []
        self._category = category
        self._mode: Mode = mode

    def request(self) -> Verdict:
        """One request, its verdict checked against the record."""
        now = self.clock.at_ns
        # Closed at both ends: a request exactly 60 s ago still counts.
        held = len(self.admitted) - bisect_left(self.admitted, now - WINDOW)
        verdict = finish(self.limiter.take("key", self._category, self._mode))
        assert verdict.limit == self.limit
        assert verdict.allowed is (held < self.limit), "refused if, and only if, the limit is held"
        if verdict.allowed:
            self.admitted.append(now)
            held += 1
        assert verdict.remaining == self.limit - held
        assert verdict.reset_seconds >= 1
        return verdict

    def burst(self, count: int) -> Verdict:
        return [self.request() for _ in range(count)][-1]

    def check_every_span(self) -> None:
        """No closed span of 60 s holds more than the limit: `limit` + 1 in a row take longer."""
        spans = zip(self.admitted, self.admitted[self.limit :], strict=False)
        assert all(last - first > WINDOW for first, last in spans)


def finish(work: Coroutine[Any, Any, Verdict]) -> Verdict:
    """Runs a coroutine that never waits: thousands of event loop rounds would only cost time."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the limiter of one process has nothing to wait for")


GAPS = st.one_of(
    st.sampled_from([0, 1, SECOND, 30 * SECOND, WINDOW - 1, WINDOW, WINDOW + 1, 11 * WINDOW]),
    st.integers(0, 2 * WINDOW),
)
# Pauses, and how many requests follow each, as a share of the limit.
SCHEDULES = st.lists(st.tuples(GAPS, st.floats(0, 1.5)), min_size=1, max_size=8)


@pytest.mark.parametrize(("category", "mode"), ROWS)
@given(schedule=SCHEDULES)
@example(schedule=[(0, 1.0), (WINDOW, 0.1), (1, 1.0)])
@example(schedule=[(0, 0.5), (30 * SECOND, 0.5), (30 * SECOND, 0.5), (1, 0.5)])
@settings(max_examples=20)
def test_no_span_of_60_seconds_ever_holds_more_than_the_limit(
    category: Category, mode: Mode, schedule: list[tuple[int, float]]
):
    """Goal: in any schedule exactly what fits is admitted, and `remaining` is right."""
    counted = Counted(category, mode)
    for gap, share in schedule:
        counted.clock.at_ns += gap
        counted.burst(1 + int(share * counted.limit))
    counted.check_every_span()


@pytest.mark.parametrize(("category", "mode"), ROWS)
@given(spread_ns=st.integers(0, 59 * SECOND), wait_ns=st.integers(0, SECOND))
@example(spread_ns=0, wait_ns=0)
@example(spread_ns=59 * SECOND, wait_ns=SECOND)
@settings(max_examples=10)
def test_after_the_promised_seconds_one_passes(
    category: Category, mode: Mode, spread_ns: int, wait_ns: int
):
    """Goal: Retry-After is neither too short by a nanosecond nor too long by a second."""
    counted = Counted(category, mode)
    for _ in range(counted.limit):
        assert counted.request().allowed
        counted.clock.at_ns += spread_ns // counted.limit
    counted.clock.at_ns += wait_ns
    refused = counted.request()
    assert not refused.allowed
    assert refused.remaining == 0
    promised = counted.clock.at_ns + refused.reset_seconds * SECOND
    counted.clock.at_ns = promised - SECOND
    assert not counted.request().allowed
    counted.clock.at_ns = promised
    assert counted.request().allowed
    counted.check_every_span()


@pytest.mark.parametrize(("category", "mode"), ROWS)
def test_a_steady_stream_at_the_limit_is_never_refused(category: Category, mode: Mode):
    """Goal: requests spread just over 60 s apart per `limit` all pass, for several minutes."""
    counted = Counted(category, mode)
    step = WINDOW // counted.limit + 1
    for _ in range(3 * counted.limit):
        assert counted.request().allowed
        counted.clock.at_ns += step
    counted.check_every_span()


def test_refused_requests_do_not_count():
    """Goal: hammering on a closed door does not keep it closed."""
    counted = Counted(Category.WEBHOOK_MANAGEMENT, "live")
    counted.burst(counted.limit)
    for _ in range(59):
        counted.clock.at_ns += SECOND
        assert not counted.burst(100).allowed
    counted.clock.at_ns += SECOND + 1
    assert counted.request().allowed


def test_keys_and_categories_are_counted_apart():
    """Goal: one key's requests of one kind take nothing from another key or another kind."""
    clock = ManualClock()
    limiter = ProcessLimiter(clock)
    first, second = Category.WEBHOOK_MANAGEMENT, Category.AGENT_MANAGEMENT
    for _ in range(first.limit("live")):
        assert finish(limiter.take("a", first, "live")).allowed
    assert not finish(limiter.take("a", first, "live")).allowed
    assert finish(limiter.take("a", second, "live")).remaining == second.limit("live") - 1
    assert finish(limiter.take("b", first, "live")).remaining == first.limit("live") - 1


def test_idle_keys_are_forgotten_and_busy_ones_are_not():
    """Goal: the sweep frees memory without giving anyone a second helping."""
    clock = ManualClock()
    limiter = ProcessLimiter(clock)
    category = Category.AGENT_READS
    for number in range(1_000):
        finish(limiter.take(f"idle-{number}", category, "live"))
    clock.at_ns += 10 * WINDOW - SECOND
    for _ in range(category.live):
        assert finish(limiter.take("busy", category, "live")).allowed
    clock.at_ns += 2 * SECOND
    assert not finish(limiter.take("busy", category, "live")).allowed
    assert len(limiter._admitted) == 1


def test_the_table_is_that_of_the_specification():
    """Goal: every row, live and test."""
    assert {c.label: (c.limit("live"), c.limit("test")) for c in Category} == TABLE


def test_without_limits_everything_passes():
    """Goal: the benchmark's switch lets every request through and says so in its numbers."""
    limiter = Unlimited()
    for _ in range(200):
        verdict = finish(limiter.take("key", Category.WEBHOOK_MANAGEMENT, "live"))
        assert verdict == Verdict(True, 60, 60, 0)
