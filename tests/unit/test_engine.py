"""The policy engine alone: every refusal in its order, and numbers that keep their promise."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from bursar.policy.engine import (
    Decision,
    RejectCode,
    Rule,
    Terms,
    Used,
    budget,
    decide,
    purchase_terms,
    terms_of,
)
from bursar.policy.limits import BudgetTerms, Limit
from bursar.policy.model import Bounds, Policy

HOST: Final = "api.example.com"
PAY_TO: Final = "7EqQdEULxWcraVx3mXKFjc84LhCkMGZCkRvDpvcMwJeK"
ELSEWHERE: Final = "4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS"
OWN: Final = "So11111111111111111111111111111111111111112"
MIDNIGHT: Final = datetime(2026, 11, 1, tzinfo=UTC)
AT: Final = datetime(2026, 10, 31, 23, 59, 59, tzinfo=UTC)
CENT: Final = 10_000
USDC: Final = 1_000_000


@dataclass(frozen=True)
class Case:
    policy: Policy
    bounds: Bounds
    used: Used
    amount_micros: int = 10 * USDC
    recipient: str = HOST
    stopped: bool = False
    agent_status: str = "active"
    pay_to: str | None = PAY_TO
    pays_blocked_host: bool = False
    # Of a purchase: what is wrong with the payee that the seller names, and the caller's own bound.
    # None is a plain spend.
    payee_faults: frozenset[RejectCode] | None = None
    max_micros: int | None = None
    budgets: tuple[BudgetTerms, ...] = ()

    @property
    def terms(self) -> Terms:
        terms = terms_of(
            self.policy,
            self.bounds,
            stopped=self.stopped,
            agent_status=self.agent_status,
            wallet_address=OWN,
            recipient=self.recipient,
            pay_to=self.pay_to,
            pays_blocked_host=self.pays_blocked_host,
            budgets=self.budgets,
        )
        if self.payee_faults is None:
            return terms
        unknown = {RejectCode.RECIPIENT_UNRESOLVED} if self.pay_to is None else set[RejectCode]()
        return purchase_terms(terms, self.payee_faults | unknown, self.max_micros)

    @property
    def rules(self) -> list[Rule]:
        """Those that it is judged by, in their order."""
        return [
            rule
            for rule in Rule
            if (self.payee_faults is not None or rule not in OF_PURCHASES)
            and (self.policy.limits or rule is not Rule.LIMIT)
            and (self.budgets or rule not in OF_BUDGETS)
        ]

    @property
    def shown_pay_to(self) -> str | None:
        return None if self.terms.host_refused else self.pay_to

    def decide(self) -> Decision:
        return decide(
            self.terms,
            self.used,
            self.amount_micros,
            self.recipient,
            self.shown_pay_to,
            AT,
        )

    def with_policy(self, **changes: object) -> "Case":
        changed = replace(self.policy, **changes)  # pyright: ignore[reportArgumentType]
        return replace(self, policy=changed)

    def with_used(self, **changes: int) -> "Case":
        return replace(self, used=msgspec.structs.replace(self.used, **changes))

    def with_fault(self, code: RejectCode) -> "Case":
        return replace(self, payee_faults=(self.payee_faults or frozenset()) | {code})


OF_BUDGETS: Final = (Rule.BUDGET_FROZEN, Rule.BUDGET)
OF_PURCHASES: Final = (Rule.PAYEE, Rule.PAYEE_ACCOUNT, Rule.MAX_AMOUNT)


PASSES: Final = Case(
    Policy(
        version=1,
        cap_micros_daily=100 * USDC,
        cap_micros_per_transaction=20 * USDC,
        approval_threshold_micros=15 * USDC,
        allowlist=(HOST,),
        blocklist=("bad.example.com",),
        frozen=False,
    ),
    Bounds(
        pending_max=4,
        agent_network_lamports=100_000,
        account_network_lamports=0,
        payment_lamports=10_000,
    ),
    Used(
        spent_today_micros=40 * USDC,
        available_micros=50 * USDC,
        network_today_lamports=30_000,
        network_cost_lamports=20_000,
        pending_count=3,
        transfers=7,
        # Two meters, each with 40 USDC in 5 spends in every window.
        meters=(9, *(40 * USDC, 5) * 5) * 2,
    ),
)
BUYS: Final = replace(PASSES, payee_faults=frozenset(), max_micros=19 * USDC)
# Under a limit of a week and one level of budget.
METERED: Final = replace(
    PASSES,
    policy=replace(PASSES.policy, limits=(Limit("lim_a", "week", 60 * USDC, None),)),
    budgets=(BudgetTerms("bud_a", False, (Limit("lim_b", "month", 70 * USDC, 7),)),),
)


def under(case: Case, *, frozen: bool | None = None, limit: Limit | None = None) -> Case:
    """Under a budget that is changed so, and as it is otherwise."""
    (budget,) = case.budgets or METERED.budgets
    return replace(
        case,
        budgets=(
            BudgetTerms(
                budget.id,
                budget.frozen if frozen is None else frozen,
                budget.limits if limit is None else (limit,),
            ),
        ),
    )


# One row per reject code, in the contract's order: the change that brings it about, and the rule
# that shows it. Changes can be laid over one another.
TABLE: Final[list[tuple[str, str, Callable[[Case], Case]]]] = [
    ("account_stopped", "account_stopped", lambda c: replace(c, stopped=True)),
    ("agent_terminated", "agent_status", lambda c: replace(c, agent_status="terminated")),
    ("agent_paused", "agent_status", lambda c: replace(c, agent_status="paused")),
    ("policy_frozen", "policy_frozen", lambda c: c.with_policy(frozen=True)),
    ("budget_frozen", "budget_frozen", lambda c: under(c, frozen=True)),
    ("recipient_blocked", "blocklist", lambda c: c.with_policy(blocklist=("*.example.com",))),
    ("recipient_not_allowed", "allowlist", lambda c: c.with_policy(allowlist=())),
    ("recipient_unresolved", "recipient_resolved", lambda c: replace(c, pay_to=None)),
    ("payee_mismatch", "payee", lambda c: c.with_fault(RejectCode.PAYEE_MISMATCH)),
    ("payee_changed", "payee", lambda c: c.with_fault(RejectCode.PAYEE_CHANGED)),
    (
        "payee_account_missing",
        "payee_account",
        lambda c: c.with_fault(RejectCode.PAYEE_ACCOUNT_MISSING),
    ),
    (
        "max_amount_exceeded",
        "max_amount",
        lambda c: replace(c, max_micros=c.amount_micros - 1),
    ),
    (
        "per_transaction_cap_exceeded",
        "per_transaction_cap",
        lambda c: c.with_policy(cap_micros_per_transaction=c.amount_micros - CENT),
    ),
    (
        "daily_cap_exceeded",
        "daily_cap",
        lambda c: c.with_used(spent_today_micros=c.policy.cap_micros_daily - c.amount_micros + 1),
    ),
    (
        "limit_exceeded",
        "limit",
        lambda c: c.with_policy(limits=(Limit("lim_a", "week", 50 * USDC - 1, None),)),
    ),
    (
        "budget_exceeded",
        "budget",
        lambda c: under(c, limit=Limit("lim_b", "month", None, 5)),
    ),
    (
        "network_cost_exceeded",
        "network_cost",
        lambda c: c.with_used(network_today_lamports=80_001),
    ),
    (
        "too_many_pending",
        "pending_count",
        lambda c: c.with_policy(approval_threshold_micros=0).with_used(pending_count=4),
    ),
    (
        "insufficient_funds",
        "funds",
        lambda c: c.with_used(available_micros=c.amount_micros - 1),
    ),
]
ABOUT_THE_AMOUNT: Final = {
    "max_amount_exceeded",
    "per_transaction_cap_exceeded",
    "daily_cap_exceeded",
    "limit_exceeded",
    "too_many_pending",
    "insufficient_funds",
}


# The decision table -------------------------------------------------------------------------------


def test_the_table_has_every_code_of_the_engine_in_the_enums_order():
    codes = [code.value for code in RejectCode]
    first_of_later = codes.index("approval_denied")
    assert [code for code, _, _ in TABLE] == codes[:first_of_later]


def test_what_nothing_speaks_against_is_approved_with_every_check_shown():
    decision = PASSES.decide()
    assert (decision.status, decision.reject_code) == ("approved", None)
    assert [(c.rule.value, c.outcome, c.limit, c.observed) for c in decision.checks] == [
        ("account_stopped", "pass", "false", "false"),
        ("agent_status", "pass", "active", "active"),
        ("policy_frozen", "pass", "false", "false"),
        ("blocklist", "pass", None, HOST),
        ("allowlist", "pass", None, HOST),
        ("recipient_resolved", "pass", None, PAY_TO),
        ("per_transaction_cap", "pass", "20.00", "10.000000"),
        ("daily_cap", "pass", "100.00", "50.000000"),
        ("network_cost", "pass", "100000", "50000"),
        ("pending_count", "not_evaluated", "4", "3"),
        ("funds", "pass", "50.000000", "10.000000"),
        ("approval_threshold", "pass", "15.00", "10.000000"),
    ]
    # As they are once the decision is in force.
    assert decision.remaining_today_micros == 50 * USDC
    assert decision.max_amount_now_micros == 20 * USDC
    assert decision.retry_at is None


def test_a_purchase_is_also_judged_by_its_payee_and_the_callers_own_bound():
    decision = BUYS.decide()
    assert (decision.status, decision.reject_code) == ("approved", None)
    assert [c.rule for c in decision.checks] == BUYS.rules
    assert [
        (c.rule.value, c.outcome, c.limit, c.observed)
        for c in decision.checks
        if c.rule in OF_PURCHASES
    ] == [
        ("payee", "pass", None, PAY_TO),
        ("payee_account", "pass", None, PAY_TO),
        ("max_amount", "pass", "19.000000", "10.000000"),
    ]
    assert decision.max_amount_now_micros == 19 * USDC
    unbounded = replace(BUYS, max_micros=None).decide()
    assert unbounded.checks[BUYS.rules.index(Rule.MAX_AMOUNT)].outcome == "not_evaluated"
    assert unbounded.max_amount_now_micros == 20 * USDC


@pytest.mark.parametrize(
    "start", [PASSES, BUYS, METERED], ids=["spend", "purchase", "under limits"]
)
@pytest.mark.parametrize(("code", "rule", "change"), TABLE, ids=[row[0] for row in TABLE])
def test_each_code_is_given_for_its_reason_alone(
    code: str, rule: str, change: Callable[[Case], Case], start: Case
):
    if rule in OF_PURCHASES:
        start = BUYS
    elif rule in (Rule.LIMIT, *OF_BUDGETS):
        start = METERED
    case = change(start)
    decision = case.decide()
    assert (decision.status, decision.reject_code) == ("rejected", code)
    outcomes = {c.rule.value: c.outcome for c in decision.checks}
    expected = {r.value: "fail" if r.value == rule else "pass" for r in case.rules}
    if code == "too_many_pending":  # only what needs approval can be one too many
        expected["approval_threshold"] = "fail"
    else:
        expected["pending_count"] = "not_evaluated"
    assert outcomes == expected
    if code not in ABOUT_THE_AMOUNT:
        assert decision.max_amount_now_micros == 0
    # The budget's month ends with the day; the week on Sunday.
    of_the_day = code in ("daily_cap_exceeded", "network_cost_exceeded", "budget_exceeded")
    assert (decision.retry_at == MIDNIGHT) == of_the_day
    assert (decision.retry_at == datetime(2026, 11, 2, tzinfo=UTC)) == (code == "limit_exceeded")


@pytest.mark.parametrize(
    ("earlier", "later"),
    [p for p in itertools.combinations(TABLE, 2) if p[0][1] != p[1][1]],
    ids=lambda row: row[0],
)
def test_of_two_reasons_the_earlier_gives_the_code_and_both_are_shown(
    earlier: tuple[str, str, Callable[[Case], Case]],
    later: tuple[str, str, Callable[[Case], Case]],
):
    for case in (later[2](earlier[2](BUYS)), earlier[2](later[2](BUYS))):
        decision = case.decide()
        assert decision.reject_code == earlier[0]
        failed = [c.rule.value for c in decision.checks[:-1] if c.outcome == "fail"]
        assert failed == [earlier[1], later[1]]
        windows = {
            "daily_cap_exceeded", "limit_exceeded", "budget_exceeded", "network_cost_exceeded"
        }  # fmt: skip
        assert (decision.retry_at is not None) == ({earlier[0], later[0]} <= windows)
        if not {earlier[0], later[0]} <= ABOUT_THE_AMOUNT:
            assert decision.max_amount_now_micros == 0


def test_a_rule_without_a_limit_is_not_evaluated():
    case = PASSES.with_policy(cap_micros_per_transaction=None, approval_threshold_micros=None)
    outcomes = {c.rule.value: (c.outcome, c.limit) for c in case.decide().checks}
    assert outcomes["per_transaction_cap"] == ("not_evaluated", None)
    assert outcomes["approval_threshold"] == ("not_evaluated", None)


def test_above_the_threshold_is_pending_and_exactly_at_it_is_not():
    at = replace(PASSES, amount_micros=15 * USDC).decide()
    assert (at.status, at.checks[-1].outcome) == ("approved", "pass")
    above = replace(PASSES, amount_micros=15 * USDC + 1).decide()
    assert (above.status, above.reject_code) == ("pending", None)
    assert above.checks[-1].outcome == "fail"
    refused = replace(PASSES, amount_micros=20 * USDC + 1).decide()
    assert (refused.status, refused.reject_code) == ("rejected", "per_transaction_cap_exceeded")


@pytest.mark.parametrize(
    ("entries", "recipient", "matches"),
    [
        (("api.example.com",), "api.example.com", True),
        (("api.example.com",), "x.api.example.com", False),
        (("api.example.com",), "example.com", False),
        (("*.example.com",), "api.example.com", True),
        (("*.example.com",), "a.b.c.example.com", True),
        (("*.example.com",), "example.com", False),
        (("*.example.com",), "badexample.com", False),
        (("*.api.example.com",), "b.example.com", False),
        ((PAY_TO,), PAY_TO, True),
        ((PAY_TO,), HOST, False),
        (("*.example.com",), PAY_TO, False),
        (("*",), PAY_TO, True),
        (("*",), HOST, True),
        ((), HOST, False),
    ],
)
def test_entries_match_what_the_contract_says(
    entries: tuple[str, ...], recipient: str, matches: bool
):
    case = replace(PASSES, recipient=recipient).with_policy(blocklist=(), allowlist=entries)
    case = replace(case, pay_to=PAY_TO if recipient == PAY_TO else ELSEWHERE)
    assert case.decide().reject_code == (None if matches else "recipient_not_allowed")
    case = case.with_policy(blocklist=entries, allowlist=("*",))
    assert case.decide().reject_code == ("recipient_blocked" if matches else None)


def test_a_blocked_address_blocks_the_host_that_is_paid_there_and_the_other_way_round():
    assert PASSES.with_policy(blocklist=(PAY_TO,)).decide().reject_code == "recipient_blocked"
    assert replace(PASSES, pays_blocked_host=True).decide().reject_code == "recipient_blocked"


def test_a_host_that_the_lists_refuse_is_shown_without_its_address():
    refused = PASSES.with_policy(allowlist=())
    assert refused.terms.host_refused
    assert PAY_TO not in {check.observed for check in refused.decide().checks}
    assert PASSES.with_policy(blocklist=("*",)).terms.host_refused
    assert replace(PASSES, pays_blocked_host=True).terms.host_refused
    # An address says nothing that the caller did not say.
    assert replace(refused, recipient=PAY_TO).shown_pay_to == PAY_TO
    assert PASSES.with_used(available_micros=0).shown_pay_to == PAY_TO


def test_no_list_allows_the_wallets_own_address_however_it_is_named():
    anyone = PASSES.with_policy(allowlist=("*", OWN, HOST))
    itself = replace(anyone, recipient=OWN, pay_to=OWN)
    assert itself.decide().reject_code == "recipient_not_allowed"
    # A hostname that the directory points back at the wallet.
    assert replace(anyone, pay_to=OWN).decide().reject_code == "recipient_not_allowed"


# Promises -----------------------------------------------------------------------------------------

MOST: Final = 999_999_999_999_999_999
# Small numbers meet often, large ones reach the edge of what a caller may name.
AMOUNTS: Final = st.one_of(st.integers(1, 60), st.integers(1, 8 * CENT), st.integers(1, MOST))
HELD: Final = st.one_of(st.integers(0, 60), st.integers(0, 8 * CENT), st.integers(0, 4 * MOST))
CAPS: Final = st.one_of(st.integers(0, 8), st.integers(0, MOST // CENT)).map(lambda c: c * CENT)
POLICIES: Final = st.builds(
    Policy,
    version=st.integers(1, 9),
    cap_micros_daily=CAPS,
    cap_micros_per_transaction=st.none() | CAPS,
    approval_threshold_micros=st.none() | CAPS,
    allowlist=st.sampled_from([(HOST,), ("*.example.com",), ("*",), (), ("other.example.com",)]),
    blocklist=st.sampled_from([(), (), (), ("*",), (HOST,)]),
    frozen=st.sampled_from([False, False, False, True]),
    network_lamports_daily=st.none() | st.integers(0, 4),
)
BOUNDS: Final = st.builds(
    Bounds,
    pending_max=st.integers(0, 2),
    agent_network_lamports=st.integers(0, 4),
    account_network_lamports=st.just(0),
    payment_lamports=st.just(1),
)
USED: Final = st.builds(
    Used,
    # Above the cap too: a cap may be lowered below what was spent.
    spent_today_micros=HELD,
    available_micros=HELD,
    network_today_lamports=st.integers(0, 4),
    network_cost_lamports=st.integers(1, 2),
    # Above what may wait too: the setting may be lowered.
    pending_count=st.integers(0, 3),
    transfers=st.just(0),
)
PAYEE_FAULTS: Final = (
    RejectCode.PAYEE_MISMATCH,
    RejectCode.PAYEE_CHANGED,
    RejectCode.PAYEE_ACCOUNT_MISSING,
)
CASES: Final = st.builds(
    Case,
    POLICIES,
    BOUNDS,
    USED,
    AMOUNTS,
    agent_status=st.sampled_from(["active", "active", "active", "paused", "terminated"]),
    pay_to=st.sampled_from([PAY_TO, PAY_TO, PAY_TO, OWN, None]),
    pays_blocked_host=st.sampled_from([False, False, False, True]),
    payee_faults=st.none() | st.frozensets(st.sampled_from(PAYEE_FAULTS), max_size=2),
    max_micros=st.none() | AMOUNTS,
)
OPEN_POLICIES: Final = POLICIES.map(
    lambda p: replace(p, allowlist=("*",), blocklist=(), frozen=False, network_lamports_daily=1_000)
)
OPEN_USED: Final = USED.map(
    lambda used: msgspec.structs.replace(used, network_today_lamports=0, network_cost_lamports=1)
)
# Cases where only the amount can fail.
OPEN_CASES: Final = st.builds(
    Case,
    OPEN_POLICIES,
    BOUNDS,
    OPEN_USED,
    AMOUNTS,
    payee_faults=st.sampled_from([None, frozenset[RejectCode]()]),
    max_micros=st.none() | AMOUNTS,
)


def after(case: Case) -> Case:
    """The case once its decision is in force."""
    status = case.decide().status
    taken = 0 if status == "rejected" else case.amount_micros
    return case.with_used(
        spent_today_micros=case.used.spent_today_micros + taken,
        available_micros=case.used.available_micros - taken,
        pending_count=case.used.pending_count + (status == "pending"),
        network_today_lamports=case.used.network_today_lamports
        + (0 if status == "rejected" else case.used.network_cost_lamports),
        # To a payee that is known by then.
        network_cost_lamports=case.used.network_cost_lamports
        if status == "rejected"
        else case.bounds.payment_lamports,
    )


@given(CASES)
def test_a_decision_is_consistent_in_itself(case: Case):
    """Rejected exactly when a rule before the threshold fails, by the code of the first."""
    decision = case.decide()
    assert [c.rule for c in decision.checks] == case.rules
    *rules, threshold = decision.checks
    failed = [c.rule.value for c in rules if c.outcome == "fail"]
    assert (decision.status == "rejected") == bool(failed) == (decision.reject_code is not None)
    if failed:
        firsts = [code for code, rule, _ in TABLE if rule == failed[0]]
        assert decision.reject_code in firsts
    else:
        assert (decision.status == "pending") == (threshold.outcome == "fail")
    assert decision.remaining_today_micros >= 0
    assert 0 <= decision.max_amount_now_micros <= decision.remaining_today_micros


@given(OPEN_CASES)
def test_exactly_max_amount_now_passes_and_one_micro_more_does_not(case: Case):
    most = case.decide().max_amount_now_micros
    then = after(case)
    if most:
        assert replace(then, amount_micros=most).decide().status in ("approved", "pending")
    more = replace(then, amount_micros=most + 1).decide()
    assert more.status == "rejected"
    # The promised code: the first of the limits that this amount is over.
    own = then.terms.max_micros
    single = then.policy.cap_micros_per_transaction
    left = then.policy.cap_micros_daily - then.used.spent_today_micros
    if own is not None and most + 1 > own:
        assert more.reject_code == "max_amount_exceeded"
    elif single is not None and most + 1 > single:
        assert more.reject_code == "per_transaction_cap_exceeded"
    elif most + 1 > left:
        assert more.reject_code == "daily_cap_exceeded"
    elif most == then.policy.approval_threshold_micros:
        assert more.reject_code in ("too_many_pending", "insufficient_funds")
    else:
        assert more.reject_code == "insufficient_funds"
    assert more.max_amount_now_micros == most


@given(OPEN_CASES)
def test_max_without_approval_passes_and_one_micro_more_waits_or_is_refused(case: Case):
    decision = case.decide()
    most, alone = decision.max_amount_now_micros, decision.max_without_approval_micros
    then = after(case)
    if alone:
        assert replace(then, amount_micros=alone).decide().status == "approved"
    more = replace(then, amount_micros=alone + 1).decide()
    assert more.status == ("pending" if alone < most else "rejected")


@given(CASES)
def test_max_amount_now_is_zero_when_anything_but_the_amount_fails(case: Case):
    decision = case.decide()
    about_amount = {
        "max_amount",
        "per_transaction_cap",
        "daily_cap",
        "pending_count",
        "funds",
        "approval_threshold",
    }
    others = [c for c in decision.checks if c.outcome == "fail" and c.rule not in about_amount]
    if others:
        assert decision.max_amount_now_micros == 0
    # And then truly nothing passes: the smallest amount there is is refused as well.
    if decision.max_amount_now_micros == 0:
        assert replace(after(case), amount_micros=1).decide().status == "rejected"


@given(CASES)
def test_retry_at_is_there_exactly_when_waiting_alone_lets_the_amount_pass(case: Case):
    decision = case.decide()
    tomorrow = case.with_used(spent_today_micros=0, network_today_lamports=0).decide()
    if decision.status != "rejected":
        assert decision.retry_at is None
    else:
        assert decision.retry_at == (MIDNIGHT if tomorrow.status != "rejected" else None)


@given(OPEN_CASES)
def test_at_retry_at_the_amount_passes(case: Case):
    """The same over cases that often reach it: what the cap holds, funds cover, days spent."""
    room = min(case.policy.cap_micros_daily, case.used.available_micros)
    assume(case.amount_micros <= room)
    case = replace(case, bounds=structs.replace(case.bounds, pending_max=1), max_micros=None)
    case = case.with_policy(cap_micros_per_transaction=None).with_used(
        spent_today_micros=case.policy.cap_micros_daily, pending_count=0
    )
    decision = case.decide()
    assert decision.reject_code == "daily_cap_exceeded"
    assert decision.retry_at == MIDNIGHT
    assert case.with_used(spent_today_micros=0).decide().status in ("approved", "pending")


@given(OPEN_CASES)
def test_a_cap_of_zero_refuses_everything_for_ever(case: Case):
    case = replace(case, max_micros=None)
    case = case.with_policy(cap_micros_daily=0, cap_micros_per_transaction=None)
    decision = case.decide()
    assert decision.reject_code == "daily_cap_exceeded"
    assert decision.remaining_today_micros == decision.max_amount_now_micros == 0
    assert decision.retry_at is None


def test_a_cap_lowered_below_what_was_spent_leaves_nothing_until_midnight():
    case = PASSES.with_policy(cap_micros_daily=30 * USDC).with_used(spent_today_micros=40 * USDC)
    decision = case.decide()
    assert decision.reject_code == "daily_cap_exceeded"
    assert decision.remaining_today_micros == decision.max_amount_now_micros == 0
    assert decision.retry_at == MIDNIGHT
    check = next(c for c in decision.checks if c.rule is Rule.DAILY_CAP)
    assert (check.limit, check.observed) == ("30.00", "50.000000")


@given(OPEN_CASES)
def test_the_budget_says_what_a_decision_would(case: Case):
    remaining, most = budget(case.terms, case.used)
    assert remaining == max(case.policy.cap_micros_daily - case.used.spent_today_micros, 0)
    if most:
        assert replace(case, amount_micros=most).decide().status in ("approved", "pending")
    assert replace(case, amount_micros=most + 1).decide().status == "rejected"


@given(CASES)
def test_a_stored_decision_is_explained_again_from_what_its_spend_keeps(case: Case):
    """Goal: no policy, no directory and no clock of that day is needed."""
    terms = msgspec.json.decode(msgspec.json.encode(case.terms), type=Terms)
    asked = case.amount_micros, case.recipient, case.shown_pay_to
    again = decide(terms, Used(*msgspec.structs.astuple(case.used)), *asked, AT)
    assert again == case.decide()


def test_terms_that_were_stored_once_read_for_ever():
    """Goal: after an upgrade old transactions show their checks. Spends keep the places of this
    array, so a place never changes its meaning; what is new comes after them."""
    stored = b'["active",false,"ppp",false,20000000,100000000,15000000,100000,10000,4,1,false]'
    assert msgspec.json.decode(stored, type=Terms) == PASSES.terms
    bought = stored[:-1].replace(b"ppp", b"pppppp") + b",19000000]"
    assert msgspec.json.decode(bought, type=Terms) == BUYS.terms
    metered = (
        stored[:-1]
        + b',null,[["lim_a","week",60000000,null]],'
        + b'[["bud_a",false,[["lim_b","month",70000000,7]]]]]'
    )
    assert msgspec.json.decode(metered, type=Terms) == METERED.terms
    # Written by a newer process beside this one.
    assert msgspec.json.decode(metered[:-1] + b',"new"]', type=Terms) == METERED.terms
    assert Used.__struct_fields__ == (
        "spent_today_micros",
        "available_micros",
        "network_today_lamports",
        "network_cost_lamports",
        "pending_count",
        "transfers",
        "meters",
    )
