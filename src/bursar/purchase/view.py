"""How a purchase shows itself."""

from typing import Literal

import msgspec

from bursar.clock import iso
from bursar.money import format_micros
from bursar.policy.engine import RejectCode
from bursar.purchase.model import FailureCode, PinRow, PurchaseRow, PurchaseStatus
from bursar.purchase.offer import Protocol
from bursar.spend.model import SpendRow
from bursar.spend.view import DecisionView, Transaction, show_decision, show_spend


class PaymentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header that pays: it is sent with the request, and is as good as money until it dies."""

    name: str
    value: str


class SellerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What the seller answered last. `body` is text, or base64 where it is none."""

    status: int
    headers: dict[str, str]
    body: str
    encoding: Literal["text", "base64"]
    truncated: bool


class Purchase(msgspec.Struct, rename="camel", kw_only=True):
    """Something bought from an HTTP seller. Read `status`: a refusal is an answer, not an error.

    `header` and `response` are for the asking agent's keys and admins, for 24 hours.
    """

    id: str
    agent_id: str
    url: str
    method: str
    host: str
    status: PurchaseStatus
    reject_code: RejectCode | None
    failure_code: FailureCode | None
    problem: str | None
    decision: DecisionView | None
    protocol: Protocol | None
    amount: str | None
    pay_to: str | None
    transaction_id: str | None
    transaction: Transaction | None
    header: PaymentHeader | None
    response: SellerResponse | None
    memo: str | None
    metadata: dict[str, str]
    created_by: str
    created_at: str
    updated_at: str


class Pin(msgspec.Struct, rename="camel", kw_only=True):
    """Where an origin is paid, as it said itself when somebody first bought there. `offered` is
    another address that it named since: purchases there are refused until an admin accepts it."""

    origin: str
    address: str
    offered: str | None
    offered_at: str | None
    created_by: str
    created_at: str
    updated_at: str


class PinAccepted(Pin, rename="camel", kw_only=True):
    """A pin with the address that an admin accepted, and the one that it had before."""

    previous_address: str


class PinForgotten(Pin, rename="camel", kw_only=True):
    """A pin that is no more."""

    forgotten_by: str


_decode_decision = msgspec.json.Decoder(DecisionView).decode


def show_purchase(
    row: PurchaseRow,
    spend: SpendRow | None,
    header: PaymentHeader | None = None,
    response: SellerResponse | None = None,
) -> Purchase:
    """Without header and response in lists and events."""
    decision = None
    if spend is not None:
        decision = show_decision(spend.decision)
    elif row.refusal is not None:
        decision = _decode_decision(row.refusal)
    return Purchase(
        id=row.id,
        agent_id=row.agent_id,
        url=row.url,
        method=row.method,
        host=row.host,
        status=row.status,
        reject_code=row.reject_code,
        failure_code=row.failure_code,
        problem=row.problem,
        decision=decision,
        protocol=row.protocol,
        amount=None if row.amount_micros is None else format_micros(row.amount_micros),
        pay_to=row.pay_to,
        transaction_id=row.spend_id,
        transaction=None if spend is None else show_spend(spend),
        header=header,
        response=response,
        memo=row.memo,
        metadata=row.metadata,
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
    )


def show_pin(row: PinRow) -> Pin:
    return Pin(
        origin=row.origin,
        address=row.address,
        offered=row.offered,
        offered_at=None if row.offered_at is None else iso(row.offered_at),
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
    )
