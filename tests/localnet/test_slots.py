"""Goal: slots follow the clock and never go back, over restarts, clock steps and lags."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bursar_localnet.slots import FIRST_SLOT, Era, Lag, Slots, next_era

SEED = b"s" * 32


@dataclass
class ManualClock:
    wall: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    ns: int = 0

    def now(self) -> datetime:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.ns

    def pass_ms(self, ms: int) -> None:
        self.wall += timedelta(milliseconds=ms)
        self.ns += ms * 1_000_000

    def unix_ms(self) -> int:
        return round(self.wall.timestamp() * 1000)


def started(clock: ManualClock, lag: Lag | None = None, eras: list[Era] | None = None) -> Slots:
    eras = eras or []
    eras = [*eras, next_era(eras, clock.unix_ms(), 400, 0)]
    return Slots(clock, SEED, eras, lag or Lag(), 0)


def test_slots_advance_with_the_clock() -> None:
    clock = ManualClock()
    slots = started(clock)
    assert slots.processed == FIRST_SLOT
    clock.pass_ms(399)
    assert slots.processed == FIRST_SLOT
    assert round(slots.seconds_to_next(), 3) == 0.001
    clock.pass_ms(1)
    assert slots.processed == FIRST_SLOT + 1
    assert slots.unix_time(FIRST_SLOT + 5) == clock.unix_ms() // 1000 + 2


def test_slots_go_on_while_the_node_is_down() -> None:
    first = Era(FIRST_SLOT, 1_000_000, 400)
    assert next_era([first], 1_000_000 + 4_000, 100, 0) == Era(FIRST_SLOT + 11, 1_004_000, 100)


def test_a_clock_set_back_does_not_reuse_a_slot() -> None:
    first = Era(FIRST_SLOT, 1_000_000, 400)
    assert next_era([first], 5, 400, FIRST_SLOT + 70).first_slot == FIRST_SLOT + 71


def test_the_blockhash_window_survives_a_restart() -> None:
    clock = ManualClock()
    before = started(clock)
    era = Era(before.processed, clock.unix_ms(), 400)
    given = before.blockhash(before.processed)
    assert before.slot_of_blockhash(given) == FIRST_SLOT
    clock.pass_ms(400 * 100)
    after = started(clock, eras=[era])
    assert after.slot_of_blockhash(given) == FIRST_SLOT
    clock.pass_ms(400 * 49)
    assert after.slot_of_blockhash(given) == FIRST_SLOT
    clock.pass_ms(400)
    assert after.processed == FIRST_SLOT + 151
    assert after.slot_of_blockhash(given) is None
    assert after.slot_of_blockhash(b"?" * 32) is None


def test_levels_trail_by_their_lag_and_never_go_back() -> None:
    clock = ManualClock()
    slots = started(clock, Lag(2, 32))
    clock.pass_ms(400 * 40)
    assert (slots.at("confirmed"), slots.at("finalized")) == (FIRST_SLOT + 38, FIRST_SLOT + 8)
    slots.set_lag(Lag(100, 200))
    assert (slots.at("confirmed"), slots.at("finalized")) == (FIRST_SLOT + 38, FIRST_SLOT + 8)
    slots.set_lag(Lag())
    assert slots.at("finalized") == slots.processed


def test_a_skip_keeps_earlier_block_times() -> None:
    clock = ManualClock()
    slots = started(clock)
    clock.pass_ms(4_000)
    earlier = slots.unix_time(FIRST_SLOT + 10)
    slots.skip(151)
    assert slots.processed == FIRST_SLOT + 161
    assert slots.unix_time(FIRST_SLOT + 10) == earlier
    assert slots.unix_time(slots.processed) == clock.unix_ms() // 1000
