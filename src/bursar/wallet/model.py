"""A wallet: four counters of the ledger, and what the API shows of them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from bursar.chain.networks import CURRENCY
from bursar.clock import iso, iso_or_none
from bursar.money import format_micros

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
    """Below a tenth of the daily cap. Exactly a tenth is not low, and nothing is below no cap."""
    return balance_micros * 10 < cap_micros_daily


class WalletSummary(msgspec.Struct, rename="camel", kw_only=True):
    """The wallet as it shows inside its agent."""

    address: str
    balance: str
    status: WalletStatus


class Wallet(msgspec.Struct, rename="camel", kw_only=True):
    """An agent's wallet. `available` is `balance` minus `reserved`."""

    agent_id: str
    address: str
    balance: str
    reserved: str
    available: str
    mint: str
    status: WalletStatus
    last_funded_at: str | None


class Balance(msgspec.Struct, rename="camel", kw_only=True):
    """The wallet's amounts at one moment."""

    agent_id: str
    balance: str
    reserved: str
    available: str
    currency: str
    as_of: str


def show_summary(row: WalletRow) -> WalletSummary:
    return WalletSummary(
        address=row.address, balance=format_micros(row.balance_micros), status=row.status
    )


def show_wallet(row: WalletRow) -> Wallet:
    return Wallet(
        agent_id=row.agent_id,
        address=row.address,
        balance=format_micros(row.balance_micros),
        reserved=format_micros(row.debits_pending),
        available=format_micros(row.available_micros),
        mint=row.mint,
        status=row.status,
        last_funded_at=iso_or_none(row.last_funded_at),
    )


def show_balance(row: WalletRow, as_of: datetime) -> Balance:
    return Balance(
        agent_id=row.agent_id,
        balance=format_micros(row.balance_micros),
        reserved=format_micros(row.debits_pending),
        available=format_micros(row.available_micros),
        currency=CURRENCY,
        as_of=iso(as_of),
    )
