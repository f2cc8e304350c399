"""Goal: a transaction lands exactly once, or is refused in a node's own words."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import (
    TransferParams,
    create_lookup_table,
    extend_lookup_table,
    transfer,
)
from solders.transaction import VersionedTransaction

from bursar.clock import SystemClock
from bursar_localnet import base58, programs
from bursar_localnet.rpc import Settings, serve
from bursar_localnet.slots import Lag
from tests.localnet.conftest import OpenNode
from tests.localnet.support import (
    LAMPORTS_PER_SOL,
    Rpc,
    RpcFailed,
    encode,
    payment,
    sign,
    sol_transfer,
)
from tests.localnet.test_slots import ManualClock


async def test_a_payment_moves_the_money_and_its_fee(rpc: Rpc) -> None:
    payer = await rpc.wallet(micros=5_000_000)
    to = Keypair().pubkey()
    signature = await rpc.send(payment(payer, to, 1_250_000, await rpc.blockhash(), "txn_1"))
    assert await rpc.tokens(to) == 1_250_000
    assert await rpc.tokens(payer.pubkey()) == 3_750_000
    landed = await rpc(
        "getTransaction", signature, {"encoding": "json", "maxSupportedTransactionVersion": 0}
    )
    # 5,000 a signature, and 60,000 units at 1,000 micro-lamports.
    assert landed["meta"]["fee"] == 5_060
    history = await rpc("getSignaturesForAddress", str(to))
    assert [(row["signature"], row["memo"]) for row in history] == [(signature, "[5] txn_1")]


async def test_the_same_bytes_twice_land_once(rpc: Rpc) -> None:
    payer = await rpc.wallet()
    to = Keypair().pubkey()
    signed = sol_transfer(payer, to, LAMPORTS_PER_SOL, await rpc.blockhash())
    results = await asyncio.gather(*(rpc.send(signed) for _ in range(8)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, RpcFailed)]
    assert len(refused) == 7
    assert {(failure.code, failure.data["err"]) for failure in refused} == {
        (-32002, "AlreadyProcessed")
    }
    # Without preflight a node hands the signature back whatever happens.
    assert await rpc.send(signed, skipPreflight=True) == str(signed.signatures[0])
    assert (await rpc("getBalance", str(to)))["value"] == LAMPORTS_PER_SOL


async def test_a_failing_transaction_costs_nothing_with_preflight(rpc: Rpc) -> None:
    payer = await rpc.wallet(sol=1)
    too_much = sol_transfer(payer, Keypair().pubkey(), 5 * LAMPORTS_PER_SOL, await rpc.blockhash())
    with pytest.raises(RpcFailed) as failure:
        await rpc.send(too_much)
    assert failure.value.code == -32002
    assert failure.value.message == (
        "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1"
    )
    assert failure.value.data["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert (await rpc("getBalance", str(payer.pubkey())))["value"] == LAMPORTS_PER_SOL
    statuses = await rpc("getSignatureStatuses", [str(too_much.signatures[0])])
    assert statuses["value"] == [None]


async def test_a_failing_transaction_lands_and_pays_its_fee_without(rpc: Rpc) -> None:
    payer = await rpc.wallet(sol=1)
    too_much = sol_transfer(payer, Keypair().pubkey(), 5 * LAMPORTS_PER_SOL, await rpc.blockhash())
    signature = await rpc.send(too_much, skipPreflight=True)
    status = (await rpc("getSignatureStatuses", [signature]))["value"][0]
    assert status["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert status["status"] == {"Err": status["err"]}
    balance = (await rpc("getBalance", str(payer.pubkey())))["value"]
    assert balance == LAMPORTS_PER_SOL - 5_000
    # Beside the one that gave it its SOL.
    listed = await rpc("getSignaturesForAddress", str(payer.pubkey()))
    assert [(line["signature"], line["err"]) for line in listed][:-1] == [
        (signature, status["err"])
    ]
    assert listed[-1]["err"] is None


async def test_what_no_block_can_hold_leaves_no_trace(rpc: Rpc) -> None:
    payer = await rpc.wallet(sol=1)
    nobody = Keypair()
    good, unknown = await rpc.blockhash(), Hash.new_unique()
    for refused, reason in (
        (sol_transfer(nobody, payer.pubkey(), 1, good), "AccountNotFound"),
        (sol_transfer(payer, nobody.pubkey(), 1, unknown), "BlockhashNotFound"),
    ):
        with pytest.raises(RpcFailed) as failure:
            await rpc.send(refused)
        assert (failure.value.code, failure.value.data["err"]) == (-32002, reason)
        signature = await rpc.send(refused, skipPreflight=True)
        assert (await rpc("getSignatureStatuses", [signature]))["value"] == [None]
    assert (await rpc("getBalance", str(payer.pubkey())))["value"] == LAMPORTS_PER_SOL


async def test_a_forged_signature_is_refused_first(rpc: Rpc) -> None:
    payer = await rpc.wallet()
    honest = sol_transfer(payer, Keypair().pubkey(), 1_000_000, Hash.new_unique())
    forged = VersionedTransaction.populate(honest.message, [Signature.new_unique()])
    with pytest.raises(RpcFailed) as failure:
        await rpc.send(forged)
    assert (failure.value.code, failure.value.message) == (
        -32003,
        "Transaction signature verification failure",
    )
    signature = await rpc.send(forged, skipPreflight=True)
    assert (await rpc("getSignatureStatuses", [signature]))["value"] == [None]


async def test_bytes_that_are_no_transaction(rpc: Rpc) -> None:
    payer = await rpc.wallet()
    blockhash = await rpc.blockhash()
    good = bytes(sol_transfer(payer, Keypair().pubkey(), 1_000_000, blockhash))
    large = bytes(sign([programs.memo("x" * 1_200)], payer, blockhash))
    cases = [
        ("!!!", "invalid base64 encoding"),
        (b64encode(b"\x01\x02").decode(), "failed to deserialize"),
        (b64encode(good + b"\x00").decode(), "failed to deserialize"),
        (b64encode(good[:-1]).decode(), "failed to deserialize"),
        (b64encode(large).decode(), "too large"),
        ("A" * 1_645, "base64 encoded solana_transaction::versioned::VersionedTransaction too"),
    ]
    for text, words in cases:
        with pytest.raises(RpcFailed) as failure:
            await rpc("sendTransaction", text, {"encoding": "base64"})
        assert failure.value.code == -32602, text
        assert words in failure.value.message


async def test_base58_is_the_default_encoding(rpc: Rpc) -> None:
    payer = await rpc.wallet()
    signed = sol_transfer(payer, Keypair().pubkey(), 1_000_000, await rpc.blockhash())
    assert await rpc("sendTransaction", base58.encode(bytes(signed))) == str(signed.signatures[0])


async def test_a_blockhash_counts_for_150_blocks(open_node: OpenNode) -> None:
    clock = ManualClock()
    rpc: Rpc = await open_node(clock)
    payer = await rpc.wallet()
    latest = (await rpc("getLatestBlockhash"))["value"]
    blockhash = Hash.from_string(latest["blockhash"])
    clock.pass_ms(400 * 150)
    assert await rpc("getBlockHeight") == latest["lastValidBlockHeight"]
    assert (await rpc("isBlockhashValid", latest["blockhash"]))["value"]
    await rpc.send(sol_transfer(payer, Keypair().pubkey(), 1_000_000, blockhash))
    clock.pass_ms(400)
    assert not (await rpc("isBlockhashValid", latest["blockhash"]))["value"]
    with pytest.raises(RpcFailed) as failure:
        await rpc.send(sol_transfer(payer, Keypair().pubkey(), 1_000_000, blockhash))
    assert failure.value.data["err"] == "BlockhashNotFound"


async def test_every_memo_program_is_there(rpc: Rpc) -> None:
    payer = await rpc.wallet()
    for program in sorted(programs.MEMO_PROGRAMS, key=str):
        memo = programs.memo(f"through {program}")
        instruction = type(memo)(program, memo.data, [])
        signature = await rpc.send(sign([instruction], payer, await rpc.blockhash()))
        landed = await rpc(
            "getTransaction",
            signature,
            {"encoding": "jsonParsed", "maxSupportedTransactionVersion": 0},
        )
        shown = landed["transaction"]["message"]["instructions"][0]
        assert (shown["program"], shown["parsed"]) == ("spl-memo", f"through {program}")


async def test_a_landed_message_is_known_whoever_signed_it(open_node: OpenNode) -> None:
    """Goal: a facilitator that simulates before it signs learns that the payment was made."""
    rpc: Rpc = await open_node(lag=Lag(0, 100), faults=True)
    payer, wallet = await rpc.wallet(), await rpc.wallet(micros=5)
    signed = sponsored(payer, wallet, await rpc.blockhash("processed"))
    unsigned = VersionedTransaction.populate(
        signed.message, [Signature.default(), signed.signatures[1]]
    )

    async def simulated(**options: Any) -> Any:
        given = {"encoding": "base64", "commitment": "processed"} | options
        return (await rpc("simulateTransaction", encode(unsigned), given))["value"]["err"]

    assert await simulated() is None
    signature = await rpc.send(signed, preflightCommitment="processed")
    assert await simulated() == "AlreadyProcessed"
    # With another blockhash it is another message.
    assert await simulated(replaceRecentBlockhash=True) is None
    # A fork that never had it may have it.
    assert await rpc("bursar_fork", signature) == [signature]
    assert await simulated() is None


async def test_a_landed_message_is_known_after_a_restart(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "chain", port=0)
    async with aiohttp.ClientSession() as session:
        async with serve(settings, SystemClock()) as node:
            rpc = Rpc(node.port, session)
            payer, wallet = await rpc.wallet(), await rpc.wallet(micros=5)
            signed = sponsored(payer, wallet, await rpc.blockhash())
            await rpc.send(signed)
        async with serve(settings, SystemClock()) as node:
            unsigned = VersionedTransaction.populate(signed.message, [Signature.default()] * 2)
            found = await Rpc(node.port, session)(
                "simulateTransaction", encode(unsigned), {"encoding": "base64"}
            )
    assert found["value"]["err"] == "AlreadyProcessed"


def sponsored(payer: Keypair, wallet: Keypair, blockhash: Hash) -> VersionedTransaction:
    """A transfer of the wallet's for which another pays the fee."""
    move = transfer(
        TransferParams(
            from_pubkey=wallet.pubkey(), to_pubkey=payer.pubkey(), lamports=LAMPORTS_PER_SOL
        )
    )
    message = MessageV0.try_compile(payer.pubkey(), [move], [], blockhash)
    return VersionedTransaction(message, [payer, wallet])


async def test_simulation_changes_nothing(rpc: Rpc) -> None:
    payer = await rpc.wallet(sol=2)
    to = Pubkey.new_unique()
    signed = sol_transfer(payer, to, LAMPORTS_PER_SOL, Hash.new_unique())
    options = {
        "encoding": "base64",
        "replaceRecentBlockhash": True,
        "accounts": {"addresses": [str(to)], "encoding": "base64"},
    }
    simulated = (await rpc("simulateTransaction", encode(signed), options))["value"]
    assert simulated["err"] is None
    assert simulated["accounts"][0]["lamports"] == LAMPORTS_PER_SOL
    assert simulated["replacementBlockhash"]["lastValidBlockHeight"] > 0
    assert (await rpc("getBalance", str(to)))["value"] == 0
    stale = await rpc("simulateTransaction", encode(signed), {"encoding": "base64"})
    assert stale["value"]["err"] == "BlockhashNotFound"


async def test_the_fee_asked_for_is_the_fee_charged(rpc: Rpc) -> None:
    payer = await rpc.wallet(micros=1_000_000)
    signed = payment(payer, Keypair().pubkey(), 1, await rpc.blockhash(), "fee")
    message = b64encode(b"\x80" + bytes(signed.message)).decode()
    asked = (await rpc("getFeeForMessage", message))["value"]
    before = (await rpc("getBalance", str(payer.pubkey())))["value"]
    await rpc.send(signed)
    after = (await rpc("getBalance", str(payer.pubkey())))["value"]
    rent = await rpc("getMinimumBalanceForRentExemption", 165)
    assert before - after == asked + rent
    expired = sol_transfer(payer, Keypair().pubkey(), 1, Hash.new_unique())
    message = b64encode(b"\x80" + bytes(expired.message)).decode()
    assert (await rpc("getFeeForMessage", message))["value"] is None


async def test_lookup_tables(open_node: OpenNode) -> None:
    """Made, filled and used; its addresses are shown and found like written-out ones."""
    rpc: Rpc = await open_node(slot_ms=50)
    payer = await rpc.wallet()
    wallet, to = payer.pubkey(), Keypair().pubkey()
    create, table = create_lookup_table(
        {
            "authority_address": wallet,
            "payer_address": wallet,
            "recent_slot": await rpc("getSlot") - 1,
        }
    )
    extend = extend_lookup_table(
        {
            "lookup_table_address": table,
            "authority_address": wallet,
            "payer_address": wallet,
            "new_addresses": [to],
        }
    )
    await rpc.send(sign([create, extend], payer, await rpc.blockhash()))
    await asyncio.sleep(0.1)
    move = transfer(TransferParams(from_pubkey=wallet, to_pubkey=to, lamports=5_000_000))
    tables = [AddressLookupTableAccount(table, [to])]
    message = MessageV0.try_compile(wallet, [move], tables, await rpc.blockhash())
    assert to not in message.account_keys
    signature = await rpc.send(VersionedTransaction(message, [payer]))
    assert (await rpc("getBalance", str(to)))["value"] == 5_000_000
    assert (await rpc("getSignaturesForAddress", str(to)))[0]["signature"] == signature
    landed = await rpc("getTransaction", signature, {"maxSupportedTransactionVersion": 0})
    assert landed["meta"]["loadedAddresses"] == {"readonly": [], "writable": [str(to)]}
    assert landed["transaction"]["message"]["addressTableLookups"][0]["accountKey"] == str(table)


async def test_the_faucet_gives_once_for_a_reference(rpc: Rpc) -> None:
    """Goal: the first signature again, at once and when it is final; without a reference more."""
    owner, reference = Keypair().pubkey(), Keypair().pubkey()
    gift = ("bursar_faucet", str(owner), 5, str(reference))
    first, second = await asyncio.gather(rpc(*gift), rpc(*gift))
    assert first == second
    (row,) = await rpc("getSignaturesForAddress", str(reference))
    assert row["signature"] == first
    assert await rpc(*gift) == first
    assert await rpc.tokens(owner) == 5
    await rpc("bursar_faucet", str(owner), 5, None)
    await rpc("bursar_faucet", str(owner), 5, str(Keypair().pubkey()))
    assert await rpc.tokens(owner) == 15
    with pytest.raises(RpcFailed):
        await rpc("bursar_faucet", str(owner), 5, "nonsense")
