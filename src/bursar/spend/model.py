"""A spend: what the API calls a transaction.

pending   waits for a person; the amount is reserved
approved  will be paid; the amount is reserved
settled   paid, final on the chain
rejected  refused at once or later; nothing is reserved
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

import msgspec

from bursar.chain.message import most_fee_lamports
from bursar.config import Config
from bursar.policy.engine import Decision, RejectCode, Terms, Used, Verdict, decide
from bursar.policy.model import Bounds

SpendStatus = Literal["pending", "approved", "settled", "rejected"]

# Every move that exists. A terminal state has none.
MOVES: Final[dict[SpendStatus, frozenset[SpendStatus]]] = {
    "pending": frozenset({"approved", "rejected"}),
    "approved": frozenset({"settled", "rejected"}),
    "settled": frozenset(),
    "rejected": frozenset(),
}


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
    verdict: Verdict
    terms: Terms
    used: Used
    network: str
    created_by: str
    created_at: datetime
    # The purchase that it pays for; None where settlement pays it.
    purchase_id: str | None
    # The budget that its agent was under when it was decided.
    budget_id: str | None
    expires_at: datetime | None
    updated_at: datetime
    decision_number: int
    # What is reserved for it of its day's network budget; what it cost, once it has ended.
    network_lamports: int
    # What becomes of it later.
    decided_by: str | None = None
    decided_at: datetime | None = None
    decision_reason: str | None = None
    signature: str | None = None
    block_time: int | None = None
    fee_lamports: int | None = None
    rent_lamports: int | None = None
    settled_at: datetime | None = None

    @property
    def decision(self) -> Decision:
        return decide(
            self.terms,
            self.used,
            self.amount_micros,
            self.recipient,
            self.pay_to,
            self.created_at,
        )

    @property
    def as_created(self) -> "SpendRow":
        """The spend as its first answer and its event showed it."""
        if self.status == self.verdict and self.updated_at == self.created_at:
            return self
        return msgspec.structs.replace(
            self,
            status=self.verdict,
            reject_code=self.reject_code if self.verdict == "rejected" else None,
            decided_by=None,
            decided_at=None,
            decision_reason=None,
            signature=None,
            block_time=None,
            fee_lamports=None,
            rent_lamports=None,
            settled_at=None,
            updated_at=self.created_at,
        )


def bounds_of(config: Config) -> Bounds:
    return Bounds(
        pending_max=config.pending_max,
        agent_network_lamports=config.agent_network_lamports,
        account_network_lamports=config.account_network_lamports,
        payment_lamports=most_fee_lamports(config.priority_fee_max_lamports),
    )


@lru_cache(maxsize=1_024)
def midnight_before(moment: datetime) -> datetime:
    """The beginning of the UTC day of this moment."""
    return midnight_after(moment) - timedelta(days=1)


def midnight_after(moment: datetime) -> datetime:
    """The end of the UTC day of this moment."""
    day = moment.date()
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
