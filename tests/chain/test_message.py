"""Goal: the transaction that is signed is exactly the payment, in every byte that matters."""

from dataclasses import replace
from typing import Any

import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import MessageV0, from_bytes_versioned, to_bytes_versioned
from solders.pubkey import Pubkey

from bursar.chain.message import Payment, build, token_account
from bursar.errors import InvariantBroken
from tests.chain.support import new_address

PAYMENT = Payment(
    id="txn_01JCQ4Z8M3N5P7R9T1V3X5Y7Z9",
    attempt=1,
    amount_micros=1_234_567,
    source=new_address(),
    destination=new_address(),
    mint=new_address(),
    decimals=6,
    blockhash=str(Hash.new_unique()),
    fee_payer=new_address(),
    priority_fee=2_500,
)
COMPUTE_BUDGET = "ComputeBudget111111111111111111111111111111"
ASSOCIATED = "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL"
TOKEN = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
MEMO = "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"
SYSTEM = "11111111111111111111111111111111"

Meta = tuple[str, bool, bool]  # address, signs, is written


def decoded(payment: Payment) -> tuple[MessageV0, list[tuple[str, bytes, list[Meta]]]]:
    """What a node would read from the bytes."""
    message = from_bytes_versioned(to_bytes_versioned(build(payment)))
    assert isinstance(message, MessageV0)
    keys = [str(key) for key in message.account_keys]
    calls = [
        (
            keys[call.program_id_index],
            bytes(call.data),
            [(keys[at], message.is_signer(at), message.is_maybe_writable(at))
             for at in call.accounts],
        )
        for call in message.instructions
    ]  # fmt: skip
    return message, calls


def test_every_instruction_and_account():
    """Goal: five instructions, in order, with the accounts and numbers of the payment."""
    p = PAYMENT
    message, calls = decoded(p)
    source, target = token_account(p.source, p.mint), token_account(p.destination, p.mint)
    limit, price, create, transfer, memo = calls
    assert limit == (COMPUTE_BUDGET, b"\x02" + (60_001).to_bytes(4, "little"), [])
    assert price == (COMPUTE_BUDGET, b"\x03" + (2_500).to_bytes(8, "little"), [])
    assert create == (
        ASSOCIATED,
        b"\x01",
        [
            (p.fee_payer, True, True),
            (target, False, True),
            (p.destination, False, False),
            (p.mint, False, False),
            (SYSTEM, False, False),
            (TOKEN, False, False),
        ],
    )
    assert transfer == (
        TOKEN,
        b"\x0c" + (1_234_567).to_bytes(8, "little") + b"\x06",
        [
            (source, False, True),
            (p.mint, False, False),
            (target, False, True),
            (p.source, True, False),
        ],
    )
    assert memo == (MEMO, p.id.encode(), [])
    # The fee payer and the wallet sign, in this order, and nobody else.
    assert message.header.num_required_signatures == 2
    assert [str(key) for key in message.account_keys[:2]] == [p.fee_payer, p.source]
    assert str(message.recent_blockhash) == p.blockhash
    assert message.address_table_lookups == []


def test_the_same_payment_gives_the_same_bytes():
    """Goal: what was stored and what is built again cannot differ."""
    assert to_bytes_versioned(build(PAYMENT)) == to_bytes_versioned(build(replace(PAYMENT)))


def test_attempts_differ_even_with_the_same_blockhash_and_price():
    """Goal: no two attempts share a signature, whatever the network's price does."""
    seen = {
        to_bytes_versioned(build(replace(PAYMENT, attempt=attempt, priority_fee=price)))
        for attempt in range(1, 11)
        for price in (0, 1, 2_500)
    }
    assert len(seen) == 30


@pytest.mark.parametrize(
    "change",
    [
        {"id": "txn_2"},
        {"amount_micros": 1_234_568},
        {"source": new_address()},
        {"destination": new_address()},
        {"mint": new_address()},
        {"blockhash": str(Hash.new_unique())},
        {"fee_payer": new_address()},
        {"priority_fee": 0},
        {"decimals": 5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_payment_is_in_the_bytes(change: dict[str, Any]):
    """Goal: two payments that differ never have the same signature."""
    assert to_bytes_versioned(build(replace(PAYMENT, **change))) != to_bytes_versioned(
        build(PAYMENT)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"amount_micros": 0},
        {"amount_micros": -1},
        {"amount_micros": 2**63},
        {"attempt": 0},
        {"attempt": 1_001},
        {"priority_fee": -1},
        {"id": ""},
        {"id": "x" * 101},
        {"destination": PAYMENT.source},
        {"fee_payer": PAYMENT.source},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_payment_that_must_never_be_signed(change: dict[str, Any]):
    with pytest.raises(InvariantBroken):
        build(replace(PAYMENT, **change))


def test_it_fits_into_a_packet():
    """Goal: the longest id and two signatures stay under what nodes accept."""
    assert len(to_bytes_versioned(build(replace(PAYMENT, id="x" * 100)))) + 129 <= 1_232


def test_the_token_account_is_the_associated_one():
    """Goal: the well-known derivation, checked against one of mainnet."""
    owner = Pubkey.from_string("GThUX1Atko4tqhN2NaiTazWSeFWMuiUvfFnyJyUghFMJ")
    mint = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
    seeds = [bytes(owner), bytes(Pubkey.from_string(TOKEN)), bytes(Pubkey.from_string(mint))]
    derived, _ = Pubkey.find_program_address(seeds, Pubkey.from_string(ASSOCIATED))
    assert token_account(str(owner), mint) == str(derived)
    assert not derived.is_on_curve()
    assert Keypair().pubkey().is_on_curve()
