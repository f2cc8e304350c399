"""Between which values of what was used a wallet's decisions stay what they are.

A batch is decided on remembered numbers and written against those that the database has by then.
It may be written if the numbers still lie in these intervals: an approval bounds them on one side,
a refusal on the other, and for a refusal the rules that stand before its own must go on passing, so
that its first failing rule stays the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import add
from typing import Final

from bursar.policy.engine import RejectCode, Terms, Used, waits
from bursar.policy.limits import METER, PLACES, WINDOWS, Limit

# Beyond all that a bigint and an integer column can hold.
_MOST: Final = 2**63 - 1
_MOST_PENDING: Final = 2**31 - 1
# As `within` of the schema takes bounds.
_WITHIN: Final = "{" + ",".join(["%d,%d"] * (METER - 1)) + "}"


@dataclass(slots=True)
class MeterGuard:
    """A meter while a batch is decided: what it had before, what the batch adds, and between which
    values of what it had the decisions stay what they are."""

    id: str
    rules: int
    numbers: tuple[int, ...]
    decisions: int = 0
    micros: int = 0
    moves: int = 0
    least: list[int] = field(default_factory=lambda: [0] * (METER - 1))
    most: list[int] = field(default_factory=lambda: [_MOST] * (METER - 1))

    def now(self) -> tuple[int, ...]:
        """Its numbers, with what the batch has added."""
        return self.after(self.numbers)

    def after(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """These numbers, with what the batch has added."""
        if not self.decisions:
            return numbers
        added = (self.decisions, *(self.micros, self.moves) * len(WINDOWS))
        return tuple(map(add, numbers, added))

    def hold(self, limit: Limit, amount_micros: int) -> bool:
        """Narrows the bounds to where this limit goes on passing, or failing, as it does now;
        returns whether it passes."""
        place = PLACES[limit.window]
        amount_room = count_room = None
        if limit.amount_micros is not None:
            amount_room = limit.amount_micros - self.micros - amount_micros
            if self.numbers[place] > amount_room:
                self.least[place - 1] = max(self.least[place - 1], amount_room + 1)
                return False
        if limit.count is not None:
            count_room = limit.count - self.moves - 1
            if self.numbers[place + 1] > count_room:
                self.least[place] = max(self.least[place], count_room + 1)
                return False
        if amount_room is not None and amount_room < self.most[place - 1]:
            self.most[place - 1] = amount_room
        if count_room is not None and count_room < self.most[place]:
            self.most[place] = count_room
        return True

    def bounds(self) -> str:
        return _WITHIN % tuple(chain.from_iterable(zip(self.least, self.most, strict=True)))


@dataclass(slots=True)
class Guard:
    """The intervals of one wallet, for numbers as they were before its batch."""

    spent_least: int = 0
    spent_most: int = _MOST
    available_least: int = 0
    available_most: int = _MOST
    lamports_least: int = 0
    lamports_most: int = _MOST
    pending_least: int = 0
    pending_most: int = _MOST_PENDING

    def hold(
        self,
        terms: Terms,
        amount_micros: int,
        cost: int,
        code: RejectCode | None,
        added: Used,
        meters: Sequence[MeterGuard] = (),
    ) -> None:
        """Narrows the intervals to those in which this decision stands. `added` is what earlier
        decisions of the batch added; what they took of the funds counts as spent. `meters` are
        those of `Used.meters`."""
        if code in _STANDING:
            return
        cap = terms.cap_micros_daily - added.spent_today_micros - amount_micros
        if code is RejectCode.DAILY_CAP_EXCEEDED:
            self.spent_least = max(self.spent_least, cap + 1)
            return
        self.spent_most = min(self.spent_most, cap)
        for each in terms.applied:
            if not meters[each.meter].hold(each.limit, amount_micros):
                return
        budget = terms.network_budget_lamports - added.network_today_lamports - cost
        if code is RejectCode.NETWORK_COST_EXCEEDED:
            self.lamports_least = max(self.lamports_least, budget + 1)
            return
        self.lamports_most = min(self.lamports_most, budget)
        if waits(terms, amount_micros):
            room = terms.pending_max - added.pending_count - 1
            if code is RejectCode.TOO_MANY_PENDING:
                self.pending_least = max(self.pending_least, room + 1)
                return
            self.pending_most = min(self.pending_most, room)
        needed = amount_micros + added.spent_today_micros
        if code is RejectCode.INSUFFICIENT_FUNDS:
            self.available_most = min(self.available_most, needed - 1)
            return
        self.available_least = max(self.available_least, needed)


# Refusals that rest on the rules alone, which the guard compares as such.
_STANDING: Final = frozenset(
    {
        RejectCode.ACCOUNT_STOPPED,
        RejectCode.AGENT_TERMINATED,
        RejectCode.AGENT_PAUSED,
        RejectCode.POLICY_FROZEN,
        RejectCode.BUDGET_FROZEN,
        RejectCode.RECIPIENT_BLOCKED,
        RejectCode.RECIPIENT_NOT_ALLOWED,
        RejectCode.RECIPIENT_UNRESOLVED,
        RejectCode.PAYEE_MISMATCH,
        RejectCode.PAYEE_CHANGED,
        RejectCode.PAYEE_ACCOUNT_MISSING,
        RejectCode.MAX_AMOUNT_EXCEEDED,
        RejectCode.PER_TRANSACTION_CAP_EXCEEDED,
    }
)
