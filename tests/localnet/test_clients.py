"""Goal: clients that nobody here wrote go from blockhash to a confirmed payment and read it back.

The Python one is `solana`; the JavaScript one is `@solana/kit` with its own sendAndConfirm, which
needs Node and npm.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed, Finalized
from solana.rpc.models import TokenAccountOpts, TxOpts
from solana.rpc.websocket_api import SolanaWsClient
from solders.keypair import Keypair
from solders.rpc.responses import AccountNotification, SignatureNotification
from solders.token.associated import get_associated_token_address

from bursar_localnet.genesis import TEST_MINT
from bursar_localnet.slots import Lag
from tests.localnet.conftest import OpenNode
from tests.localnet.support import LAMPORTS_PER_SOL, MINT, Rpc, payment
from tests.npm import install_kit, run

KIT = Path(__file__).parent / "kit"


async def test_the_solana_python_client(rpc: Rpc) -> None:
    async with AsyncClient(rpc.url) as client:
        assert await client.is_connected()
        payer, payee = Keypair(), Keypair().pubkey()
        gift = (await client.request_airdrop(payer.pubkey(), LAMPORTS_PER_SOL)).value
        await client.confirm_transaction(gift, Confirmed)
        await rpc("bursar_faucet", str(payer.pubkey()), 5_000_000)
        latest = (await client.get_latest_blockhash(Finalized)).value
        signed = payment(payer, payee, 1_500_000, latest.blockhash, "from solana-py")
        assert (await client.simulate_transaction(signed)).value.err is None
        signature = (await client.send_raw_transaction(bytes(signed))).value
        confirmed = await client.confirm_transaction(
            signature, Finalized, last_valid_block_height=latest.last_valid_block_height
        )
        assert confirmed.value[0] is not None
        target = get_associated_token_address(payee, MINT)
        balance = (await client.get_token_account_balance(target)).value
        assert (balance.amount, balance.ui_amount_string) == ("1500000", "1.5")
        await read_everything(client, payer, signature, signed)


async def read_everything(client: AsyncClient, payer: Keypair, signature: Any, signed: Any) -> None:
    """Each answer goes through the client's strict parser, which raises on a missing field."""
    wallet = payer.pubkey()
    source = get_associated_token_address(wallet, MINT)
    statuses = (await client.get_signature_statuses([signature])).value
    assert statuses[0] is not None
    assert statuses[0].err is None
    for encoding in ("json", "jsonParsed", "base64"):
        landed = (
            await client.get_transaction(
                signature, encoding=encoding, max_supported_transaction_version=0
            )
        ).value
        assert landed is not None
        assert landed.transaction.meta is not None
        assert landed.transaction.meta.fee == 5_060
    history = (await client.get_signatures_for_address(source)).value
    assert history[0].signature == signature
    assert (await client.get_balance(wallet)).value < LAMPORTS_PER_SOL
    account = (await client.get_account_info(source)).value
    assert account is not None
    assert len(account.data) == 165
    assert (await client.get_account_info_json_parsed(source)).value is not None
    options = TokenAccountOpts(mint=MINT)
    assert len((await client.get_token_accounts_by_owner(wallet, options)).value) == 1
    parsed = (await client.get_token_accounts_by_owner_json_parsed(wallet, options)).value
    assert parsed[0].pubkey == source
    assert len((await client.get_multiple_accounts([wallet, source])).value) == 2
    program = account.owner
    assert (
        len((await client.get_program_accounts(program, encoding="base64", filters=[165])).value)
        == 2
    )
    assert (await client.get_token_supply(MINT)).value.amount == "5000000"
    assert (await client.get_fee_for_message(signed.message)).value == 5_060
    assert (await client.get_minimum_balance_for_rent_exemption(82)).value == 1_461_600
    assert (await client.get_epoch_info()).value.absolute_slot > 0
    assert (await client.get_block_height()).value > 0
    assert (await client.get_version()).value.solana_core
    assert (await client.get_genesis_hash()).value is not None
    assert (await client.get_identity()).value.identity is not None
    slot = landed_slot = statuses[0].slot
    assert (await client.get_block_time(slot)).value is not None
    block = (await client.get_block(landed_slot, max_supported_transaction_version=0)).value
    assert block is not None
    assert (await client.get_recent_prioritization_fees([wallet])).value is not None


async def test_the_solana_python_client_reads_refusals(rpc: Rpc) -> None:
    async with AsyncClient(rpc.url) as client:
        payer = await rpc.wallet(micros=1_000)
        blockhash = (await client.get_latest_blockhash()).value.blockhash
        signed = payment(payer, Keypair().pubkey(), 999_999, blockhash, "too much")
        for options in (None, TxOpts(skip_preflight=True)):
            if options is None:
                with pytest.raises(Exception, match="custom program error: 0x1"):
                    await client.send_raw_transaction(bytes(signed))
            else:
                signature = (await client.send_raw_transaction(bytes(signed), options)).value
                status = (await client.get_signature_statuses([signature])).value[0]
                assert status is not None
                assert "Custom(1)" in str(status.err)


async def test_the_solana_python_websocket(open_node: OpenNode) -> None:
    rpc: Rpc = await open_node(slot_ms=50, lag=Lag(1, 4))
    payer = await rpc.wallet(micros=5_000_000)
    blockhash = await rpc.blockhash("processed")
    signed = payment(payer, Keypair().pubkey(), 1, blockhash, "ws")
    async with SolanaWsClient(f"ws://127.0.0.1:{rpc.port}") as socket:
        await socket.signature_subscribe(signature=signed.signatures[0], commitment=Finalized)
        changes = await socket.account_subscribe(
            pubkey=payer.pubkey(), commitment=Confirmed, encoding="base64"
        )
        await rpc.send(signed, preflightCommitment="processed")
        told = [await asyncio.wait_for(socket.recv(), 5) for _ in range(2)]
        assert [type(item) for item in told] == [AccountNotification, SignatureNotification]
        await socket.unsubscribe(changes)


@pytest.mark.parametrize("lag", [Lag(), Lag(2, 8)], ids=["instant", "slowed"])
async def test_kit_from_npm(open_node: OpenNode, lag: Lag) -> None:
    await install_kit(KIT)
    rpc: Rpc = await open_node(slot_ms=100, lag=lag)
    said = await run(KIT, "node", "pay.mjs", rpc.url, f"ws://127.0.0.1:{rpc.port}", TEST_MINT)
    saw = json.loads(said)
    assert saw["refusal"]["isSolanaError"]
    assert "Custom program error: #1" in saw["refusal"]["cause"]
    assert saw["err"] is None
    assert (saw["balance"], saw["fee"], saw["memo"]) == ("1.5", "5000", "from kit")
    assert saw["programs"] == ["spl-associated-token-account", "spl-token", "spl-memo"]
    options = {"searchTransactionHistory": True}
    assert (await rpc("getSignatureStatuses", [saw["signature"]], options))["value"][0]
