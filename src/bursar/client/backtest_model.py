"""What the service answers about backtests and drafts, as in `model.py`."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from bursar.client.model import Policy
from bursar.client.record import record

Verdict = Literal["approved", "pending", "rejected"]
BacktestStatus = Literal["queued", "running", "done", "failed"]


@record
class Reproduced:
    """How many requests were replayed by the policies then in force, and how many of them were
    decided again as they had been."""

    of: int
    same: int


@record
class Totals:
    """How many requests were decided how; `amount` is of those that were not refused."""

    approved: int
    pending: int
    rejected: int
    amount: Decimal


@record
class Others:
    """Requests of other agents that share a budget with those of the draft."""

    of: int
    changed: int


@record
class RuleCounts:
    """How many requests a rule refused, or made wait."""

    rule: str
    current: int
    draft: int


@record
class DayTotals:
    """One UTC day, such as `2026-11-15`."""

    day: str
    current: Totals
    draft: Totals


@record
class Difference:
    """A request that would have been decided differently, and the rule that makes the
    difference."""

    transaction_id: str
    agent_id: str
    amount: Decimal
    was: Verdict
    would: Verdict
    rule: str


@record
class Backtest:
    """What a draft would have decided of recorded requests. What is found is None until it is
    `done`; `progress` is in percent."""

    id: str
    status: BacktestStatus
    progress: int
    problem: str | None
    agent_id: str | None
    budget_id: str | None
    metadata: Mapping[str, str] | None
    policy: Mapping[str, Any] | None
    limits: tuple[Mapping[str, Any], ...] | None
    starts_at: datetime
    ends_at: datetime
    assumptions: tuple[str, ...]
    reproduced: Reproduced | None
    current: Totals | None
    draft: Totals | None
    others: Others | None
    by_rule: tuple[RuleCounts, ...]
    by_day: tuple[DayTotals, ...]
    changed_count: int | None
    changed: tuple[Difference, ...]
    created_by: str
    created_at: datetime
    finished_at: datetime | None


@record
class Draft:
    """A policy that is not in force, and what it would have decided since it was written, up to
    `followed_until`. `differences` are the last 100, the newest first."""

    agent_id: str
    base_version: int
    policy: Policy
    since: datetime
    followed_until: datetime
    decided: int
    differing: int
    differences: tuple[Difference, ...]
    created_by: str
