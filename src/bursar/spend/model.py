"""A spend: what the API calls a transaction.

pending   waits for a person; the amount is reserved
approved  will be paid; the amount is reserved
settled   paid, final on the chain
rejected  refused, or ended refused; nothing is reserved
"""

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

import msgspec

from bursar.chain.message import most_fee_lamports
from bursar.chain.networks import CURRENCY
from bursar.clock import iso, iso_or_none
from bursar.config import Config
from bursar.money import format_cents, format_micros
from bursar.policy.engine import Check, Decision, RejectCode
from bursar.policy.model import Bounds

SpendStatus = Literal["pending", "approved", "settled", "rejected"]

# Every move that exists. A terminal state has none.
MOVES: Final[dict[SpendStatus, frozenset[SpendStatus]]] = {
    "pending": frozenset({"approved", "rejected"}),
    "approved": frozenset({"settled", "rejected"}),
    "settled": frozenset(),
    "rejected": frozenset(),
}


class DecisionView(msgspec.Struct, rename="camel", kw_only=True):
    """Why the spend was decided so. A refused agent reads here what would pass, and when."""

    checks: list[Check]
    remaining_today: str
    max_amount_now: str
    retry_at: str | None


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    realm_id: int
    agent_id: str
    amount_micros: int
    recipient: str
    pay_to: str | None
    status: SpendStatus
    reject_code: RejectCode | None
    memo: str | None
    metadata: dict[str, str]
    policy_version: int
    decision: Decision
    network: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    decided_by: str | None
    decided_at: datetime | None
    decision_reason: str | None
    signature: str | None
    block_time: int | None
    fee_lamports: int | None
    rent_lamports: int | None
    settled_at: datetime | None
    updated_at: datetime
    decision_number: int
    # What it holds of its day's network budget, or has cost in the end.
    network_lamports: int

    @property
    def day(self) -> date:
        return self.created_at.date()


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
    decision: DecisionView


class Preview(msgspec.Struct, rename="camel", kw_only=True):
    """What authorise would answer now. Nothing is stored or reserved."""

    status: SpendStatus
    reject_code: RejectCode | None
    policy_version: int
    pay_to: str | None
    decision: DecisionView


class Budget(msgspec.Struct, rename="camel", kw_only=True):
    """What an agent asks before it spends."""

    daily_cap: str
    spent_today: str
    remaining_today: str
    available: str
    max_amount_now: str
    resets_at: str
    status: Literal["active", "paused", "terminated"]
    frozen: bool
    policy_version: int
    daily_network_lamports: int
    network_lamports_today: int


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
    return DecisionView(
        checks=decision.checks,
        remaining_today=format_micros(decision.remaining_today_micros),
        max_amount_now=format_micros(decision.max_amount_now_micros),
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
        decision=show_decision(row.decision),
    )


def show_total(recipient: str, settled_micros: int) -> RecipientTotal:
    return RecipientTotal(hostname=recipient, total_usdc=format_cents(settled_micros))


def bounds_of(config: Config) -> Bounds:
    return Bounds(
        pending_max=config.pending_max,
        agent_network_lamports=config.agent_network_lamports,
        account_network_lamports=config.account_network_lamports,
        payment_lamports=most_fee_lamports(config.priority_fee_max_lamports),
    )


@lru_cache(maxsize=1_024)
def midnight_after(moment: datetime) -> datetime:
    """When the UTC day of this moment ends."""
    day = moment.date()
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
