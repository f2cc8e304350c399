"""A payment on its way to the chain, and the attempts that were signed for it.

waiting  nothing signed is alive: an attempt may be signed
live     one attempt is signed, and may land at any time
settled  one attempt is final on the chain
failed   every attempt is dead, and there will be no other
"""

from datetime import date, datetime
from typing import Final, NamedTuple

import msgspec

from bursar.config import Mode
from bursar.cost.model import Attempt

# More than this many that never land is not bad luck.
MOST_ATTEMPTS: Final = 10


class PaymentRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    mode: Mode
    realm_id: int
    agent_id: str
    amount_micros: int
    destination: str
    source: str
    mint: str
    # Ours: it pays for whatever settlement sends.
    fee_payer: str | None
    attempts: int
    created_at: datetime
    # When its spend was asked for. A restore may have forgotten an approval that was given, and
    # paid, between the two.
    asked_at: datetime
    # Whether settling for its wallet raised before.
    set_aside: bool
    # What its spend reserves of the agent's network budget, and what ended attempts have cost.
    reserved_lamports: int
    cost_lamports: int
    # Who resumed its account without paying it; None: it is to be paid.
    called_off_by: str | None

    @property
    def day(self) -> date:
        return self.created_at.date()

    @property
    def is_withdrawal(self) -> bool:
        return self.id.startswith("wdr_")


class SubmissionRow(msgspec.Struct, frozen=True, kw_only=True):
    payment: PaymentRow
    attempt: int
    raw: bytes
    signature: str
    blockhash: str
    last_valid_height: int
    signed_slot: int
    checks: int
    refusal: str | None
    in_doubt: bool

    @property
    def agent_id(self) -> str:
        return self.payment.agent_id

    @property
    def set_aside(self) -> bool:
        return self.payment.set_aside


class Look(msgspec.Struct, frozen=True):
    """When an attempt is looked at again, and what is known of it by then."""

    submission: SubmissionRow
    seconds: float
    in_doubt: bool = False
    refusal: str | msgspec.UnsetType | None = msgspec.UNSET  # unset: as it is


class NewSubmission(msgspec.Struct, frozen=True, kw_only=True):
    payment: PaymentRow
    attempt: int
    raw: bytes
    signature: str
    blockhash: str
    last_valid_height: int
    signed_slot: int
    opens_account: bool
    network_lamports: int

    @property
    def cost(self) -> Attempt:
        return Attempt(
            self.payment.id,
            self.payment.realm_id,
            self.payment.destination,
            self.opens_account,
            self.network_lamports,
        )


class Ended(NamedTuple):
    """An attempt that is over: on which day it was signed, and what its account was charged."""

    payment_id: str
    day: date
    charged_lamports: int


class Stored(NamedTuple):
    """What became of signed attempts: stored, or over the budget of their account."""

    ids: set[str]
    over_budget: set[str]


class SettledRow(msgspec.Struct, frozen=True, kw_only=True):
    """A payment or a purchase that was made, as the books have it. `signed`: our signature of a
    purchase, whose fee payer is the seller's."""

    id: str
    amount_micros: int
    destination: str
    source: str
    mint: str
    fee_payer: str | None
    signature: str
    adopted: bool
    signed: str | None


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """Which history of the database the settlement knows, and how careful it has to be."""

    mode: Mode
    timeline: str
    quiet_until_height: int
    careful_before: datetime | None
    explained_slot: int | None


class LedgerNow(msgspec.Struct, frozen=True, kw_only=True):
    """The same wallet after the chain was asked. `alive_micros`: payments that may have left."""

    credits_micros: int
    debits_micros: int
    alive_micros: int
