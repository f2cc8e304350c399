"""A purchase: something bought from a seller that answers 402.

open       stored; the seller is being asked
free       the seller asked for nothing
failed     nothing was signed
rejected   the policy refused
pending    a person must approve; afterwards the agent continues it
presented  signed bytes left the service, the chain has not spoken
paid       final on the chain
unpaid     what was signed is proven dead, and its amount given back
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from bursar.config import Mode
from bursar.policy.engine import RejectCode
from bursar.purchase.offer import Protocol

PurchaseStatus = Literal[
    "open", "free", "failed", "rejected", "pending", "presented", "paid", "unpaid"
]
FailureCode = Literal[
    "seller_unreachable", "interrupted", "unsupported_payment", "terms_changed", "not_continued"
]
SecretKind = Literal["order", "header", "response"]

# Those that nothing follows; `pending` too waits for people only.
ENDED: Final[frozenset[PurchaseStatus]] = frozenset(
    {"free", "failed", "rejected", "paid", "unpaid"}
)


class PurchaseRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    realm_id: int
    agent_id: str
    mode: Mode
    url: str
    method: str
    host: str
    origin: str
    max_micros: int | None
    memo: str | None
    metadata: dict[str, str]
    brought: bool
    created_by: str
    created_at: datetime
    status: PurchaseStatus
    reject_code: RejectCode | None
    failure_code: FailureCode | None
    problem: str | None
    updated_at: datetime
    busy_until: datetime | None
    # Who resumed after a stop and cancelled what it held.
    called_off_by: str | None
    # A decision as the API shows it, where a purchase was refused before it had a price.
    refusal: str | None
    protocol: Protocol | None
    amount_micros: int | None
    pay_to: str | None
    spend_id: str | None
    signature: str | None
    fee_payer: str | None
    last_valid_height: int | None
    signed_slot: int | None
    signed_at: datetime | None
    claimed: str | None


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """What was signed for a purchase, as it is stored before it leaves."""

    raw: bytes
    signature: str
    fee_payer: str
    blockhash: str
    last_valid_height: int
    signed_slot: int


class PinRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where an origin is paid, and what else it asked for since."""

    realm_id: int
    origin: str
    address: str
    offered: str | None
    offered_at: datetime | None
    created_by: str
    created_at: datetime
    updated_at: datetime


class PurchaseFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of purchases is narrowed to."""

    realm_id: int
    agent_id: str | None = None
    status: str | None = None
    host: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
