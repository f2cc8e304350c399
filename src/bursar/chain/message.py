"""Builds the transaction of a payment that Bursar makes itself; `sponsored` has the other kind that
it signs. The same payment always gives the same bytes.

    SetComputeUnitLimit, SetComputeUnitPrice
    create the recipient's token account, only where it is missing: the fee payer pays its rent
    TransferChecked
    memo: the id of the payment; in the place of the creation where there is none, so that the
    transfer always is at the same one
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Self

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address

from bursar.errors import check
from bursar.money import MOST_MICROS

SYSTEM: Final = Pubkey.default()
ASSOCIATED_TOKEN: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
MEMO: Final = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")

# A first payment needs about 15,000 units, and some more for an unlucky token account address. The
# priority fee is charged on the whole limit, so the limit is not larger.
COMPUTE_LIMIT: Final = 60_000
# The attempt's number is added to the limit, so it must stay small in comparison.
_HIGHEST_ATTEMPT: Final = 1_000
SIGNATURES: Final = 2
LAMPORTS_PER_SIGNATURE: Final = 5_000
# What a new token account, and an account without data, must hold to exist.
TOKEN_ACCOUNT_LAMPORTS: Final = 2_039_280
EMPTY_ACCOUNT_LAMPORTS: Final = 890_880
_MICROS_PER_LAMPORT: Final = 1_000_000
_MOST_MEMO_BYTES: Final = 100
_CREATE_IDEMPOTENT: Final = b"\x01"
_TRANSFER_CHECKED: Final = b"\x0c"


@dataclass(frozen=True, slots=True)
class Payment:
    """`source` and `destination` are owners, not token accounts. `priority_fee` is in
    micro-lamports per compute unit."""

    id: str
    attempt: int
    amount_micros: int
    source: str
    destination: str
    mint: str
    decimals: int
    blockhash: str
    fee_payer: str
    priority_fee: int
    # Whether the payment may open the payee's token account. If not and the account is missing, the
    # payment fails instead of costing rent.
    opens_account: bool = True


def build(payment: Payment) -> MessageV0:
    """Raises InvariantBroken on a payment that must never be signed."""
    check(0 < payment.amount_micros <= MOST_MICROS, "a payment moves more than nothing")
    check(1 <= payment.attempt <= _HIGHEST_ATTEMPT, "attempts are numbered from 1")
    check(payment.priority_fee >= 0, "a priority fee is not negative")
    check(payment.source != payment.destination, "a wallet does not pay itself")
    check(payment.fee_payer != payment.source, "the fee payer is not a wallet")
    memo = payment.id.encode("ascii")
    check(0 < len(memo) <= _MOST_MEMO_BYTES, "the memo is a payment's id")
    fee_payer, mint = Pubkey.from_string(payment.fee_payer), Pubkey.from_string(payment.mint)
    source = Holder.of(payment.source, payment.mint)
    destination = Holder.of(payment.destination, payment.mint)
    move = transfer(source, destination, mint, payment.amount_micros, payment.decimals)
    note = Instruction(MEMO, memo, [])
    instructions = [
        # The attempt is part of the limit, so that two attempts never have the same signature,
        # even with the same blockhash and price.
        set_compute_unit_limit(COMPUTE_LIMIT + payment.attempt),
        set_compute_unit_price(payment.priority_fee),
        *(
            (_create_token_account(fee_payer, destination, mint), move, note)
            if payment.opens_account
            else (note, move)
        ),
    ]
    blockhash = Hash.from_string(payment.blockhash)
    return MessageV0.try_compile(fee_payer, instructions, [], blockhash)


def fee_lamports(priority_fee: int, attempt: int) -> int:
    """What an attempt costs, without rent for a new token account."""
    micros = (COMPUTE_LIMIT + attempt) * priority_fee
    return SIGNATURES * LAMPORTS_PER_SIGNATURE - (-micros // _MICROS_PER_LAMPORT)


def most_fee_lamports(priority_fee_max_lamports: int) -> int:
    """The same at the highest priority fee that the settings allow."""
    price = priority_fee_max_lamports * _MICROS_PER_LAMPORT // COMPUTE_LIMIT
    return fee_lamports(price, _HIGHEST_ATTEMPT)


# Cached, because deriving the address takes 34 µs and the same wallets come again and again.
@lru_cache(maxsize=100_000)
def token_account(owner: str, mint: str) -> str:
    """The address where an owner keeps a token: the associated token account."""
    return str(get_associated_token_address(Pubkey.from_string(owner), Pubkey.from_string(mint)))


class Holder(NamedTuple):
    """An owner of tokens, and the account that they are in."""

    owner: Pubkey
    tokens: Pubkey

    @classmethod
    def of(cls, owner: str, mint: str) -> Self:
        return cls(Pubkey.from_string(owner), Pubkey.from_string(token_account(owner, mint)))


def _create_token_account(payer: Pubkey, holder: Holder, mint: Pubkey) -> Instruction:
    return Instruction(
        ASSOCIATED_TOKEN,
        _CREATE_IDEMPOTENT,
        [
            AccountMeta(payer, is_signer=True, is_writable=True),
            AccountMeta(holder.tokens, is_signer=False, is_writable=True),
            AccountMeta(holder.owner, is_signer=False, is_writable=False),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(SYSTEM, is_signer=False, is_writable=False),
            AccountMeta(TOKEN, is_signer=False, is_writable=False),
        ],
    )


def transfer(
    source: Holder, destination: Holder, mint: Pubkey, amount_micros: int, decimals: int
) -> Instruction:
    return Instruction(
        TOKEN,
        _TRANSFER_CHECKED + amount_micros.to_bytes(8, "little") + bytes([decimals]),
        [
            AccountMeta(source.tokens, is_signer=False, is_writable=True),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(destination.tokens, is_signer=False, is_writable=True),
            AccountMeta(source.owner, is_signer=True, is_writable=False),
        ],
    )
