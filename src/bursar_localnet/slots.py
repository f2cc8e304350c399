"""Time on the chain: slots, commitment levels and the window of blockhashes still accepted.

There is no timer: the slot is computed from the clock when it is needed, so an idle node sleeps.
Every slot has a block, so block height and slot are the same number.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from bursar_localnet.clock import Clock

Commitment = Literal["processed", "confirmed", "finalized"]

# The first slot is above zero, so that a lagging commitment level is never negative.
FIRST_SLOT: Final = 1_000
SLOTS_PER_EPOCH: Final = 432_000
# A blockhash is accepted while its block is at most this many blocks back, as on every cluster.
MAX_BLOCKHASH_AGE: Final = 150


@dataclass(frozen=True, slots=True)
class Era:
    """A period of evenly spaced slots: from one start (or skip) of the node to the next."""

    first_slot: int
    unix_ms: int
    slot_ms: int

    def slot_at(self, unix_ms: int) -> int:
        return self.first_slot + max(0, unix_ms - self.unix_ms) // self.slot_ms


@dataclass(frozen=True, slots=True)
class Lag:
    """How many slots a level trails the processed one; zero makes it instant."""

    confirmed: int = 0
    finalized: int = 0


def next_era(eras: Sequence[Era], unix_ms: int, slot_ms: int, last_used: int) -> Era:
    """The era of a node that starts now. Slots continued while it was down, and never go back.

    `last_used` is the newest slot with a transaction; it guards against a wall clock that was set
    back.
    """
    went_on_to = eras[-1].slot_at(unix_ms) + 1 if eras else FIRST_SLOT
    return Era(max(went_on_to, last_used + 1), unix_ms, slot_ms)


class Slots:
    """`eras` ends with the one that starts now; `rooted` is the newest slot known to be final."""

    def __init__(
        self, clock: Clock, seed: bytes, eras: Sequence[Era], lag: Lag, rooted: int
    ) -> None:
        self._clock = clock
        self._seed = seed
        self._eras = list(eras)
        self._start_ns = clock.monotonic_ns()
        self._lag = lag
        self._reached = {"confirmed": rooted, "finalized": rooted}
        self._window: dict[bytes, int] = {}
        self._window_order: deque[bytes] = deque()
        self._window_end = 0

    def at(self, commitment: Commitment) -> int:
        """The newest slot at this level; it never goes back, even if the lag grows."""
        slot = self._era.first_slot + self._elapsed_ns() // self._slot_ns
        if commitment == "processed":
            return slot
        lag = self._lag.confirmed if commitment == "confirmed" else self._lag.finalized
        self._reached[commitment] = max(self._reached[commitment], slot - lag)
        return self._reached[commitment]

    @property
    def processed(self) -> int:
        return self.at("processed")

    @property
    def first(self) -> int:
        return self._eras[0].first_slot

    def seconds_to_next(self) -> float:
        return (self._slot_ns - self._elapsed_ns() % self._slot_ns) / 1_000_000_000

    def unix_time(self, slot: int) -> int:
        """Whole seconds at which this slot began."""
        era = self._eras[max(0, bisect_right(self._eras, slot, key=lambda e: e.first_slot) - 1)]
        return (era.unix_ms + (slot - era.first_slot) * era.slot_ms) // 1000

    def blockhash(self, slot: int) -> bytes:
        """Computed, not random, so that the same hashes are accepted after a restart."""
        return sha256(b"blockhash" + self._seed + slot.to_bytes(8, "big")).digest()

    def slot_of_blockhash(self, blockhash: bytes) -> int | None:
        """None once the hash is too old, or when it was never this chain's."""
        newest = self.processed
        oldest = newest - MAX_BLOCKHASH_AGE
        for slot in range(max(self._window_end + 1, oldest), newest + 1):
            added = self.blockhash(slot)
            self._window[added] = slot
            self._window_order.append(added)
        self._window_end = newest
        while self._window[self._window_order[0]] < oldest:
            del self._window[self._window_order.popleft()]
        return self._window.get(blockhash)

    def set_lag(self, lag: Lag) -> None:
        # A slot that was reached under the old lag stays reached.
        for level in ("confirmed", "finalized"):
            self.at(level)
        self._lag = lag

    def skip(self, count: int) -> Era:
        """Let `count` blocks pass at once. The caller stores the era that this begins."""
        now = self._clock.now()
        era = Era(self.processed + count, round(now.timestamp() * 1000), self._era.slot_ms)
        self._eras.append(era)
        self._start_ns = self._clock.monotonic_ns()
        return era

    @property
    def _era(self) -> Era:
        return self._eras[-1]

    @property
    def _slot_ns(self) -> int:
        return self._era.slot_ms * 1_000_000

    def _elapsed_ns(self) -> int:
        return self._clock.monotonic_ns() - self._start_ns
