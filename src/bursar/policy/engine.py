"""The policy engine: one pure function from policy, facts and request to a decision.

Every rule is checked, so that a refusal names everything that stands in the way. The first rule
that fails, in the order of `Rule`, gives the reject code.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

from bursar.money import format_cents, format_cents_or_none, format_micros
from bursar.policy.model import Bounds, Policy


class Rule(StrEnum):
    """In the order of evaluation."""

    AGENT_STATUS = "agent_status"
    POLICY_FROZEN = "policy_frozen"
    BLOCKLIST = "blocklist"
    ALLOWLIST = "allowlist"
    RECIPIENT_RESOLVED = "recipient_resolved"
    PER_TRANSACTION_CAP = "per_transaction_cap"
    DAILY_CAP = "daily_cap"
    NETWORK_COST = "network_cost"
    PENDING_COUNT = "pending_count"
    FUNDS = "funds"
    APPROVAL_THRESHOLD = "approval_threshold"


class RejectCode(StrEnum):
    """Why a spend was rejected: the engine's reasons in order, then those of pending and approved
    spends."""

    AGENT_TERMINATED = "agent_terminated"
    AGENT_PAUSED = "agent_paused"
    POLICY_FROZEN = "policy_frozen"
    RECIPIENT_BLOCKED = "recipient_blocked"
    RECIPIENT_NOT_ALLOWED = "recipient_not_allowed"
    RECIPIENT_UNRESOLVED = "recipient_unresolved"
    PER_TRANSACTION_CAP_EXCEEDED = "per_transaction_cap_exceeded"
    DAILY_CAP_EXCEEDED = "daily_cap_exceeded"
    NETWORK_COST_EXCEEDED = "network_cost_exceeded"
    TOO_MANY_PENDING = "too_many_pending"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_EXPIRED = "approval_expired"
    SETTLEMENT_FAILED = "settlement_failed"


Outcome = Literal["pass", "fail", "not_evaluated"]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is true at the moment of the decision, read under the wallet's lock."""

    agent_status: str
    wallet_address: str
    # The address that the recipient is paid at; None when the directory names none.
    pay_to: str | None
    # Whether the directory gives that address to a host that the policy blocks.
    pays_blocked_host: bool
    spent_today_micros: int
    available_micros: int
    # What the day's payments cost in SOL so far, and what is reserved for this one.
    network_today_lamports: int
    network_cost_lamports: int
    # Spends that wait for a person.
    pending_count: int
    bounds: Bounds
    # Midnight UTC after this moment, when the day's count starts again.
    resets_at: datetime


class Check(msgspec.Struct, frozen=True):
    """One rule: what it allows, and what it observed."""

    rule: Rule
    outcome: Outcome
    limit: str | None
    observed: str | None


class Decision(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What was decided, and all that explains it. Stored as a short array."""

    status: Literal["approved", "pending", "rejected"]
    reject_code: RejectCode | None
    # One letter a rule, in the order of `_STORED`: p(ass), f(ail), n(ot evaluated).
    outcomes: str
    amount_micros: int
    recipient: str
    # Null for a host that the lists refuse, or an agent could read the directory by asking.
    pay_to: str | None
    agent_status: str
    frozen: bool
    cap_micros_per_transaction: int | None
    cap_micros_daily: int
    spent_after_micros: int
    available_micros: int
    approval_threshold_micros: int | None
    # As they are once this decision is in force.
    remaining_today_micros: int
    max_amount_now_micros: int
    # From when on this amount passes if nothing else changes; None when it never would.
    retry_at: datetime | None
    # Later fields stand at the end with a default, so that older decisions can still be read.
    pending_after: int = 0
    pending_max: int = 0
    network_after_lamports: int = 0
    network_budget_lamports: int = 0

    @property
    def checks(self) -> list[Check]:
        """Every rule with its outcome, its limit and what was observed."""
        amount = format_micros(self.amount_micros)
        seen: dict[Rule, tuple[str | None, str | None]] = {
            Rule.AGENT_STATUS: ("active", self.agent_status),
            Rule.POLICY_FROZEN: ("false", "true" if self.frozen else "false"),
            Rule.BLOCKLIST: (None, self.recipient),
            Rule.ALLOWLIST: (None, self.recipient),
            Rule.RECIPIENT_RESOLVED: (None, self.pay_to),
            Rule.PER_TRANSACTION_CAP: (
                format_cents_or_none(self.cap_micros_per_transaction),
                amount,
            ),
            Rule.DAILY_CAP: (
                format_cents(self.cap_micros_daily),
                format_micros(self.spent_after_micros),
            ),
            Rule.NETWORK_COST: (
                str(self.network_budget_lamports),
                str(self.network_after_lamports),
            ),
            Rule.PENDING_COUNT: (str(self.pending_max), str(self.pending_after)),
            Rule.FUNDS: (format_micros(self.available_micros), amount),
            Rule.APPROVAL_THRESHOLD: (format_cents_or_none(self.approval_threshold_micros), amount),
        }
        letters = dict(zip(_STORED, self.outcomes.ljust(len(_STORED), "n"), strict=True))
        return [Check(rule, _OUTCOMES[letters[rule]], *seen[rule]) for rule in Rule]


# The letter of a later rule stands at the end, so that older decisions can still be read.
_STORED: Final = (
    Rule.AGENT_STATUS,
    Rule.POLICY_FROZEN,
    Rule.BLOCKLIST,
    Rule.ALLOWLIST,
    Rule.RECIPIENT_RESOLVED,
    Rule.PER_TRANSACTION_CAP,
    Rule.DAILY_CAP,
    Rule.FUNDS,
    Rule.APPROVAL_THRESHOLD,
    Rule.PENDING_COUNT,
    Rule.NETWORK_COST,
)
_OUTCOMES: Final[dict[str, Outcome]] = {"p": "pass", "f": "fail", "n": "not_evaluated"}


def decide(policy: Policy, facts: Facts, amount_micros: int, recipient: str) -> Decision:
    """No clock and no database: the same input always gives the same decision."""
    code: RejectCode | None = None
    amount_alone = True  # whether nothing but the amount stands in the way

    def fail(reason: RejectCode, about_amount: bool = False) -> str:
        nonlocal code, amount_alone
        code = code or reason
        amount_alone = amount_alone and about_amount
        return "f"

    status = "p"
    if facts.agent_status == "terminated":
        status = fail(RejectCode.AGENT_TERMINATED)
    elif facts.agent_status == "paused":
        status = fail(RejectCode.AGENT_PAUSED)
    frozen = fail(RejectCode.POLICY_FROZEN) if policy.frozen else "p"
    # Host and address stand for each other: a policy that blocks one blocks the other as well.
    blocked = "p"
    if facts.pays_blocked_host or policy.blocks.matches_any(recipient, facts.pay_to):
        blocked = fail(RejectCode.RECIPIENT_BLOCKED)
    # Paying itself would only burn fees, so no list can allow it.
    own = facts.wallet_address in (recipient, facts.pay_to)
    allowed = "p"
    if own or not policy.allows.matches(recipient):
        allowed = fail(RejectCode.RECIPIENT_NOT_ALLOWED)
    host_refused = "f" in (blocked, allowed) and recipient != facts.pay_to
    resolved = "p" if facts.pay_to else fail(RejectCode.RECIPIENT_UNRESOLVED)
    single_cap = policy.cap_micros_per_transaction
    single = "n" if single_cap is None else "p"
    if single_cap is not None and amount_micros > single_cap:
        single = fail(RejectCode.PER_TRANSACTION_CAP_EXCEEDED, about_amount=True)
    threshold = policy.approval_threshold_micros
    approval = "n" if threshold is None else "f" if amount_micros > threshold else "p"
    waits = approval == "f"
    crowded = waits and facts.pending_count >= facts.bounds.pending_max
    fits_but_for_the_day = code is None and not crowded and amount_micros <= facts.available_micros
    spent_after = facts.spent_today_micros + amount_micros
    day = "p"
    if spent_after > policy.cap_micros_daily:
        day = fail(RejectCode.DAILY_CAP_EXCEEDED, about_amount=True)
    budget_lamports = policy.network_budget(facts.bounds)
    network_after = facts.network_today_lamports + facts.network_cost_lamports
    network = "p"
    if network_after > budget_lamports:
        network = fail(RejectCode.NETWORK_COST_EXCEEDED)
    pending = "p" if waits else "n"
    if crowded:  # an amount that needs no approval still passes
        pending = fail(RejectCode.TOO_MANY_PENDING, about_amount=True)
    funds = "p"
    if amount_micros > facts.available_micros:
        funds = fail(RejectCode.INSUFFICIENT_FUNDS, about_amount=True)

    taken = 0 if code else amount_micros
    remaining = max(policy.cap_micros_daily - facts.spent_today_micros - taken, 0)
    most = _most(
        policy,
        facts,
        min(remaining, facts.available_micros - taken),
        facts.pending_count + (waits and not code),
        facts.network_today_lamports if code else network_after,
    )
    tomorrow = (
        "f" in (day, network)
        and fits_but_for_the_day
        and amount_micros <= policy.cap_micros_daily
        and facts.network_cost_lamports <= budget_lamports
    )
    return Decision(
        status="rejected" if code else "pending" if waits else "approved",
        reject_code=code,
        outcomes=f"{status}{frozen}{blocked}{allowed}{resolved}{single}{day}{funds}{approval}"
        f"{pending}{network}",
        amount_micros=amount_micros,
        recipient=recipient,
        pay_to=None if host_refused else facts.pay_to,
        agent_status=facts.agent_status,
        frozen=policy.frozen,
        cap_micros_per_transaction=single_cap,
        cap_micros_daily=policy.cap_micros_daily,
        spent_after_micros=spent_after,
        available_micros=facts.available_micros,
        approval_threshold_micros=threshold,
        remaining_today_micros=remaining,
        max_amount_now_micros=most if amount_alone else 0,
        retry_at=facts.resets_at if tomorrow else None,
        pending_after=facts.pending_count + waits,
        pending_max=facts.bounds.pending_max,
        network_after_lamports=network_after,
        network_budget_lamports=budget_lamports,
    )


def budget(policy: Policy, facts: Facts) -> tuple[int, int]:
    """(remaining today, the most that one spend may be now), to any recipient."""
    remaining = max(policy.cap_micros_daily - facts.spent_today_micros, 0)
    if facts.agent_status != "active" or policy.frozen:
        return remaining, 0
    most = min(remaining, facts.available_micros)
    return remaining, _most(policy, facts, most, facts.pending_count, facts.network_today_lamports)


def _most(
    policy: Policy, facts: Facts, most: int, pending_count: int, network_today_lamports: int
) -> int:
    """The most that one spend may be. `most` is what day and wallet have left."""
    network_left = policy.network_budget(facts.bounds) - network_today_lamports
    if network_left < facts.bounds.payment_lamports:
        return 0
    if policy.cap_micros_per_transaction is not None:
        most = min(most, policy.cap_micros_per_transaction)
    threshold = policy.approval_threshold_micros
    if threshold is not None and pending_count >= facts.bounds.pending_max:
        most = min(most, threshold)
    return most
