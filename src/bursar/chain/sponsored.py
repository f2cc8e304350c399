"""Builds the transaction of a purchase: a payment that a seller's facilitator submits, and pays the
fees of. Nobody can open the payee's token account in it, for the fee payer may appear in no
instruction. Facilitators take this order and no other:

    SetComputeUnitLimit, SetComputeUnitPrice
    TransferChecked
    memo: what the seller asks for, else what tells this purchase from others; MPP may have none
"""

from dataclasses import dataclass
from typing import Final

from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN

from bursar.chain.message import ASSOCIATED_TOKEN, MEMO, SYSTEM, Holder, transfer
from bursar.errors import check
from bursar.money import MOST_MICROS

# A transfer with the longest memo needs less. Facilitators refuse more than 200,000, and the
# variation, which makes two purchases of one moment differ, stays below that.
COMPUTE_LIMIT: Final = 60_000
MOST_VARIATIONS: Final = 2**16
# In micro-lamports per compute unit. The facilitator pays it, and some refuse more than 10,000.
_PRIORITY_FEE: Final = 1
MOST_MEMO_BYTES: Final = 256
PROGRAMS: Final = frozenset(map(str, (SYSTEM, COMPUTE_BUDGET, TOKEN, ASSOCIATED_TOKEN, MEMO)))


@dataclass(frozen=True, slots=True)
class Sponsored:
    """`source` and `destination` are owners, not token accounts; `fee_payer` is the facilitator's.
    Purchases that are the same but for `variation` have different signatures."""

    amount_micros: int
    source: str
    destination: str
    mint: str
    decimals: int
    blockhash: str
    fee_payer: str
    memo: str | None
    variation: int


def build_sponsored(purchase: Sponsored) -> MessageV0:
    """Raises InvariantBroken on a purchase that must never be signed."""
    check(0 < purchase.amount_micros <= MOST_MICROS, "a purchase moves more than nothing")
    check(0 <= purchase.variation < MOST_VARIATIONS, "variations are few")
    check(purchase.source != purchase.destination, "a wallet does not pay itself")
    source = Holder.of(purchase.source, purchase.mint)
    destination = Holder.of(purchase.destination, purchase.mint)
    mentioned = {*map(str, (*source, *destination)), purchase.mint, *PROGRAMS}
    check(purchase.fee_payer not in mentioned, "the fee payer only pays the fee")
    memo = b"" if purchase.memo is None else purchase.memo.encode()
    check(
        purchase.memo is None or 0 < len(memo) <= MOST_MEMO_BYTES, "a memo fits and says something"
    )
    mint = Pubkey.from_string(purchase.mint)
    instructions = [
        set_compute_unit_limit(COMPUTE_LIMIT + purchase.variation),
        set_compute_unit_price(_PRIORITY_FEE),
        transfer(source, destination, mint, purchase.amount_micros, purchase.decimals),
        *([Instruction(MEMO, memo, [])] if memo else []),
    ]
    fee_payer, blockhash = (
        Pubkey.from_string(purchase.fee_payer),
        Hash.from_string(purchase.blockhash),
    )
    return MessageV0.try_compile(fee_payer, instructions, [], blockhash)
