"""Goal: the transaction of a purchase is what facilitators accept, in every byte that matters."""

from base64 import b64encode
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from solders.hash import Hash
from solders.message import MessageV0, from_bytes_versioned, to_bytes_versioned
from solders.transaction import VersionedTransaction

from bursar.chain.message import token_account
from bursar.chain.sponsored import (
    MOST_MEMO_BYTES,
    MOST_VARIATIONS,
    PROGRAMS,
    Sponsored,
    build_sponsored,
)
from bursar.clock import SystemClock
from bursar.errors import InvariantBroken
from bursar_localnet.genesis import TEST_MINT
from bursar_localnet.rpc import Settings, serve
from tests.chain.support import new_address
from tests.localnet.support import Rpc

PURCHASE = Sponsored(
    amount_micros=1_000,
    source=new_address(),
    destination=new_address(),
    mint=new_address(),
    decimals=6,
    blockhash=str(Hash.new_unique()),
    fee_payer=new_address(),
    memo="pur_1",
    variation=7,
)
COMPUTE_BUDGET = "ComputeBudget111111111111111111111111111111"
TOKEN = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
MEMO = "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"
# The strictest limit of the facilitators that are published.
MOST_UNITS = 200_000


def decoded(purchase: Sponsored) -> tuple[list[str], list[tuple[str, bytes, list[str]]]]:
    message = from_bytes_versioned(to_bytes_versioned(build_sponsored(purchase)))
    assert isinstance(message, MessageV0)
    assert message.header.num_required_signatures == 2
    assert not message.address_table_lookups
    keys = [str(key) for key in message.account_keys]
    calls = [
        (keys[call.program_id_index], bytes(call.data), [keys[at] for at in call.accounts])
        for call in message.instructions
    ]
    return keys, calls


def test_every_instruction_and_account():
    p = PURCHASE
    keys, (limit, price, transfer, memo) = decoded(p)
    assert keys[:2] == [p.fee_payer, p.source], "the facilitator signs first, the wallet second"
    assert limit == (COMPUTE_BUDGET, b"\x02" + (60_007).to_bytes(4, "little"), [])
    assert price == (COMPUTE_BUDGET, b"\x03" + (1).to_bytes(8, "little"), [])
    assert transfer == (
        TOKEN,
        b"\x0c" + (1_000).to_bytes(8, "little") + b"\x06",
        [token_account(p.source, p.mint), p.mint, token_account(p.destination, p.mint), p.source],
    )
    assert memo == (MEMO, b"pur_1", [])


def test_the_fee_payer_is_in_no_instruction():
    _, calls = decoded(PURCHASE)
    assert all(PURCHASE.fee_payer not in accounts for _, _, accounts in calls)


def test_without_a_memo_there_is_no_fourth_instruction():
    _, calls = decoded(replace(PURCHASE, memo=None))
    assert [program for program, _, _ in calls] == [COMPUTE_BUDGET, COMPUTE_BUDGET, TOKEN]


def test_variations_differ_and_stay_below_what_facilitators_accept():
    variations = (0, 1, 2, MOST_VARIATIONS - 1)
    made = {bytes(build_sponsored(replace(PURCHASE, variation=n))) for n in variations}
    assert len(made) == len(variations)
    assert build_sponsored(PURCHASE) == build_sponsored(PURCHASE), (
        "the same again, to present again"
    )
    _, (limit, *_) = decoded(replace(PURCHASE, variation=MOST_VARIATIONS - 1))
    assert int.from_bytes(limit[1][1:], "little") <= MOST_UNITS


@pytest.mark.parametrize(
    "change",
    [
        {"amount_micros": 0},
        {"amount_micros": -1},
        {"amount_micros": 2**63},
        {"variation": -1},
        {"variation": MOST_VARIATIONS},
        {"destination": PURCHASE.source},
        {"memo": ""},
        {"memo": "é" * (MOST_MEMO_BYTES // 2 + 1)},
        {"fee_payer": PURCHASE.source},
        {"fee_payer": PURCHASE.destination},
        {"fee_payer": PURCHASE.mint},
        {"fee_payer": token_account(PURCHASE.source, PURCHASE.mint)},
        {"fee_payer": token_account(PURCHASE.destination, PURCHASE.mint)},
        *({"fee_payer": program} for program in sorted(PROGRAMS)),
    ],
)
def test_what_must_never_be_signed_is_not_built(change: dict[str, Any]):
    with pytest.raises(InvariantBroken):
        build_sponsored(replace(PURCHASE, **change))


async def test_the_longest_memo_fits_the_compute_limit_and_the_packet(tmp_path: Any):
    """Goal: on the real programs, with the smallest limit, it lands."""
    async with (
        serve(Settings(tmp_path, port=0), SystemClock()) as node,
        aiohttp.ClientSession() as session,
    ):
        rpc = Rpc(node.port, session)
        facilitator, wallet = await rpc.wallet(), await rpc.wallet(micros=1_000)
        payee = await rpc.wallet(micros=1)
        purchase = replace(
            PURCHASE,
            source=str(wallet.pubkey()),
            destination=str(payee.pubkey()),
            mint=TEST_MINT,
            blockhash=str(await rpc.blockhash()),
            fee_payer=str(facilitator.pubkey()),
            memo="\U0001f600" * (MOST_MEMO_BYTES // 4),
            variation=0,
        )
        signed = VersionedTransaction(build_sponsored(purchase), [facilitator, wallet])
        assert len(bytes(signed)) <= 1_232
        await rpc("sendTransaction", b64encode(bytes(signed)).decode(), {"encoding": "base64"})
        assert await rpc.tokens(payee.pubkey()) == 1_001
        assert await rpc.tokens(wallet.pubkey()) == 0
