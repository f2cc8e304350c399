"""How a wallet and a deposit show themselves."""

from datetime import datetime
from typing import Literal

import msgspec

from bursar.chain.networks import CURRENCY
from bursar.clock import iso, iso_or_none
from bursar.money import format_micros
from bursar.wallet.model import DepositRow, WalletRow, WalletStatus


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
