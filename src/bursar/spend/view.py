"""How a spend shows itself: the API's transaction, its decision, budget, statistics."""

from typing import Literal

import msgspec

from bursar.chain.networks import CURRENCY
from bursar.clock import iso, iso_or_none
from bursar.money import format_cents, format_micros
from bursar.policy.engine import Check, Decision, RejectCode
from bursar.policy.limits import Window
from bursar.spend.model import SpendRow, SpendStatus


class DecisionView(msgspec.Struct, rename="camel", kw_only=True):
    """Why the spend was decided so. A refused agent reads here what would pass, and when."""

    checks: list[Check]
    remaining_today: str
    max_amount_now: str
    max_without_approval: str
    retry_at: str | None


class Transaction(msgspec.Struct, rename="camel", kw_only=True):
    """A spend. Read `status`: a refusal is an answer, not an error."""

    id: str
    agent_id: str
    amount: str
    currency: str
    recipient: str
    status: SpendStatus
    signature: str | None
    block_time: int | None
    reject_code: RejectCode | None
    created_at: str
    settled_at: str | None
    pay_to: str | None
    memo: str | None
    metadata: dict[str, str]
    policy_version: int
    created_by: str
    decided_by: str | None
    decided_at: str | None
    decision_reason: str | None
    expires_at: str | None
    network: str
    fee_lamports: int | None
    rent_lamports: int | None
    updated_at: str
    purchase_id: str | None
    decision: DecisionView


class Preview(msgspec.Struct, rename="camel", kw_only=True):
    """What authorise would answer now. Nothing is stored or reserved."""

    status: SpendStatus
    reject_code: RejectCode | None
    policy_version: int
    pay_to: str | None
    decision: DecisionView


class LimitUse(msgspec.Struct, rename="camel", kw_only=True):
    """A limit over the agent, and what was used of it in the window that is running. What a budget
    counts is of all agents below it."""

    limit_id: str
    budget_id: str | None
    window: Window
    recipient: str | None
    amount: str | None
    count: int | None
    used_amount: str
    used_count: int
    resets_at: str | None


class SpentTodayBy(msgspec.Struct, rename="camel", kw_only=True):
    """What was spent today, by how far it came: paid and final, approved and on its way, waiting
    for a person."""

    settled: str
    on_its_way: str
    waiting: str


class Budget(msgspec.Struct, rename="camel", kw_only=True):
    """What an agent asks before it spends. `maxAmountNow` is the most that passes in one spend, and
    `maxWithoutApproval` the most that passes without a person."""

    daily_cap: str
    spent_today: str
    spent_today_by: SpentTodayBy
    remaining_today: str
    reserved: str
    available: str
    max_amount_now: str
    max_without_approval: str
    approval_threshold: str | None
    allowlist: list[str]
    resets_at: str
    status: Literal["active", "paused", "terminated"]
    frozen: bool
    account_stopped: bool
    budget_frozen: bool
    policy_version: int
    daily_network_lamports: int
    network_lamports_today: int
    limits: list[LimitUse]


class RecipientTotal(msgspec.Struct, kw_only=True):
    """A recipient and what was settled to it."""

    hostname: str
    total_usdc: str = msgspec.field(name="totalUsdc")


class Statistics(msgspec.Struct, rename="camel", kw_only=True):
    """Totals of the transactions in the filter; `totalSpent` counts the settled ones."""

    total_spent: str
    transaction_count: int
    rejected_count: int
    top_recipients: list[RecipientTotal]


def show_decision(decision: Decision) -> DecisionView:
    most, unasked = decision.max_amount_now_micros, decision.max_without_approval_micros
    shown_most = format_micros(most)
    return DecisionView(
        checks=decision.checks,
        remaining_today=format_micros(decision.remaining_today_micros),
        max_amount_now=shown_most,
        max_without_approval=shown_most if unasked == most else format_micros(unasked),
        retry_at=iso_or_none(decision.retry_at),
    )


def show_spend(row: SpendRow) -> Transaction:
    return Transaction(
        id=row.id,
        agent_id=row.agent_id,
        amount=format_micros(row.amount_micros),
        currency=CURRENCY,
        recipient=row.recipient,
        status=row.status,
        signature=row.signature,
        block_time=row.block_time,
        reject_code=row.reject_code,
        created_at=iso(row.created_at),
        settled_at=iso_or_none(row.settled_at),
        pay_to=row.pay_to,
        memo=row.memo,
        metadata=row.metadata,
        policy_version=row.policy_version,
        created_by=row.created_by,
        decided_by=row.decided_by,
        decided_at=iso_or_none(row.decided_at),
        decision_reason=row.decision_reason,
        expires_at=iso_or_none(row.expires_at),
        network=row.network,
        fee_lamports=row.fee_lamports,
        rent_lamports=row.rent_lamports,
        updated_at=iso(row.updated_at),
        purchase_id=row.purchase_id,
        decision=show_decision(row.decision),
    )


def show_total(recipient: str, settled_micros: int) -> RecipientTotal:
    return RecipientTotal(hostname=recipient, total_usdc=format_cents(settled_micros))
