"""The ledger's moves: pure arithmetic on one locked wallet, checked before it is written.

balance   = credits posted - debits posted
reserved  = debits pending
available = balance - reserved, and never negative
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec

from bursar.errors import check
from bursar.wallet.model import WalletRow, WalletStatus

TransferKind = Literal["deposit", "reserve", "post", "void"]


class Transfer(msgspec.Struct, frozen=True):
    """One line of the journal, with the counters after it."""

    agent_id: str
    number: int
    kind: TransferKind
    subject_id: str
    amount_micros: int
    credits_posted_after: int
    debits_posted_after: int
    debits_pending_after: int
    created_at: datetime


@dataclass(slots=True)
class LockedWallet:
    """A wallet whose lock this transaction holds, and the moves made on it so far."""

    agent_id: str
    realm_id: int
    address: str
    mint: str
    status: WalletStatus
    credits_posted: int
    debits_posted: int
    debits_pending: int
    transfers: int
    is_low: bool
    last_funded_at: datetime | None
    # One clock for everything in this transaction, read after the lock.
    now: datetime
    moves: list[Transfer] = field(default_factory=list)

    @property
    def balance_micros(self) -> int:
        return self.credits_posted - self.debits_posted

    @property
    def available_micros(self) -> int:
        return self.balance_micros - self.debits_pending

    def deposit(self, subject_id: str, amount_micros: int) -> None:
        """Money came in from outside."""
        self.credits_posted += amount_micros
        self.status = "funded"
        self.last_funded_at = self.now
        self._note("deposit", subject_id, amount_micros)

    def reserve(self, subject_id: str, amount_micros: int) -> None:
        """Sets an amount aside for a payment that is decided but not made."""
        check(amount_micros <= self.available_micros, "a reserve is within what is available")
        self.debits_pending += amount_micros
        self._note("reserve", subject_id, amount_micros)

    def post(self, subject_id: str, amount_micros: int) -> None:
        """The payment was made: what was reserved leaves the wallet."""
        check(amount_micros <= self.debits_pending, "only what is reserved is posted")
        self.debits_pending -= amount_micros
        self.debits_posted += amount_micros
        if self.balance_micros == 0:
            self.status = "depleted"
        self._note("post", subject_id, amount_micros)

    def void(self, subject_id: str, amount_micros: int) -> None:
        """The payment will never be made: what was reserved is available again."""
        check(amount_micros <= self.debits_pending, "only what is reserved is voided")
        self.debits_pending -= amount_micros
        self._note("void", subject_id, amount_micros)

    def row(self) -> WalletRow:
        return WalletRow(
            agent_id=self.agent_id,
            address=self.address,
            mint=self.mint,
            status=self.status,
            credits_posted=self.credits_posted,
            debits_posted=self.debits_posted,
            debits_pending=self.debits_pending,
            is_low=self.is_low,
            last_funded_at=self.last_funded_at,
        )

    def _note(self, kind: TransferKind, subject_id: str, amount_micros: int) -> None:
        check(amount_micros > 0, "a transfer moves something")
        check(self.available_micros >= 0, "no wallet is overdrawn")
        self.transfers += 1
        self.moves.append(
            Transfer(
                self.agent_id,
                self.transfers,
                kind,
                subject_id,
                amount_micros,
                self.credits_posted,
                self.debits_posted,
                self.debits_pending,
                self.now,
            )
        )
