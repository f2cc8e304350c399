"""What a replay found, added up."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import date
from typing import Final, NamedTuple

import msgspec

from bursar.backtest.replay import Decided, Outcome
from bursar.policy.engine import RejectCode, Rule, Verdict


@dataclass(slots=True)
class Totals:
    """How many were decided how, and how much of it may be paid."""

    approved: int = 0
    pending: int = 0
    rejected: int = 0
    amount_micros: int = 0

    def add(self, verdict: Verdict, amount_micros: int) -> None:
        match verdict:
            case "approved":
                self.approved += 1
            case "pending":
                self.pending += 1
            case "rejected":
                self.rejected += 1
                return
        self.amount_micros += amount_micros


@dataclass(slots=True)
class Pair:
    """As it was, and as it would have been."""

    current: Totals = field(default_factory=Totals)
    draft: Totals = field(default_factory=Totals)

    def add(self, outcome: Outcome) -> None:
        request = outcome.request
        self.current.add(request.verdict, request.amount_micros)
        self.draft.add(outcome.would[0], request.amount_micros)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A request that would have been decided differently, and the rule that does it."""

    spend_id: str
    agent_id: str
    amount_micros: int
    was: Verdict
    would: Verdict
    rule: Rule


class RuleCounts(NamedTuple):
    """How many a rule refused or made wait."""

    rule: Rule
    current: int
    draft: int


class Report:
    """Of the agents that the draft speaks of. Others share budgets with them: of those it says only
    how many requests there were, and how many would have been decided differently."""

    def __init__(self, agent_ids: frozenset[str]) -> None:
        self._agent_ids = agent_ids
        self.of = 0
        self.same = 0
        self.others = 0
        self.others_changed = 0
        self.changed_count = 0
        self.totals = Pair()
        self.by_day: defaultdict[date, Pair] = defaultdict(Pair)
        self._was_by: Counter[Rule] = Counter()
        self._would_by: Counter[Rule] = Counter()

    def add(self, outcome: Outcome) -> Change | None:
        """What would have changed, if anything."""
        request, would = outcome.request, outcome.would
        was: Decided = request.verdict, request.reject_code
        self.of += 1
        self.same += outcome.same
        if request.agent_id in self._agent_ids:
            self.totals.add(outcome)
            self.by_day[request.created_at.date()].add(outcome)
            for decided, counts in ((was, self._was_by), (would, self._would_by)):
                if (rule := rule_of(decided)) is not None:
                    counts[rule] += 1
        else:
            self.others += 1
            self.others_changed += was[0] != would[0]
        if was[0] == would[0]:
            return None
        self.changed_count += 1
        return Change(
            spend_id=request.id,
            agent_id=request.agent_id,
            amount_micros=request.amount_micros,
            was=was[0],
            would=would[0],
            rule=rule_of(would) or rule_of(was) or Rule.APPROVAL_THRESHOLD,
        )

    @property
    def by_rule(self) -> list[RuleCounts]:
        """In the order of evaluation."""
        return [
            RuleCounts(rule, self._was_by[rule], self._would_by[rule])
            for rule in Rule
            if self._was_by[rule] or self._would_by[rule]
        ]


def rule_of(decided: Decided) -> Rule | None:
    """The rule that refused a request, or made it wait."""
    verdict, code = decided
    if verdict == "pending":
        return Rule.APPROVAL_THRESHOLD
    return None if code is None else _RULES[code]


_RULES: Final = {
    RejectCode.ACCOUNT_STOPPED: Rule.ACCOUNT_STOPPED,
    RejectCode.AGENT_TERMINATED: Rule.AGENT_STATUS,
    RejectCode.AGENT_PAUSED: Rule.AGENT_STATUS,
    RejectCode.POLICY_FROZEN: Rule.POLICY_FROZEN,
    RejectCode.BUDGET_FROZEN: Rule.BUDGET_FROZEN,
    RejectCode.RECIPIENT_BLOCKED: Rule.BLOCKLIST,
    RejectCode.RECIPIENT_NOT_ALLOWED: Rule.ALLOWLIST,
    RejectCode.RECIPIENT_UNRESOLVED: Rule.RECIPIENT_RESOLVED,
    RejectCode.PAYEE_MISMATCH: Rule.PAYEE,
    RejectCode.PAYEE_CHANGED: Rule.PAYEE,
    RejectCode.PAYEE_ACCOUNT_MISSING: Rule.PAYEE_ACCOUNT,
    RejectCode.MAX_AMOUNT_EXCEEDED: Rule.MAX_AMOUNT,
    RejectCode.PER_TRANSACTION_CAP_EXCEEDED: Rule.PER_TRANSACTION_CAP,
    RejectCode.DAILY_CAP_EXCEEDED: Rule.DAILY_CAP,
    RejectCode.LIMIT_EXCEEDED: Rule.LIMIT,
    RejectCode.BUDGET_EXCEEDED: Rule.BUDGET,
    RejectCode.NETWORK_COST_EXCEEDED: Rule.NETWORK_COST,
    RejectCode.TOO_MANY_PENDING: Rule.PENDING_COUNT,
    RejectCode.INSUFFICIENT_FUNDS: Rule.FUNDS,
}
