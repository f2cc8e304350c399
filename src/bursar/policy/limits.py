"""Limits: how much, or how often, in a window of UTC time.

Use is counted in meters: rows of counters for all windows at once, whether or not a limit stands. A
wallet is one, each budget above it is one, and each limit of a single recipient has one of its own.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from bursar.errors import Fault, ValidationFailed
from bursar.ids import new_id
from bursar.money import format_cents

Window = Literal["hour", "day", "week", "month", "lifetime"]
WINDOWS: Final[tuple[Window, ...]] = get_args(Window)

# The numbers of a meter: how many decisions it counted, then amount and count of each window.
METER: Final = 1 + 2 * len(WINDOWS)
# Where among them the amount of a window stands; its count is next.
PLACES: Final[Mapping[Window, int]] = {
    window: 1 + 2 * place for place, window in enumerate(WINDOWS)
}
MOST_LIMITS: Final = 20
# Budgets above an agent.
MOST_LEVELS: Final = 4
# Every spend asks several times in what order its limits stand: kept for so many agents, a few
# megabytes.
_MOST_APPLIED: Final = 4_096


class Limit(msgspec.Struct, frozen=True, array_like=True):
    """An amount, a number of spends, or both. `recipient` is an entry as of an allowlist: then only
    spends to it count, from when the limit was set."""

    id: str
    window: Window
    amount_micros: int | None
    count: int | None
    recipient: str | None = None


class BudgetTerms(msgspec.Struct, frozen=True, array_like=True):
    """What a budget above the agent says."""

    id: str
    frozen: bool
    limits: tuple[Limit, ...]


class Applied(NamedTuple):
    """A limit that a request is judged by, and the meter that counts for it."""

    limit: Limit
    budget_id: str | None
    meter: int
    # Where the amount of its window stands among all meters' numbers; the count is next.
    place: int
    # What it allows, in words.
    allows: str


@lru_cache(_MOST_APPLIED)
def applied(limits: tuple[Limit, ...], budgets: tuple[BudgetTerms, ...]) -> tuple[Applied, ...]:
    """In the order of evaluation. The first meter is the wallet's, then come those of limits with a
    recipient, then the budgets', the nearest first."""
    found: list[tuple[Limit, str | None, int]] = []
    meter = 0
    for limit in limits:
        if limit.recipient is not None:
            meter += 1
        found.append((limit, None, 0 if limit.recipient is None else meter))
    for budget in budgets:
        meter += 1
        found += [(limit, budget.id, meter) for limit in budget.limits]
    return tuple(
        Applied(
            limit,
            budget_id,
            meter,
            meter * METER + PLACES[limit.window],
            measure(limit, format_cents(limit.amount_micros or 0), limit.count or 0),
        )
        for limit, budget_id, meter in found
    )


def meter_ids(limits: Sequence[Limit], budgets: Sequence[BudgetTerms]) -> tuple[str, ...]:
    """The meters beside the wallet's, in their order."""
    return (
        *(limit.id for limit in limits if limit.recipient is not None),
        *(budget.id for budget in budgets),
    )


def named_limits(
    limits: Sequence[Limit], standing: Sequence[Limit], path: str = "policy.limits"
) -> tuple[Limit, ...]:
    """With ids: new ones get theirs here, and not when they are read, because a request that is
    repeated is the same. One without an id that stands already, word for word, is that one: setting
    what is set changes nothing, and what it has counted goes on counting. An id that is given is of
    a limit that stands, for the same recipient: what another one has counted is not to be had by
    naming it. Raises ValidationFailed."""
    known = {(limit.id, limit.recipient) for limit in standing}
    named = [limit.id for limit in limits if limit.id]
    faults = [
        Fault(f"{path}[{index}].id", f"{path}[{index}].id is not of a limit that stands here.")
        for index, limit in enumerate(limits)
        if limit.id and ((limit.id, limit.recipient) not in known or named.count(limit.id) > 1)
    ]
    if faults:
        raise ValidationFailed(faults)
    left = {limit.id: limit for limit in standing if limit.id not in named}
    found: list[Limit] = []
    for limit in limits:
        if limit.id:
            found.append(limit)
            continue
        same = next((one for one in left.values() if one == _with_id(limit, one.id)), None)
        if same is not None:
            del left[same.id]
        found.append(same or _with_id(limit, new_id("lim")))
    return tuple(found)


def _with_id(limit: Limit, id_: str) -> Limit:
    return msgspec.structs.replace(limit, id=id_)


def exceeds(limit: Limit, micros: int, count: int, amount_micros: int) -> bool:
    """Whether one more spend of this amount is too much or too many."""
    return (limit.amount_micros is not None and micros + amount_micros > limit.amount_micros) or (
        limit.count is not None and count + 1 > limit.count
    )


def measure(limit: Limit, amount: str, count: int) -> str:
    """Such as `12.50 in 3 spends`, of what the limit speaks of."""
    if limit.count is None:
        return amount
    spends = f"{count} spend{'' if count == 1 else 's'}"
    return spends if limit.amount_micros is None else f"{amount} in {spends}"


def window_start(window: Window, at: datetime) -> datetime | None:
    """None of a lifetime."""
    hour = datetime(at.year, at.month, at.day, at.hour, tzinfo=UTC)
    match window:
        case "hour":
            return hour
        case "day":
            return hour.replace(hour=0)
        case "week":
            return hour.replace(hour=0) - timedelta(days=at.weekday())
        case "month":
            return hour.replace(hour=0, day=1)
        case "lifetime":
            return None


def window_end(window: Window, at: datetime) -> datetime | None:
    """When what was used counts no longer; None of a lifetime."""
    start = window_start(window, at)
    if start is None:
        return None
    match window:
        case "hour":
            return start + timedelta(hours=1)
        case "day":
            return start + timedelta(days=1)
        case "week":
            return start + timedelta(weeks=1)
        case _:
            # The first of the month after: no month has more than 31 days.
            return (start + timedelta(days=32)).replace(day=1)


def numbers_at(
    numbers: Sequence[int], windows_at: datetime | None, at: datetime
) -> tuple[int, ...]:
    """What a meter counts at a later moment than it was written at: windows that are over begin at
    nothing."""
    if windows_at is None:
        return tuple(numbers)
    decisions, *windows = numbers
    kept: list[int] = [decisions]
    for place, window in enumerate(WINDOWS):
        runs = window_start(window, windows_at) == window_start(window, at) or at < windows_at
        kept += windows[2 * place : 2 * place + 2] if runs else (0, 0)
    return tuple(kept)


def without(
    numbers: Sequence[int],
    windows_at: datetime | None,
    at: datetime,
    amount_micros: int,
    closed: Mapping[str, tuple[int, int]],
) -> tuple[int, ...]:
    """What a meter counted in the windows of `at`, without one spend of that moment; of an amount
    of 0 it counted none. `closed` is what is kept of windows that are over, by their kind."""
    decisions, *windows = numbers
    count = int(amount_micros > 0)
    left: list[int] = [decisions]
    for place, window in enumerate(WINDOWS):
        runs = windows_at is not None and window_start(window, windows_at) == window_start(
            window, at
        )
        if runs:
            micros, spends = windows[2 * place : 2 * place + 2]
        else:
            micros, spends = closed.get(window, (amount_micros, count))
        left += (micros - amount_micros, spends - count)
    return tuple(left)
