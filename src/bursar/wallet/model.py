"""A wallet: three counters of the ledger, and what the API shows of them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from bursar.chain.networks import CURRENCY
from bursar.clock import iso, iso_or_none
from bursar.money import format_micros

WalletStatus = Literal["provisioned", "funded", "depleted"]
FailureCode = Literal["destination_invalid", "network_cost_exceeded", "settlement_failed"]


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


# Withdrawals and deposits -------------------------------------------------------------------------


class WithdrawalRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    realm_id: int
    agent_id: str
    amount_micros: int
    destination: str
    status: Literal["pending", "settled", "failed"]
    failure_code: FailureCode | None
    memo: str | None
    metadata: dict[str, str]
    network: str
    created_by: str
    created_at: datetime
    signature: str | None
    block_time: int | None
    fee_lamports: int | None
    rent_lamports: int | None
    settled_at: datetime | None


class Withdrawal(msgspec.Struct, rename="camel", kw_only=True):
    """Money on its way out of a wallet, or gone, or failed and available again."""

    id: str
    agent_id: str
    amount: str
    currency: str
    destination: str
    status: Literal["pending", "settled", "failed"]
    signature: str | None
    block_time: int | None
    failure_code: FailureCode | None
    memo: str | None
    metadata: dict[str, str]
    network: str
    created_by: str
    created_at: str
    settled_at: str | None
    fee_lamports: int | None
    rent_lamports: int | None


class UnreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that mentions a wallet and that nobody could read: perhaps a deposit."""

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


class Deposit(msgspec.Struct, rename="camel", kw_only=True):
    """Money that came into a wallet. `sender` is null when it was minted."""

    id: str
    agent_id: str
    amount: str
    currency: str
    sender: str | None
    signature: str
    block_time: int | None
    status: Literal["pending", "credited"]
    created_at: str
    credited_at: str | None


def show_withdrawal(row: WithdrawalRow) -> Withdrawal:
    return Withdrawal(
        id=row.id,
        agent_id=row.agent_id,
        amount=format_micros(row.amount_micros),
        currency=CURRENCY,
        destination=row.destination,
        status=row.status,
        signature=row.signature,
        block_time=row.block_time,
        failure_code=row.failure_code,
        memo=row.memo,
        metadata=row.metadata,
        network=row.network,
        created_by=row.created_by,
        created_at=iso(row.created_at),
        settled_at=iso_or_none(row.settled_at),
        fee_lamports=row.fee_lamports,
        rent_lamports=row.rent_lamports,
    )


def show_deposit(row: DepositRow) -> Deposit:
    return Deposit(
        id=row.id,
        agent_id=row.agent_id,
        amount=format_micros(row.amount_micros),
        currency=CURRENCY,
        sender=row.sender,
        signature=row.signature,
        block_time=row.block_time,
        status=row.status,
        created_at=iso(row.created_at),
        credited_at=iso_or_none(row.credited_at),
    )
