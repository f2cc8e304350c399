"""Goal: kill -9 at any moment loses nothing that was acknowledged and pays nothing twice.

Three kills by default; twenty with BURSAR_LONG=1.
"""

import asyncio
import os
import random
import sqlite3
import stat
from pathlib import Path

import aiohttp
import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from bursar.clock import SystemClock
from bursar_localnet.errors import LocalnetFailed
from bursar_localnet.genesis import LIVE, TEST_MINT
from bursar_localnet.rpc import Settings, serve
from tests.localnet.conftest import OpenNode
from tests.localnet.support import (
    NodeProcess,
    Rpc,
    RpcFailed,
    payment,
    sol_transfer,
    start_node,
)

KILLS = 20 if os.environ.get("BURSAR_LONG") else 3
PAYERS = 8
MINTED = 1_000_000_000


async def test_kill_under_load(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged: dict[str, VersionedTransaction] = {}
    async with aiohttp.ClientSession() as session:
        node = await start_node(tmp_path)
        rpc = Rpc(node.port, session)
        payers = [await rpc.wallet(sol=1_000, micros=MINTED) for _ in range(PAYERS)]
        wallets = [payer.pubkey() for payer in payers]
        genesis = await rpc("getGenesisHash")
        for kill in range(KILLS):
            await load_until_killed(node, rpc, payers, chance, acknowledged, kill)
            node = await start_node(tmp_path)
            rpc = Rpc(node.port, session)
            assert await rpc("getGenesisHash") == genesis
            for signature, signed in acknowledged.items():
                await check_landed_once(rpc, signature, signed)
            # Nothing came from nowhere, nothing went away: what was half done is all or nothing.
            assert sum([await rpc.tokens(wallet) for wallet in wallets]) == PAYERS * MINTED
            supply = (await rpc("getTokenSupply", TEST_MINT))["value"]["amount"]
            assert supply == str(PAYERS * MINTED)
        assert await node.stop() == 0
    assert len(acknowledged) > 10 * KILLS


async def load_until_killed(
    node: NodeProcess,
    rpc: Rpc,
    payers: list[Keypair],
    chance: random.Random,
    acknowledged: dict[str, VersionedTransaction],
    round_: int,
) -> None:
    async def pay(payer: Keypair) -> None:
        count = 0
        while True:
            count += 1
            to = chance.choice(payers).pubkey()
            memo = f"{payer.pubkey()} {round_} {count}"
            try:
                blockhash = await rpc.blockhash()
                signed = payment(payer, to, chance.randrange(1, 1_000), blockhash, memo)
                acknowledged[await rpc.send(signed)] = signed
            except aiohttp.ClientError:
                return

    async def kill() -> None:
        await asyncio.sleep(chance.uniform(0.3, 1.0))
        await node.kill()

    await asyncio.gather(kill(), *(pay(payer) for payer in payers))


async def check_landed_once(rpc: Rpc, signature: str, signed: VersionedTransaction) -> None:
    options = {"searchTransactionHistory": True}
    status = (await rpc("getSignatureStatuses", [signature], options))["value"][0]
    assert status is not None, f"lost {signature}"
    assert status["err"] is None
    with pytest.raises(RpcFailed) as failure:
        await rpc.send(signed)
    assert failure.value.data["err"] in ("AlreadyProcessed", "BlockhashNotFound")


async def test_a_restart_keeps_everything(open_node: OpenNode, tmp_path: Path) -> None:
    settings = Settings(tmp_path / "chain", port=0)
    async with aiohttp.ClientSession() as session:
        async with serve(settings, SystemClock()) as node:
            rpc = Rpc(node.port, session)
            payer = await rpc.wallet(micros=7_000_000)
            blockhash = await rpc.blockhash()
            signed = sol_transfer(payer, Keypair().pubkey(), 1_000_000, blockhash)
            signature = await rpc.send(signed)
            genesis, slot = await rpc("getGenesisHash"), await rpc("getSlot")
            before = await everything(rpc, payer, signature)
        again: Rpc = await open_node()
        assert await again("getGenesisHash") == genesis
        assert await again("getSlot") > slot
        assert await everything(again, payer, signature) == before
        # Still inside its window, so it is the signature that refuses.
        with pytest.raises(RpcFailed, match="already been processed"):
            await again.send(signed)
        await again.send(sol_transfer(payer, Keypair().pubkey(), 2_000_000, blockhash))
        assert (await again("bursar_faucet", str(payer.pubkey()), 1)) is not None


async def everything(rpc: Rpc, payer: Keypair, signature: str) -> list[object]:
    wallet = str(payer.pubkey())
    return [
        (await rpc("getAccountInfo", wallet, {"encoding": "base64"}))["value"],
        await rpc.tokens(payer.pubkey()),
        await rpc("getTransaction", signature, {"maxSupportedTransactionVersion": 0}),
        await rpc("getSignaturesForAddress", wallet),
    ]


async def test_one_owner_per_folder(open_node: OpenNode, tmp_path: Path) -> None:
    await open_node()
    with pytest.raises(LocalnetFailed, match="Another localnet is running"):
        await open_node()


async def test_the_networks_never_mix(open_node: OpenNode, tmp_path: Path) -> None:
    rpc: Rpc = await open_node()
    other: Rpc = await open_node(data_dir=tmp_path / "live", network=LIVE)
    second: Rpc = await open_node(data_dir=tmp_path / "second")
    hashes = {await node("getGenesisHash") for node in (rpc, other, second)}
    assert len(hashes) == 3
    assert (await other("getAccountInfo", TEST_MINT))["value"] is None
    assert (await other("getTokenSupply", LIVE.mint))["value"]["decimals"] == 6


async def test_a_folder_of_the_other_network_is_refused(tmp_path: Path) -> None:
    settings = Settings(tmp_path, port=0)
    async with serve(settings, SystemClock()):
        pass
    with pytest.raises(LocalnetFailed, match="holds the other network"):
        async with serve(Settings(tmp_path, port=0, network=LIVE), SystemClock()):
            pass


async def test_the_faucets_key_is_for_the_owner_only(open_node: OpenNode, tmp_path: Path) -> None:
    await open_node()
    for path in (tmp_path / "chain").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


async def test_a_disk_that_fails_stops_the_node(tmp_path: Path) -> None:
    """Memory is ahead of the disk then: no answer may leave, and the next start tells the truth."""
    async with aiohttp.ClientSession() as session:
        node = await start_node(tmp_path)
        rpc = Rpc(node.port, session)
        payer = await rpc.wallet(sol=5)
        to, blockhash = Keypair().pubkey(), await rpc.blockhash()
        on_disk(
            tmp_path,
            "CREATE TRIGGER full BEFORE INSERT ON landed "
            "BEGIN SELECT RAISE(ABORT, 'disk full'); END",
        )
        signed = sol_transfer(payer, to, 1_000_000, blockhash)
        with pytest.raises(aiohttp.ClientError):
            await rpc.send(signed)
        assert await asyncio.wait_for(node.process.wait(), 5) == 1
        assert b"What it acknowledged is safe; start it again." in await node.drain
        on_disk(tmp_path, "DROP TRIGGER full")
        node = await start_node(tmp_path)
        rpc = Rpc(node.port, session)
        assert (await rpc("getBalance", str(to)))["value"] == 0
        await rpc.send(signed)
        assert (await rpc("getBalance", str(to)))["value"] == 1_000_000
        await node.stop()


def on_disk(folder: Path, statement: str) -> None:
    outside = sqlite3.connect(folder / "chain.sqlite3")
    outside.execute(statement)
    outside.commit()
    outside.close()


async def test_an_unknown_blockhash_of_another_chain(open_node: OpenNode, tmp_path: Path) -> None:
    """Two folders derive different hashes, so a transaction for one cannot land on the other."""
    rpc: Rpc = await open_node()
    other: Rpc = await open_node(data_dir=tmp_path / "other")
    blockhash: Hash = await other.blockhash()
    assert not (await rpc("isBlockhashValid", str(blockhash)))["value"]
