"""Money that comes in: whoever sent it, however it came, credited once each, when it is final."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from bursar.ids import new_id
from bursar.policy.cache import PolicyCache
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement.deposits import DepositWatcher
from bursar_localnet import programs
from tests.localnet.support import MINT, payment, sign
from tests.settlement.stage import Stage, address, balance, get, running_stage
from tests.support import new_agent


@pytest.fixture(scope="module")
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    async with running_stage(postgres, tmp_path_factory.mktemp("deposits")) as running:
        yield running


def transfer(owner: Pubkey, to: Pubkey, micros: int) -> Instruction:
    accounts = [
        AccountMeta(get_associated_token_address(owner, MINT), False, is_writable=True),
        AccountMeta(MINT, is_signer=False, is_writable=False),
        AccountMeta(get_associated_token_address(to, MINT), False, is_writable=True),
        AccountMeta(owner, is_signer=True, is_writable=False),
    ]
    return Instruction(programs.TOKEN, b"\x0c" + micros.to_bytes(8, "little") + b"\x06", accounts)


async def test_a_stranger_sends(stage: Stage):
    """Goal: an unknown sender's transfer is noticed by the sweep, and named."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        sender = await stage.rpc.wallet(micros=5_000_000)
        signature = await stage.rpc.send(
            payment(sender, address(agent), 1_234_567, await stage.rpc.blockhash(), "hello")
        )
        await stage.work()
        (deposit,) = await get(client, f"/v1/wallets/{agent['id']}/deposits")
        assert deposit["sender"] == str(sender.pubkey())
        assert deposit["signature"] == signature
        assert (deposit["amount"], deposit["status"]) == ("1.234567", "credited")
        assert await balance(client, agent) == "1.234567"


async def test_several_transfers_in_one_transaction(stage: Stage):
    """Goal: three to one wallet and one to another come to the micro-unit, and once."""
    async with await stage.service.admin() as client:
        first, second = await new_agent(client), await new_agent(client)
        sender = await stage.rpc.wallet(micros=10_000_000)
        owner = sender.pubkey()
        instructions = [
            programs.create_token_account(owner, address(first), MINT),
            programs.create_token_account(owner, address(second), MINT),
            *(transfer(owner, address(first), micros) for micros in (1, 20, 300)),
            transfer(owner, address(second), 4_000),
        ]
        await stage.rpc.send(sign(instructions, sender, await stage.rpc.blockhash()))
        await stage.work()
        await stage.work()
        assert await balance(client, first) == "0.000321"
        assert await balance(client, second) == "0.004000"


async def test_from_one_wallet_of_ours_to_another(stage: Stage):
    """Goal: a payment between two agents leaves one and arrives at the other."""
    async with await stage.service.admin() as client:
        payer = await stage.funded_agent(client, "5")
        payee = await new_agent(client)
        made = await stage.withdraw(client, payer["id"], "2", payee["wallet"]["address"])
        settled = await stage.ended(client, made["id"])
        await stage.work()
        (deposit,) = await get(client, f"/v1/wallets/{payee['id']}/deposits")
        assert deposit["signature"] == settled["signature"]
        assert deposit["sender"] == payer["wallet"]["address"]
        assert (await balance(client, payer), await balance(client, payee)) == (
            "3.000000",
            "2.000000",
        )


async def test_a_failed_transaction_is_no_deposit(stage: Stage):
    """Goal: one that landed with an error mentions the wallet and credits nothing."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "1")
        sender = await stage.rpc.wallet(micros=1_000)
        too_much = payment(sender, address(agent), 5_000, await stage.rpc.blockhash(), "too much")
        failed = await stage.rpc.send(too_much, skipPreflight=True)
        status = (await stage.rpc("getSignatureStatuses", [failed]))["value"][0]
        assert status["err"] is not None
        # Something has to differ, or nobody would look.
        good = payment(sender, address(agent), 7, await stage.rpc.blockhash(), "good")
        await stage.rpc.send(good)
        await stage.work()
        listed = await get(client, f"/v1/wallets/{agent['id']}/deposits")
        assert failed not in [deposit["signature"] for deposit in listed]
        assert await balance(client, agent) == "1.000007"


async def test_while_nobody_looked(stage: Stage):
    """Goal: deposits between payments, made while the worker was down, are all found, once each,
    and no payment of ours is asked about again."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "5")
        for _ in range(3):
            made = await stage.withdraw(client, agent["id"], "1", str(Keypair().pubkey()))
            await stage.ended(client, made["id"])
        sender = await stage.rpc.wallet(micros=1_000)
        for micros in (1, 2, 4, 8, 16, 32):
            blockhash = await stage.rpc.blockhash()
            await stage.rpc.send(payment(sender, address(agent), micros, blockhash, str(micros)))
        asked = _count_calls(stage)
        await stage.watcher.sweep()
        assert asked["getTransaction"] == 6
        await stage.watcher.sweep()
        assert await balance(client, agent) == "2.000063"
        listed = await get(client, f"/v1/wallets/{agent['id']}/deposits")
        assert [d["amount"] for d in listed][:6] == [
            f"0.{micros:06}" for micros in (32, 16, 8, 4, 2, 1)
        ]


async def test_two_watchers_credit_once(stage: Stage):
    """Goal: any number of workers and HTTP processes may look at the same moment."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        for micros in (1, 10, 100, 1_000):
            await stage.rpc("bursar_faucet", agent["wallet"]["address"], micros)
        watchers = [
            DepositWatcher(stage.db, stage.chain, PolicyCache(), "test", str(MINT), 600)
            for _ in range(4)
        ]
        await asyncio.gather(*(watcher.sweep() for watcher in watchers))
        assert await balance(client, agent) == "0.001111"
        assert len(await get(client, f"/v1/wallets/{agent['id']}/deposits")) == 4
        assert len(await stage.events(agent["id"], "wallet.funded")) == 4


async def test_looking_again_from_the_start_credits_nothing_twice(stage: Stage):
    """Goal: a lost or wrong cursor costs time, not money."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "1")
        await stage.fund(client, agent["id"], "2")
        async with stage.db.connection() as tx:
            await tx.execute("DELETE FROM deposit_cursor WHERE agent_id = $1", agent["id"])
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 4)
        await stage.work()
        assert await balance(client, agent) == "3.000004"


async def test_a_history_that_cannot_be_read_holds_up_nobody_else(stage: Stage):
    """Goal: one wallet's bad luck with the node delays that wallet only."""
    async with await stage.service.admin() as client:
        agents = [await new_agent(client) for _ in range(3)]
        for agent in agents:
            await stage.rpc("bursar_faucet", agent["wallet"]["address"], 5)
        # Two rounds of the first wallet's read fail; the others' come later.
        rule = {"action": "fail", "methods": ["getTransaction"], "count": 2}
        await stage.rpc("bursar_faults", {"rules": [rule]})
        await stage.watcher.sweep()
        await stage.rpc("bursar_faults", {})
        credited = [await balance(client, agent) for agent in agents]
        assert credited.count("0.000005") >= 1
        await stage.watcher.sweep()
        assert [await balance(client, agent) for agent in agents] == ["0.000005"] * 3


def _count_calls(stage: Stage) -> dict[str, int]:
    """How often each method is called on the node from now on."""
    counts: dict[str, int] = {}
    around = stage.node.faults.around

    async def counting(method: str, handle: Any) -> Any:
        counts[method] = counts.get(method, 0) + 1
        return await around(method, handle)

    stage.node.faults.around = counting
    return counts


# Many --------------------------------------------------------------------------------------------

MANY = 10_000


async def test_ten_thousand_wallets_in_one_sweep(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
):
    """Goal: 100 wallets a request, nothing per wallet; a deposit to one of them is noticed."""
    async with (
        running_stage(postgres, tmp_path_factory.mktemp("many")) as stage,
        await stage.service.admin() as client,
    ):
        agent = await stage.funded_agent(client, "1")
        await _insert_wallets(stage, agent["id"], MANY - 1)
        await stage.watcher.sweep()  # the addresses of the token accounts are worked out once
        sender = await stage.rpc.wallet(micros=1_000)
        blockhash = await stage.rpc.blockhash()
        await stage.rpc.send(payment(sender, address(agent), 5, blockhash, "one of many"))
        asked = _count_calls(stage)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await stage.watcher.sweep()
        seconds = loop.time() - began
        assert await balance(client, agent) == "1.000005"
        assert asked == {
            "getMultipleAccounts": MANY // 100,
            "getSignaturesForAddress": 1,
            "getTransaction": 1,
        }
        # Alone it takes about a second here, the node in the same process.
        assert seconds < 10, f"a sweep took {seconds:.1f} s"


async def _insert_wallets(stage: Stage, like: str, count: int) -> None:
    """Wallets without keys, as only a test needs them."""
    addresses = [str(Keypair().pubkey()) for _ in range(count)]
    ids = [new_id("ag") for _ in range(count)]
    async with stage.db.transaction() as tx:
        await tx.execute(
            "INSERT INTO agent (id, realm_id, name, policy_id, created_at, updated_at)"
            " SELECT n.id, a.realm_id, 'many', 'pol_' || substr(n.id, 4), moment(), moment()"
            " FROM unnest($1::text[]) AS n (id), agent a WHERE a.id = $2",
            ids,
            like,
        )
        await tx.execute(
            "INSERT INTO policy (agent_id, version, cap_micros_daily, allowlist, blocklist, payees,"
            " frozen, changed_by, changed_at) SELECT id, 1, 0, '{}', '{}', 'pinned', false, 'test',"
            " moment() FROM unnest($1::text[]) AS n (id)",
            ids,
        )
        await tx.execute(
            "INSERT INTO wallet (agent_id, realm_id, address, mint, is_low)"
            " SELECT n.id, w.realm_id, n.address, w.mint, false"
            " FROM unnest($1::text[], $2::text[]) AS n (id, address), wallet w"
            " WHERE w.agent_id = $3",
            ids,
            addresses,
            like,
        )
