"""A budget, and what its meter counted."""

from datetime import datetime
from typing import NamedTuple

import msgspec

from bursar.policy.limits import BudgetTerms, Limit, numbers_at


class Chain(NamedTuple):
    """A budget and those above it; and the `rules` of each one's meter, read with it: whoever
    decides by what the budgets say compares them with what they are by then."""

    budgets: tuple[BudgetTerms, ...] = ()
    rules: tuple[int, ...] = ()


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    realm_id: int
    name: str
    parent_id: str | None
    level: int
    limits: tuple[Limit, ...]
    frozen: bool
    created_by: str
    created_at: datetime
    updated_at: datetime


class MeterRow(msgspec.Struct, frozen=True, kw_only=True):
    """`numbers` are those of `policy/limits.py`, in the windows of `windows_at`; None: it has
    counted nothing yet."""

    id: str
    rules: int
    windows_at: datetime | None
    created_at: datetime
    numbers: tuple[int, ...]

    def at(self, now: datetime) -> "MeterRow":
        """What it counts now: windows that are over since begin at nothing."""
        numbers = numbers_at(self.numbers, self.windows_at, now)
        return msgspec.structs.replace(self, numbers=numbers)
