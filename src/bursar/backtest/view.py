"""How backtests and drafts show themselves."""

from typing import Any

import msgspec
from msgspec import UNSET

from bursar.backtest.model import BacktestRow, BacktestStatus, DraftRow
from bursar.backtest.report import Change, Pair, Report, Totals
from bursar.clock import iso
from bursar.money import format_cents_or_none, format_micros
from bursar.policy.engine import Rule, Verdict
from bursar.policy.limits import Limit
from bursar.policy.model import Policy, PolicyChange
from bursar.policy.view import PolicyView, show_limit, show_policy


class Reproduced(msgspec.Struct, rename="camel", kw_only=True):
    """How many requests were replayed by the policies then in force, and how many of them were
    decided again as they had been: anything but all of them is a defect."""

    of: int
    same: int


class TotalsView(msgspec.Struct, rename="camel", kw_only=True):
    """How many requests were decided how; `amount` is of those that were not refused."""

    approved: int
    pending: int
    rejected: int
    amount: str


class Others(msgspec.Struct, rename="camel", kw_only=True):
    """Requests of other agents that share a budget with those of the draft."""

    of: int
    changed: int


class RuleCountsView(msgspec.Struct, rename="camel", kw_only=True):
    """How many requests a rule refused or, `approval_threshold`, made wait."""

    rule: Rule
    current: int
    draft: int


class DayTotalsView(msgspec.Struct, rename="camel", kw_only=True):
    """One UTC day."""

    day: str
    current: TotalsView
    draft: TotalsView


class DifferenceView(msgspec.Struct, rename="camel", kw_only=True):
    """A request that would have been decided differently, and the rule that makes the
    difference."""

    transaction_id: str
    agent_id: str
    amount: str
    was: Verdict
    would: Verdict
    rule: Rule


class ResultView(msgspec.Struct, rename="camel", kw_only=True):
    """What a backtest found, as it is stored."""

    reproduced: Reproduced
    current: TotalsView
    draft: TotalsView
    others: Others
    by_rule: list[RuleCountsView]
    by_day: list[DayTotalsView]
    changed_count: int


class BacktestView(msgspec.Struct, rename="camel", kw_only=True):
    """What a draft would have decided of recorded requests. What is found is null until it is
    `done`."""

    id: str
    status: BacktestStatus
    progress: int
    problem: str | None
    agent_id: str | None
    budget_id: str | None
    metadata: dict[str, str] | None
    policy: dict[str, Any] | None
    limits: list[dict[str, Any]] | None
    starts_at: str
    ends_at: str
    assumptions: list[str]
    reproduced: Reproduced | None
    current: TotalsView | None
    draft: TotalsView | None
    others: Others | None
    by_rule: list[RuleCountsView]
    by_day: list[DayTotalsView]
    changed_count: int | None
    changed: list[DifferenceView]
    created_by: str
    created_at: str
    finished_at: str | None


class DraftView(msgspec.Struct, rename="camel", kw_only=True):
    """A policy that is not in force, and what it would have decided since it was written.
    `policy` is how the policy would be; `baseVersion` the version that it changes. `differences`
    are the last 100, the newest first."""

    agent_id: str
    base_version: int
    policy: PolicyView
    since: str
    followed_until: str
    decided: int
    differing: int
    differences: list[DifferenceView]
    created_by: str


_ASSUMPTIONS = (
    "Deposits, withdrawals, payments that failed and spends that were given back are as recorded.",
    "What the draft would newly make pending counts as approved, and as paid.",
    "Every request was made as it was recorded, whatever was decided before it.",
    "The draft changes what was in force at each request; what it does not name was as it was.",
    "A request costs on the network what was reserved for it then.",
    "Hosts stand for the addresses that the directory gives them today.",
    "A limit with a recipient that did not stand yet counts from the beginning of the backtest.",
    "Purchases refused before a price was known are left out; who is paid is as recorded.",
)

_result = msgspec.json.Decoder(ResultView).decode
_differences = msgspec.json.Decoder(list[DifferenceView]).decode


def result_of(report: Report) -> ResultView:
    return ResultView(
        reproduced=Reproduced(of=report.of, same=report.same),
        current=_totals(report.totals.current),
        draft=_totals(report.totals.draft),
        others=Others(of=report.others, changed=report.others_changed),
        by_rule=[
            RuleCountsView(rule=counts.rule, current=counts.current, draft=counts.draft)
            for counts in report.by_rule
        ],
        by_day=[
            DayTotalsView(day=day.isoformat(), **_pair(pair))
            for day, pair in sorted(report.by_day.items())
        ],
        changed_count=report.changed_count,
    )


def show_backtest(row: BacktestRow, changes: list[Change]) -> BacktestView:
    asked = row.asked
    found = None if row.result is None else _result(row.result)
    return BacktestView(
        id=row.id,
        status=row.status,
        progress=row.percent,
        problem=row.problem,
        agent_id=asked.agent_id,
        budget_id=asked.budget_id,
        metadata=asked.metadata,
        policy=None if asked.policy is None else show_policy_change(asked.policy),
        limits=None if asked.limits is None else [_limit(limit) for limit in asked.limits],
        starts_at=iso(row.starts_at),
        ends_at=iso(row.ends_at),
        assumptions=list(_ASSUMPTIONS),
        reproduced=None if found is None else found.reproduced,
        current=None if found is None else found.current,
        draft=None if found is None else found.draft,
        others=None if found is None else found.others,
        by_rule=[] if found is None else found.by_rule,
        by_day=[] if found is None else found.by_day,
        changed_count=None if found is None else found.changed_count,
        changed=[show_change(change) for change in changes],
        created_by=row.created_by,
        created_at=iso(row.created_at),
        finished_at=None if row.finished_at is None else iso(row.finished_at),
    )


def show_draft(row: DraftRow, policy_id: str, policy: Policy) -> DraftView:
    return DraftView(
        agent_id=row.agent_id,
        base_version=row.base_version,
        policy=show_policy(policy_id, policy),
        since=iso(row.since),
        followed_until=iso(row.followed_until),
        decided=row.decided,
        differing=row.differing,
        differences=_differences(row.differences),
        created_by=row.created_by,
    )


def show_change(change: Change) -> DifferenceView:
    return DifferenceView(
        transaction_id=change.spend_id,
        agent_id=change.agent_id,
        amount=format_micros(change.amount_micros),
        was=change.was,
        would=change.would,
        rule=change.rule,
    )


def show_policy_change(change: PolicyChange) -> dict[str, Any]:
    """As it was sent: only what it changes."""
    shown = {
        "dailyCap": _cents(change.cap_micros_daily),
        "allowlist": change.allowlist,
        "blocklist": change.blocklist,
        "payees": change.payees,
        "limits": UNSET if change.limits is UNSET else [_limit(each) for each in change.limits],
        "perTransactionCap": _cents(change.cap_micros_per_transaction),
        "approvalThreshold": _cents(change.approval_threshold_micros),
        "dailyNetworkLamports": change.network_lamports_daily,
        "frozen": change.frozen,
    }
    return {name: value for name, value in shown.items() if value is not UNSET}


def _cents(micros: Any) -> Any:
    return UNSET if micros is UNSET else format_cents_or_none(micros)


def _limit(limit: Limit) -> dict[str, Any]:
    return msgspec.to_builtins(show_limit(limit))


def _totals(totals: Totals) -> TotalsView:
    return TotalsView(
        approved=totals.approved,
        pending=totals.pending,
        rejected=totals.rejected,
        amount=format_micros(totals.amount_micros),
    )


def _pair(pair: Pair) -> dict[str, TotalsView]:
    return {"current": _totals(pair.current), "draft": _totals(pair.draft)}
