"""Goal: with a lag, every level shows its own past, and a fork undoes exactly what it must."""

from pathlib import Path

import aiohttp
import pytest
from solders.keypair import Keypair

from bursar_localnet.rpc import Settings, serve
from bursar_localnet.slots import Lag
from tests.localnet.conftest import OpenNode
from tests.localnet.support import LAMPORTS_PER_SOL, Rpc, RpcFailed, sol_transfer
from tests.localnet.test_slots import ManualClock

MAINNET = Lag(2, 32)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def slow(open_node: OpenNode, clock: ManualClock) -> Rpc:
    return await open_node(clock, lag=MAINNET, faults=True)


async def level(rpc: Rpc, signature: str) -> str | None:
    status = (await rpc("getSignatureStatuses", [signature]))["value"][0]
    return status and status["confirmationStatus"]


async def balances(rpc: Rpc, wallet: Keypair) -> list[int]:
    return [
        (await rpc("getBalance", str(wallet.pubkey()), {"commitment": commitment}))["value"]
        for commitment in ("processed", "confirmed", "finalized")
    ]


async def test_a_transaction_climbs_the_levels(slow: Rpc, clock: ManualClock) -> None:
    wallet = Keypair()
    signature = await slow("requestAirdrop", str(wallet.pubkey()), 5_000_000)
    assert await level(slow, signature) == "processed"
    assert await balances(slow, wallet) == [5_000_000, 0, 0]
    assert await slow("getTransaction", signature) is None
    clock.pass_ms(400 * 2)
    assert await level(slow, signature) == "confirmed"
    assert await balances(slow, wallet) == [5_000_000, 5_000_000, 0]
    assert await slow("getTransaction", signature, {"commitment": "confirmed"}) is not None
    assert await slow("getSignaturesForAddress", str(wallet.pubkey())) == []
    clock.pass_ms(400 * 30)
    assert await level(slow, signature) == "finalized"
    assert await balances(slow, wallet) == [5_000_000] * 3
    rows = await slow("getSignaturesForAddress", str(wallet.pubkey()))
    assert [row["confirmationStatus"] for row in rows] == ["finalized"]


async def test_each_level_sees_the_change_it_has_reached(slow: Rpc, clock: ManualClock) -> None:
    wallet = Keypair()
    for lamports in (1_000_000, 2_000_000, 4_000_000):
        await slow("requestAirdrop", str(wallet.pubkey()), lamports)
        clock.pass_ms(400 * 2)
    assert await balances(slow, wallet) == [7_000_000, 7_000_000, 0]
    clock.pass_ms(400 * 27)
    assert await balances(slow, wallet) == [7_000_000, 7_000_000, 1_000_000]
    clock.pass_ms(400 * 2)
    assert await balances(slow, wallet) == [7_000_000, 7_000_000, 3_000_000]


async def test_preflight_wants_a_blockhash_of_its_own_level(slow: Rpc, clock: ManualClock) -> None:
    payer = await slow.wallet()
    clock.pass_ms(400 * 40)
    young = sol_transfer(payer, Keypair().pubkey(), 1_000_000, await slow.blockhash("processed"))
    with pytest.raises(RpcFailed, match="Blockhash not found"):
        await slow.send(young)
    await slow.send(young, preflightCommitment="processed")


async def test_a_fork_undoes_one_and_keeps_the_rest(slow: Rpc, clock: ManualClock) -> None:
    rich, other = await slow.wallet(sol=10), await slow.wallet(sol=10)
    clock.pass_ms(400 * 40)
    blockhash = await slow.blockhash("processed")
    gone, kept, poor = Keypair(), Keypair(), Keypair()
    options = {"preflightCommitment": "processed"}
    lost = await slow.send(
        sol_transfer(rich, gone.pubkey(), 3 * LAMPORTS_PER_SOL, blockhash), **options
    )
    stays = await slow.send(
        sol_transfer(other, kept.pubkey(), LAMPORTS_PER_SOL, blockhash), **options
    )
    # Spends what only the lost transaction brought, so it goes with it.
    depends = await slow.send(
        sol_transfer(gone, poor.pubkey(), LAMPORTS_PER_SOL, blockhash), **options
    )
    assert await slow("bursar_fork", lost) == [lost, depends]
    assert [await level(slow, s) for s in (lost, stays, depends)] == [None, "processed", None]
    assert (await balances(slow, gone))[0] == (await balances(slow, poor))[0] == 0
    assert (await balances(slow, kept))[0] == LAMPORTS_PER_SOL
    assert (await balances(slow, rich))[0] == 10 * LAMPORTS_PER_SOL
    # The same bytes may land again: the chain has forgotten them.
    again = sol_transfer(rich, gone.pubkey(), 3 * LAMPORTS_PER_SOL, blockhash)
    assert await slow.send(again, **options) == lost
    assert (await balances(slow, gone))[0] == 3 * LAMPORTS_PER_SOL


async def test_what_is_final_cannot_be_forked_away(slow: Rpc, clock: ManualClock) -> None:
    signature = await slow("requestAirdrop", str(Keypair().pubkey()), 5_000_000)
    clock.pass_ms(400 * 32)
    with pytest.raises(RpcFailed, match="not an unfinalized transaction"):
        await slow("bursar_fork", signature)


async def test_old_statuses_need_a_history_search(slow: Rpc, clock: ManualClock) -> None:
    signature = await slow("requestAirdrop", str(Keypair().pubkey()), 5_000_000)
    clock.pass_ms(400 * 301)
    assert (await slow("getSignatureStatuses", [signature]))["value"] == [None]
    found = await slow("getSignatureStatuses", [signature], {"searchTransactionHistory": True})
    assert found["value"][0]["confirmationStatus"] == "finalized"


async def test_a_fork_is_durable(tmp_path: Path, clock: ManualClock) -> None:
    settings = Settings(tmp_path, port=0, lag=MAINNET, faults=True)
    wallets = [Keypair() for _ in range(3)]
    async with aiohttp.ClientSession() as session:
        async with serve(settings, clock) as node:
            rpc = Rpc(node.port, session)
            sent = [
                await rpc("requestAirdrop", str(wallet.pubkey()), 5_000_000) for wallet in wallets
            ]
            assert await rpc("bursar_fork", sent[0]) == [sent[0]]
            before = [(await balances(rpc, wallet))[0] for wallet in wallets]
            assert before == [0, 5_000_000, 5_000_000]
        async with serve(settings, clock) as node:
            rpc = Rpc(node.port, session)
            # Whatever is on disk at a start is final.
            assert [await balances(rpc, wallet) for wallet in wallets] == [
                [lamports] * 3 for lamports in before
            ]
            assert [await level(rpc, s) for s in sent] == [None, "finalized", "finalized"]
