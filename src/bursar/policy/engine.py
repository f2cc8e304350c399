"""The policy engine: one pure function from policy, facts and request to a decision.

Every rule is looked at, so that a refusal tells all that stands in the way; the first that fails,
in the order of `Rule`, gives the reject code.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from bursar.money import format_cents, format_micros
from bursar.policy.model import Policy


class Rule(StrEnum):
    """In the order of evaluation."""

    AGENT_STATUS = "agent_status"
    POLICY_FROZEN = "policy_frozen"
    BLOCKLIST = "blocklist"
    ALLOWLIST = "allowlist"
    RECIPIENT_RESOLVED = "recipient_resolved"
    PER_TRANSACTION_CAP = "per_transaction_cap"
    DAILY_CAP = "daily_cap"
    FUNDS = "funds"
    APPROVAL_THRESHOLD = "approval_threshold"


class RejectCode(StrEnum):
    """Why a spend was refused: first the engine's own, in order, then those of later life."""

    AGENT_TERMINATED = "agent_terminated"
    AGENT_PAUSED = "agent_paused"
    POLICY_FROZEN = "policy_frozen"
    RECIPIENT_BLOCKED = "recipient_blocked"
    RECIPIENT_NOT_ALLOWED = "recipient_not_allowed"
    RECIPIENT_UNRESOLVED = "recipient_unresolved"
    PER_TRANSACTION_CAP_EXCEEDED = "per_transaction_cap_exceeded"
    DAILY_CAP_EXCEEDED = "daily_cap_exceeded"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_EXPIRED = "approval_expired"
    SETTLEMENT_FAILED = "settlement_failed"


Outcome = Literal["pass", "fail", "not_evaluated"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true at the moment of the decision, read under the wallet's lock."""

    agent_status: str
    wallet_address: str
    # Where the recipient is paid; None when nobody said so.
    pay_to: str | None
    spent_today_micros: int
    available_micros: int
    # Midnight UTC after this moment, when the day's count starts again.
    resets_at: datetime


@dataclass(frozen=True, slots=True)
class Check:
    rule: Rule
    outcome: Outcome
    limit: str | None
    observed: str | None


@dataclass(frozen=True, slots=True)
class Decision:
    status: Literal["approved", "pending", "rejected"]
    reject_code: RejectCode | None
    checks: tuple[Check, ...]
    # As they are once this decision is in force.
    remaining_today_micros: int
    max_amount_now_micros: int
    # When waiting alone lets this amount pass; None when it would not.
    retry_at: datetime | None


def decide(policy: Policy, facts: Facts, amount_micros: int, recipient: str) -> Decision:
    """No clock, no database, no surprise: the same input gives the same decision for ever."""
    amount = format_micros(amount_micros)
    spent_after = facts.spent_today_micros + amount_micros
    code: RejectCode | None = None
    amount_alone = True  # whether nothing but the amount stands in the way

    def fail(reason: RejectCode, about_amount: bool = False) -> Outcome:
        nonlocal code, amount_alone
        code = code or reason
        amount_alone = amount_alone and about_amount
        return "fail"

    status: Outcome = "pass"
    if facts.agent_status == "terminated":
        status = fail(RejectCode.AGENT_TERMINATED)
    elif facts.agent_status == "paused":
        status = fail(RejectCode.AGENT_PAUSED)
    frozen = fail(RejectCode.POLICY_FROZEN) if policy.frozen else "pass"
    blocked = fail(RejectCode.RECIPIENT_BLOCKED) if policy.blocks.matches(recipient) else "pass"
    # Paying oneself would only burn fees, so no list can allow it.
    own = facts.wallet_address in (recipient, facts.pay_to)
    allowed = (
        "pass"
        if policy.allows.matches(recipient) and not own
        else fail(RejectCode.RECIPIENT_NOT_ALLOWED)
    )
    resolved = "pass" if facts.pay_to else fail(RejectCode.RECIPIENT_UNRESOLVED)
    single_cap = policy.cap_micros_per_transaction
    single: Outcome = "not_evaluated"
    if single_cap is not None:
        single = (
            fail(RejectCode.PER_TRANSACTION_CAP_EXCEEDED, about_amount=True)
            if amount_micros > single_cap
            else "pass"
        )
    code_before_day = code
    day = (
        fail(RejectCode.DAILY_CAP_EXCEEDED, about_amount=True)
        if spent_after > policy.cap_micros_daily
        else "pass"
    )
    funds = (
        fail(RejectCode.INSUFFICIENT_FUNDS, about_amount=True)
        if amount_micros > facts.available_micros
        else "pass"
    )
    threshold = policy.approval_threshold_micros
    approval: Outcome = "not_evaluated"
    if threshold is not None:
        approval = "fail" if amount_micros > threshold else "pass"

    only_day_fails = day == "fail" and code_before_day is None and funds == "pass"
    taken = 0 if code else amount_micros
    remaining = max(policy.cap_micros_daily - facts.spent_today_micros - taken, 0)
    most = min(remaining, facts.available_micros - taken)
    if single_cap is not None:
        most = min(most, single_cap)
    return Decision(
        status="rejected" if code else "pending" if approval == "fail" else "approved",
        reject_code=code,
        checks=(
            Check(Rule.AGENT_STATUS, status, "active", facts.agent_status),
            Check(Rule.POLICY_FROZEN, frozen, "false", "true" if policy.frozen else "false"),
            Check(Rule.BLOCKLIST, blocked, None, recipient),
            Check(Rule.ALLOWLIST, allowed, None, recipient),
            Check(Rule.RECIPIENT_RESOLVED, resolved, None, facts.pay_to),
            Check(Rule.PER_TRANSACTION_CAP, single, _cents(single_cap), amount),
            Check(
                Rule.DAILY_CAP,
                day,
                format_cents(policy.cap_micros_daily),
                format_micros(spent_after),
            ),
            Check(Rule.FUNDS, funds, format_micros(facts.available_micros), amount),
            Check(Rule.APPROVAL_THRESHOLD, approval, _cents(threshold), amount),
        ),
        remaining_today_micros=remaining,
        max_amount_now_micros=most if amount_alone else 0,
        retry_at=facts.resets_at
        if only_day_fails and amount_micros <= policy.cap_micros_daily
        else None,
    )


def budget(policy: Policy, facts: Facts) -> tuple[int, int]:
    """(remaining today, most that one spend may be now), whoever is paid."""
    remaining = max(policy.cap_micros_daily - facts.spent_today_micros, 0)
    if facts.agent_status != "active" or policy.frozen:
        return remaining, 0
    most = min(remaining, facts.available_micros)
    if policy.cap_micros_per_transaction is not None:
        most = min(most, policy.cap_micros_per_transaction)
    return remaining, most


def _cents(micros: int | None) -> str | None:
    return None if micros is None else format_cents(micros)
