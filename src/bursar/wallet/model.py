"""A wallet: three counters of the ledger, and what the API shows of them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

WalletStatus = Literal["provisioned", "funded", "depleted"]


@dataclass(frozen=True, slots=True)
class WalletRow:
    agent_id: str
    address: str
    mint: str
    status: WalletStatus
    credits_posted: int
    debits_posted: int
    debits_pending: int
    is_low: bool
    last_funded_at: datetime | None

    @property
    def balance_micros(self) -> int:
        return self.credits_posted - self.debits_posted

    @property
    def available_micros(self) -> int:
        return self.balance_micros - self.debits_pending


def low(balance_micros: int, cap_micros_daily: int) -> bool:
    """Below a tenth of the daily cap; with a cap of zero no balance is low."""
    return balance_micros * 10 < cap_micros_daily


class UnreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that mentions a wallet and could not be read: perhaps a deposit."""

    signature: str
    token_account: str
    agent_id: str
    problem: str
    tries: int
    noticed_at: datetime


class DepositRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    realm_id: int
    agent_id: str
    amount_micros: int
    token_account: str
    sender: str | None
    signature: str
    block_time: int | None
    status: Literal["pending", "credited"]
    created_at: datetime
    credited_at: datetime | None


@dataclass(frozen=True, slots=True)
class Moved:
    """Which deposits or withdrawals of an account are meant; None: all."""

    realm_id: int
    agent_id: str | None
    made_from: datetime | None
    made_to: datetime | None


class WatchedWallet(msgspec.Struct, frozen=True, kw_only=True):
    """A wallet as the ledger had it before the chain was asked."""

    agent_id: str
    realm_id: int
    address: str
    credits_micros: int
    debits_micros: int
    # A node that is not as far cannot say what is missing.
    credited_slot: int
    is_frozen: bool

    @property
    def balance_micros(self) -> int:
        return self.credits_micros - self.debits_micros
