"""The policy engine: pure functions from policy, use and request to a decision.

`terms_of` says what the rules make of a request whatever was used before it; `judge` and `decide`
look at what was used. A spend keeps both, `Terms` and `Used`, so that its decision can be explained
and tried again without the policy, the directory or the clock of that day.

Every rule is checked, so that a refusal names everything that stands in the way. The first rule
that fails, in the order of `Rule`, gives the reject code.
"""

from collections.abc import Container, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Final, Literal

import msgspec

from bursar.money import format_cents, format_cents_or_none, format_micros
from bursar.policy.limits import (
    Applied,
    BudgetTerms,
    Limit,
    applied,
    exceeds,
    measure,
    meter_ids,
    window_end,
)
from bursar.policy.model import Bounds, Policy


class Rule(StrEnum):
    """In the order of evaluation."""

    ACCOUNT_STOPPED = "account_stopped"
    AGENT_STATUS = "agent_status"
    POLICY_FROZEN = "policy_frozen"
    # Of agents below a budget only.
    BUDGET_FROZEN = "budget_frozen"
    BLOCKLIST = "blocklist"
    ALLOWLIST = "allowlist"
    RECIPIENT_RESOLVED = "recipient_resolved"
    # Of purchases only.
    PAYEE = "payee"
    PAYEE_ACCOUNT = "payee_account"
    MAX_AMOUNT = "max_amount"
    PER_TRANSACTION_CAP = "per_transaction_cap"
    DAILY_CAP = "daily_cap"
    # One check for each limit, of the policy and of the budgets above the agent.
    LIMIT = "limit"
    BUDGET = "budget"
    NETWORK_COST = "network_cost"
    PENDING_COUNT = "pending_count"
    FUNDS = "funds"
    APPROVAL_THRESHOLD = "approval_threshold"


class RejectCode(StrEnum):
    """Why a spend was rejected: the engine's reasons in order, then those of pending and approved
    spends."""

    ACCOUNT_STOPPED = "account_stopped"
    AGENT_TERMINATED = "agent_terminated"
    AGENT_PAUSED = "agent_paused"
    POLICY_FROZEN = "policy_frozen"
    BUDGET_FROZEN = "budget_frozen"
    RECIPIENT_BLOCKED = "recipient_blocked"
    RECIPIENT_NOT_ALLOWED = "recipient_not_allowed"
    RECIPIENT_UNRESOLVED = "recipient_unresolved"
    PAYEE_MISMATCH = "payee_mismatch"
    PAYEE_CHANGED = "payee_changed"
    PAYEE_ACCOUNT_MISSING = "payee_account_missing"
    MAX_AMOUNT_EXCEEDED = "max_amount_exceeded"
    PER_TRANSACTION_CAP_EXCEEDED = "per_transaction_cap_exceeded"
    DAILY_CAP_EXCEEDED = "daily_cap_exceeded"
    LIMIT_EXCEEDED = "limit_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    NETWORK_COST_EXCEEDED = "network_cost_exceeded"
    TOO_MANY_PENDING = "too_many_pending"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    APPROVAL_DENIED = "approval_denied"
    APPROVAL_EXPIRED = "approval_expired"
    CANCELLED = "cancelled"
    HOLD_EXPIRED = "hold_expired"
    PURCHASE_EXPIRED = "purchase_expired"
    TERMS_CHANGED = "terms_changed"
    SETTLEMENT_FAILED = "settlement_failed"


Outcome = Literal["pass", "fail", "not_evaluated"]


Verdict = Literal["approved", "pending", "rejected"]

# Rises when the same terms and use would be judged differently.
ENGINE: Final = 1


class Terms(msgspec.Struct, frozen=True, kw_only=True, array_like=True, dict=True):
    """What the rules say of a request, whatever was used before. Stored as a short array."""

    agent_status: str
    frozen: bool
    # One letter each, p(ass) or f(ail): blocklist, allowlist, whether the recipient has an address;
    # of a purchase also whether the directory, the pin and the chain know its payee so.
    lists: str
    # Whether the lists refuse a host: then nobody is told its address, or an agent could read the
    # directory by asking.
    host_refused: bool
    cap_micros_per_transaction: int | None
    cap_micros_daily: int
    approval_threshold_micros: int | None
    network_budget_lamports: int
    # What a payment costs at most, without the rent of a token account.
    payment_lamports: int
    pending_max: int
    engine: int = ENGINE
    # A person stopped every agent of the account.
    stopped: bool = False
    # What the caller itself would pay at most; of purchases only.
    max_micros: int | None = None
    # Of the policy, as far as they concern the recipient; and the budgets above the agent, the
    # nearest first.
    limits: tuple[Limit, ...] = ()
    budgets: tuple[BudgetTerms, ...] = ()

    @cached_property
    def is_metered(self) -> bool:
        """Whether more is counted for it than the day and the wallet's funds."""
        return bool(self.limits or self.budgets)

    @cached_property
    def applied(self) -> tuple[Applied, ...]:
        """The limits that it is judged by. Kept here, since to look them up is to hash them all."""
        return applied(self.limits, self.budgets)

    @cached_property
    def meter_ids(self) -> tuple[str, ...]:
        """The meters beside the wallet's own that count it."""
        return meter_ids(self.limits, self.budgets)

    @cached_property
    def standing(self) -> "RejectCode | None":
        """The first rule that fails whatever the amount is, if one does."""
        if self.stopped:
            return RejectCode.ACCOUNT_STOPPED
        if self.agent_status == "terminated":
            return RejectCode.AGENT_TERMINATED
        if self.agent_status == "paused":
            return RejectCode.AGENT_PAUSED
        if self.frozen:
            return RejectCode.POLICY_FROZEN
        if self.budgets and any(budget.frozen for budget in self.budgets):
            return RejectCode.BUDGET_FROZEN
        at = self.lists.find("f")
        return None if at < 0 else _LIST_CODES[at]


_LIST_CODES: Final = (
    RejectCode.RECIPIENT_BLOCKED,
    RejectCode.RECIPIENT_NOT_ALLOWED,
    RejectCode.RECIPIENT_UNRESOLVED,
    RejectCode.PAYEE_MISMATCH,
    RejectCode.PAYEE_CHANGED,
    RejectCode.PAYEE_ACCOUNT_MISSING,
)
# How many of them a plain spend has.
_PLAIN: Final = 3


class Used(msgspec.Struct, frozen=True):
    """The numbers that a request is judged on, in the order in which a spend keeps them."""

    spent_today_micros: int
    available_micros: int
    # What the day's payments cost in SOL so far, and what is reserved for this one.
    network_today_lamports: int
    network_cost_lamports: int
    # Spends that wait for a person.
    pending_count: int
    # How many transfers the wallet's journal has: the place of the decision among deposits,
    # releases and other spends.
    transfers: int
    # The numbers of its meters (`policy/limits.py`), where the terms have limits or budgets: the
    # wallet's, then those that `Terms.meter_ids` names.
    meters: tuple[int, ...] = ()


_BEFORE_METERS: Final = len(Used.__struct_fields__) - 1


def used_of(numbers: Sequence[int]) -> Used:
    """From the numbers as a spend keeps them."""
    return Used(*numbers[:_BEFORE_METERS], meters=tuple(numbers[_BEFORE_METERS:]))


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule: what it allows, and what it observed."""

    rule: Rule
    outcome: Outcome
    limit: str | None
    observed: str | None
    # Of which limit, and of which budget, it speaks, if of any.
    limit_id: str | None = msgspec.field(default=None, name="limitId")
    budget_id: str | None = msgspec.field(default=None, name="budgetId")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, and all that explains it."""

    status: Verdict
    reject_code: RejectCode | None
    checks: list[Check]
    # As they are once this decision is in force.
    remaining_today_micros: int
    max_amount_now_micros: int
    # The most that passes without a person.
    max_without_approval_micros: int
    # From when on this amount passes if nothing else changes; None when it never would.
    retry_at: datetime | None


def terms_of(
    policy: Policy,
    bounds: Bounds,
    *,
    stopped: bool,
    agent_status: str,
    wallet_address: str,
    recipient: str,
    # The address that the recipient is paid at; None when the directory names none.
    pay_to: str | None,
    # Whether the directory gives that address to a host that the policy blocks.
    pays_blocked_host: bool,
    budgets: tuple[BudgetTerms, ...] = (),
) -> Terms:
    # Host and address stand for each other: a policy that blocks one blocks the other as well.
    blocked = pays_blocked_host or policy.blocks.matches_any(recipient, pay_to)
    # Paying itself would only burn fees, so no list can allow it.
    own = wallet_address in (recipient, pay_to)
    refused = own or not policy.allows.matches(recipient)
    return Terms(
        stopped=stopped,
        agent_status=agent_status,
        frozen=policy.frozen,
        lists="".join("pf"[fails] for fails in (blocked, refused, pay_to is None)),
        host_refused=(blocked or refused) and recipient != pay_to,
        cap_micros_per_transaction=policy.cap_micros_per_transaction,
        cap_micros_daily=policy.cap_micros_daily,
        approval_threshold_micros=policy.approval_threshold_micros,
        network_budget_lamports=policy.network_budget(bounds),
        payment_lamports=bounds.payment_lamports,
        pending_max=bounds.pending_max,
        limits=policy.limits_for(recipient),
        budgets=budgets,
    )


def purchase_terms(
    terms: Terms, payee_faults: Container[RejectCode], max_micros: int | None
) -> Terms:
    """The terms of a purchase, from those of its host and payee. `payee_faults`: what is wrong with
    the payee that the seller names."""
    letters = "".join("pf"[code in payee_faults] for code in _LIST_CODES[2:])
    return msgspec.structs.replace(terms, lists=terms.lists[:2] + letters, max_micros=max_micros)


def judge(terms: Terms, used: Used, amount_micros: int) -> RejectCode | None:
    """The first rule that fails, or None. No clock and no database: the same input always gives
    the same answer."""
    standing = terms.standing
    if standing is not None:
        return standing
    if terms.max_micros is not None and amount_micros > terms.max_micros:
        return RejectCode.MAX_AMOUNT_EXCEEDED
    single_cap = terms.cap_micros_per_transaction
    if single_cap is not None and amount_micros > single_cap:
        return RejectCode.PER_TRANSACTION_CAP_EXCEEDED
    if used.spent_today_micros + amount_micros > terms.cap_micros_daily:
        return RejectCode.DAILY_CAP_EXCEEDED
    if terms.is_metered and (limit := first_exceeded(terms, used, amount_micros)) is not None:
        return _limit_code(limit)
    network_after = used.network_today_lamports + used.network_cost_lamports
    if network_after > terms.network_budget_lamports:
        return RejectCode.NETWORK_COST_EXCEEDED
    if waits(terms, amount_micros) and used.pending_count >= terms.pending_max:
        return RejectCode.TOO_MANY_PENDING
    if amount_micros > used.available_micros:
        return RejectCode.INSUFFICIENT_FUNDS
    return None


def first_exceeded(terms: Terms, used: Used, amount_micros: int) -> Applied | None:
    """The first limit that the amount does not fit."""
    meters = used.meters
    for each in terms.applied:
        if exceeds(each.limit, meters[each.place], meters[each.place + 1], amount_micros):
            return each
    return None


def _limit_code(limit: Applied) -> RejectCode:
    of_budget = limit.budget_id is not None
    return RejectCode.BUDGET_EXCEEDED if of_budget else RejectCode.LIMIT_EXCEEDED


def waits(terms: Terms, amount_micros: int) -> bool:
    """Whether a person has to approve the amount."""
    threshold = terms.approval_threshold_micros
    return threshold is not None and amount_micros > threshold


def decide(
    terms: Terms,
    used: Used,
    amount_micros: int,
    recipient: str,
    pay_to: str | None,
    # When it was decided: from it follows when each window ends.
    at: datetime,
) -> Decision:
    """The decision with all that explains it."""
    code = judge(terms, used, amount_micros)
    amount = format_micros(amount_micros)
    single_cap, threshold = terms.cap_micros_per_transaction, terms.approval_threshold_micros
    spent_after = used.spent_today_micros + amount_micros
    network_after = used.network_today_lamports + used.network_cost_lamports
    must_wait = waits(terms, amount_micros)
    # An amount that needs no approval still passes where too many wait.
    crowded = must_wait and used.pending_count >= terms.pending_max
    beyond_day = spent_after > terms.cap_micros_daily
    beyond_network = network_after > terms.network_budget_lamports
    beyond_single = single_cap is not None and amount_micros > single_cap
    lacks_funds = amount_micros > used.available_micros
    limits = terms.applied
    beyond_limits: list[Applied] = []
    limit_checks: list[Check] = []
    for each in limits:
        limit, micros, count = each.limit, used.meters[each.place], used.meters[each.place + 1]
        # What passes has been found within all of them.
        beyond = code is not None and exceeds(limit, micros, count, amount_micros)
        if beyond:
            beyond_limits.append(each)
        limit_checks.append(
            Check(
                Rule.LIMIT if each.budget_id is None else Rule.BUDGET,
                "fail" if beyond else "pass",
                each.allows,
                measure(limit, format_micros(micros + amount_micros), count + 1),
                limit.id,
                each.budget_id,
            )
        )
    beyond_own = terms.max_micros is not None and amount_micros > terms.max_micros
    checks = [
        *(_status_checks(terms) if terms.standing else _GOES_ON),
        *(
            [
                Check(
                    Rule.BUDGET_FROZEN,
                    _passes(not budget.frozen),
                    "false",
                    "true" if budget.frozen else "false",
                    budget_id=budget.id,
                )
                for budget in terms.budgets
            ]
            if terms.budgets
            else ()
        ),
        *_list_checks(terms.lists, recipient, pay_to),
        *(_payee_checks(terms, pay_to, amount, beyond_own) if len(terms.lists) > _PLAIN else ()),
        Check(
            Rule.PER_TRANSACTION_CAP,
            "not_evaluated" if single_cap is None else _passes(not beyond_single),
            format_cents_or_none(single_cap),
            amount,
        ),
        Check(
            Rule.DAILY_CAP,
            _passes(not beyond_day),
            format_cents(terms.cap_micros_daily),
            format_micros(spent_after),
        ),
        *limit_checks,
        Check(
            Rule.NETWORK_COST,
            _passes(not beyond_network),
            str(terms.network_budget_lamports),
            str(network_after),
        ),
        Check(
            Rule.PENDING_COUNT,
            _passes(not crowded) if must_wait else "not_evaluated",
            str(terms.pending_max),
            str(used.pending_count + must_wait),
        ),
        Check(Rule.FUNDS, _passes(not lacks_funds), format_micros(used.available_micros), amount),
        Check(
            Rule.APPROVAL_THRESHOLD,
            "not_evaluated" if threshold is None else _passes(not must_wait),
            format_cents_or_none(threshold),
            amount,
        ),
    ]
    taken = 0 if code else amount_micros
    remaining = max(terms.cap_micros_daily - used.spent_today_micros - taken, 0)
    most = 0
    # Whether nothing but the amount stands in the way.
    if terms.standing is None and not beyond_network:
        most = _most(
            terms,
            min(remaining, used.available_micros - taken),
            used.pending_count + (must_wait and not code),
            used.network_today_lamports if code else network_after,
            [_left(each.limit, used.meters, each.place, taken) for each in limits]
            if limits
            else (),
        )
    retry_at = None
    # Whether time alone lets it pass.
    if (
        code
        and terms.standing is None
        and not (beyond_own or beyond_single or crowded or lacks_funds)
        and amount_micros <= terms.cap_micros_daily
        and used.network_cost_lamports <= terms.network_budget_lamports
        and not any(exceeds(each.limit, 0, 0, amount_micros) for each in beyond_limits)
    ):
        ends = [window_end(each.limit.window, at) for each in beyond_limits]
        if beyond_day or beyond_network:
            ends.append(window_end("day", at))
        retry_at = _last(ends)
    return Decision(
        status="rejected" if code else "pending" if must_wait else "approved",
        reject_code=code,
        checks=checks,
        remaining_today_micros=remaining,
        max_amount_now_micros=most,
        max_without_approval_micros=without_approval(terms, most),
        retry_at=retry_at,
    )


def _status_checks(terms: Terms) -> tuple[Check, ...]:
    """Whether anything is paid at all."""
    return (
        Check(
            Rule.ACCOUNT_STOPPED,
            _passes(not terms.stopped),
            "false",
            "true" if terms.stopped else "false",
        ),
        Check(
            Rule.AGENT_STATUS,
            _passes(terms.agent_status == "active"),
            "active",
            terms.agent_status,
        ),
        Check(
            Rule.POLICY_FROZEN,
            _passes(not terms.frozen),
            "false",
            "true" if terms.frozen else "false",
        ),
    )


# The same of nearly every spend: nothing stands in its way.
_GOES_ON: Final = (
    Check(Rule.ACCOUNT_STOPPED, "pass", "false", "false"),
    Check(Rule.AGENT_STATUS, "pass", "active", "active"),
    Check(Rule.POLICY_FROZEN, "pass", "false", "false"),
)
# By the letters of `Terms.lists`.
_OUTCOMES: Final[dict[str, Outcome]] = {"p": "pass", "f": "fail"}


# The same for every spend to a recipient, of whom there are few.
@lru_cache(maxsize=1_024)
def _list_checks(lists: str, recipient: str, pay_to: str | None) -> tuple[Check, ...]:
    """What lists and directory say of a recipient."""
    return (
        Check(Rule.BLOCKLIST, _OUTCOMES[lists[0]], None, recipient),
        Check(Rule.ALLOWLIST, _OUTCOMES[lists[1]], None, recipient),
        Check(Rule.RECIPIENT_RESOLVED, _OUTCOMES[lists[2]], None, pay_to),
    )


def _payee_checks(terms: Terms, pay_to: str | None, amount: str, beyond_own: bool) -> list[Check]:
    """What only a purchase is judged by."""
    changed, account = "f" in terms.lists[_PLAIN:-1], terms.lists[-1] == "f"
    return [
        Check(Rule.PAYEE, _passes(not changed), None, pay_to),
        Check(Rule.PAYEE_ACCOUNT, _passes(not account), None, pay_to),
        Check(
            Rule.MAX_AMOUNT,
            "not_evaluated" if terms.max_micros is None else _passes(not beyond_own),
            None if terms.max_micros is None else format_micros(terms.max_micros),
            amount,
        ),
    ]


def budget(terms: Terms, used: Used) -> tuple[int, int]:
    """(remaining today, the most that one spend may be now), to any recipient."""
    remaining = max(terms.cap_micros_daily - used.spent_today_micros, 0)
    stands = not terms.stopped and terms.agent_status == "active" and not terms.frozen
    if not stands or any(budget.frozen for budget in terms.budgets):
        return remaining, 0
    left = [_left(each.limit, used.meters, each.place, 0) for each in terms.applied]
    most = min(remaining, used.available_micros)
    return remaining, _most(terms, most, used.pending_count, used.network_today_lamports, left)


def without_approval(terms: Terms, most: int) -> int:
    """How much of the most that one spend may be needs no person."""
    threshold = terms.approval_threshold_micros
    return most if threshold is None else min(most, threshold)


def _left(limit: Limit, meters: Sequence[int], place: int, taken: int) -> int | None:
    """What one more spend may be by this limit, once `taken` counts; None: it does not say."""
    if limit.count is not None and meters[place + 1] + (taken > 0) >= limit.count:
        return 0
    if limit.amount_micros is None:
        return None
    return max(limit.amount_micros - meters[place] - taken, 0)


def _last(ends: Sequence[datetime | None]) -> datetime | None:
    """The last of these moments; None where there is none, or one that never comes."""
    come = [end for end in ends if end is not None]
    return max(come) if come and len(come) == len(ends) else None


def _most(
    terms: Terms,
    most: int,
    pending_count: int,
    network_today_lamports: int,
    left: Sequence[int | None],
) -> int:
    """The most that one spend may be. `most` is what day and wallet have left, `left` what each
    limit has."""
    if terms.network_budget_lamports - network_today_lamports < terms.payment_lamports:
        return 0
    for cap in (terms.cap_micros_per_transaction, terms.max_micros, *left):
        if cap is not None:
            most = min(most, cap)
    return without_approval(terms, most) if pending_count >= terms.pending_max else most


def _passes(passes: bool) -> Outcome:
    return "pass" if passes else "fail"
