"""What the chain remembers of a transaction that landed, beside its own bytes."""

from dataclasses import dataclass
from typing import Any

import msgspec
from solders.account import Account


class TokenBalance(msgspec.Struct, array_like=True, frozen=True):
    """The balance of one token account before or after; `index` is its place among the
    transaction's keys."""

    index: int
    mint: bytes
    holder: bytes
    program: bytes
    amount: int
    decimals: int


class InnerCall(msgspec.Struct, array_like=True, frozen=True):
    """An instruction that a program issued itself."""

    program_index: int
    accounts: bytes
    data: bytes
    stack_height: int | None


class Record(msgspec.Struct, array_like=True, frozen=True):
    """Kept as MessagePack: bytes stay bytes, and an unsigned 64-bit lamport balance fits."""

    err: Any
    fee: int
    units: int
    logs: list[str]
    # One list per instruction that issued others, with that instruction's index.
    inner: list[tuple[int, list[InnerCall]]]
    loaded_writable: list[bytes]
    loaded_readonly: list[bytes]
    return_data: tuple[bytes, bytes] | None
    # A simulation has no balances.
    pre_balances: list[int] = []
    post_balances: list[int] = []
    pre_tokens: list[TokenBalance] = []
    post_tokens: list[TokenBalance] = []


@dataclass(frozen=True, slots=True)
class Landed:
    """A transaction as the disk has it. `sequence` orders all transactions of this chain."""

    sequence: int
    signature: bytes
    slot: int
    raw: bytes
    record: Record


@dataclass(frozen=True, slots=True)
class Mention:
    """A line of an address's history: as much of a transaction as such a list shows."""

    signature: bytes
    slot: int
    memo: str | None
    err: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """A transaction on its way to the disk, with all that it changed there."""

    signature: bytes
    slot: int
    memo: str | None
    raw: bytes
    record: Record
    mentions: list[bytes]
    # None: the account is gone.
    accounts: dict[bytes, Account | None]
