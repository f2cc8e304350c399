"""Money that comes in: whoever sent it, however it came, credited once each, when it is final."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from bursar.chain.solana import Solana
from bursar.clock import SystemClock
from bursar.ids import new_id
from bursar.ledger import book, lock
from bursar.money import format_micros, parse_micros
from bursar.policy.cache import PolicyCache
from bursar.service.api import Api
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement.deposits import DepositWatcher
from bursar.wallet import store as wallet_store
from bursar_localnet import base58, programs
from tests.localnet.support import MINT, payment, sign
from tests.processes import Finished, bursar, until
from tests.settlement.stage import Stage, get, running_stage, token_account_of
from tests.settlement.support import Lie, in_front_of
from tests.support import error_of, new_account, new_agent, spend

FIELDS = [
    "id",
    "agentId",
    "amount",
    "currency",
    "sender",
    "signature",
    "blockTime",
    "status",
    "createdAt",
    "creditedAt",
]


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


async def balance(client: Any, agent: dict[str, Any]) -> str:
    return (await get(client, f"/v1/wallets/{agent['id']}/balance"))["balance"]


def address(agent: dict[str, Any]) -> Pubkey:
    return Pubkey.from_string(agent["wallet"]["address"])


# The faucet --------------------------------------------------------------------------------------


async def test_the_faucet_answers_when_it_is_credited(stage: Stage):
    """Goal: 201 with every field; the next spend can use it; a mint has no sender."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        deposit = await stage.fund(client, agent["id"], "12.5")
        assert list(deposit) == FIELDS
        assert (deposit["amount"], deposit["currency"]) == ("12.500000", "USDC")
        assert deposit["sender"] is None
        assert deposit["creditedAt"] is not None
        shown = await stage.rpc(
            "getTransaction", deposit["signature"], {"maxSupportedTransactionVersion": 0}
        )
        assert shown["blockTime"] == deposit["blockTime"]
        assert await stage.tokens(agent["wallet"]["address"]) == 12_500_000
        assert (await spend(client, agent["id"], "12.5"))["status"] == "approved"
        assert await get(client, f"/v1/wallets/{agent['id']}/deposits") == [deposit]


async def test_a_deposit_is_not_credited_before_it_is_noticed(stage: Stage):
    """Goal: creditedAt is not before createdAt, though the faucet writes the deposit down while
    the watcher holds the wallet's lock, whose moment is the older one."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
    signature = await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)
    async with stage.db.transaction() as watcher:
        realm_id = await watcher.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent["id"])
        locked = await lock.lock_agents(watcher, [agent["id"]], [realm_id])
        moment = locked[agent["id"]].wallet.now

        async def later() -> bool:
            return await watcher.fetchval("SELECT moment() > $1", moment)

        await until(later, seconds=5)
        async with stage.db.connection() as faucet:
            noticed = await wallet_store.insert_deposit(
                faucet,
                deposit_id=new_id("dep"),
                realm_id=realm_id,
                agent_id=agent["id"],
                amount_micros=7,
                token_account=token_account_of(agent["wallet"]["address"]),
                signature=signature,
            )
        credited = await wallet_store.credit_deposit(
            watcher, noticed.id, amount_micros=7, sender=None, block_time=None, at=moment
        )
        locked[agent["id"]].wallet.deposit(noticed.id, 7)
        await book.save_balances(watcher, PolicyCache(), list(locked.values()))
    assert credited is not None
    assert credited.credited_at == noticed.created_at > moment


async def test_the_faucet_once_per_key(stage: Stage):
    """Goal: the same Idempotency-Key mints once, in turn and at the same time."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "first-money"}
        first, second = await asyncio.gather(
            *(client.post(path, json={"amount": "5"}, headers=headers) for _ in range(2))
        )
        third = await client.post(path, json={"amount": "5"}, headers=headers)
        assert first.json() == second.json() == third.json()
        assert third.headers["idempotent-replayed"] == "true"
        assert await balance(client, agent) == "5.000000"
        other = await client.post(path, json={"amount": "6"}, headers=headers)
        error_of(other, 422, "idempotency_key_reused")


async def test_the_faucet_once_per_key_in_every_process(stage: Stage):
    """Goal: two processes that are asked at the same time mint once and give one answer."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "shared"}
        api = await Api.start(stage.service.config, SystemClock())
        try:
            elsewhere = f"http://127.0.0.1:{api.port}{path}"
            first, second = await asyncio.gather(
                *(
                    client.post(url, json={"amount": "5"}, headers=headers)
                    for url in (path, elsewhere)
                )
            )
        finally:
            await api.stop()
        assert (first.status_code, second.status_code) == (201, 201)
        assert first.json() == second.json()
        assert await stage.tokens(agent["wallet"]["address"]) == 5_000_000
        assert await balance(client, agent) == "5.000000"


async def test_a_mint_whose_answer_is_lost_is_not_made_again(stage: Stage):
    """Goal: whatever dies between the mint and its record, the same key finds what was minted."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "k"}
        rule = {"action": "drop", "methods": ["bursar_faucet"], "at": "answer"}
        await stage.rpc("bursar_faults", {"rules": [rule]})
        answer = await client.post(path, json={"amount": "1"}, headers=headers)
        await stage.rpc("bursar_faults", {})
        error_of(answer, 503, "unavailable")
        assert await stage.tokens(agent["wallet"]["address"]) == 1_000_000
        # It may have been noticed on the chain before it is asked for again.
        await stage.work()
        made = await client.post(path, json={"amount": "1"}, headers=headers)
        assert made.status_code == 201
        assert made.json()["data"]["status"] == "credited"
        assert await get(client, f"/v1/wallets/{agent['id']}/deposits") == [made.json()["data"]]
        assert await balance(client, agent) == "1.000000"
        # Another key, and none, are other requests.
        for other in ({"Idempotency-Key": "l"}, {}):
            again = await client.post(path, json={"amount": "1"}, headers=other)
            assert again.status_code == 201
        assert await balance(client, agent) == "3.000000"


async def test_the_faucets_key_comes_before_its_wallet(stage: Stage):
    """Goal: a key that stands for another request is 422 even where there is no such agent."""
    async with await stage.service.admin() as client:
        agent, nobody = await new_agent(client), "ag_00000000000000000000000000"
        headers = {"Idempotency-Key": "k"}
        path = "/v1/test/wallets/{}/fund"
        missing = await client.post(path.format(nobody), json={"amount": "1"}, headers=headers)
        error_of(missing, 404, "not_found")
        made = await client.post(path.format(agent["id"]), json={"amount": "1"}, headers=headers)
        assert made.status_code == 201
        reused = await client.post(path.format(nobody), json={"amount": "1"}, headers=headers)
        error_of(reused, 422, "idempotency_key_reused")


async def test_the_faucet_has_limits(stage: Stage):
    """Goal: over 1,000,000 is 400, live mode is 404, other agents are 404, other scopes 403."""
    account = new_account()
    async with await stage.service.admin(account=account) as client:
        agent = await new_agent(client)
        path = f"/v1/test/wallets/{agent['id']}/fund"
        for amount in ("1000000.000001", "2000000", "0", "-1", "1e2"):
            answer = await client.post(path, json={"amount": amount})
            error = error_of(answer, 400, "validation_error")
            assert error["param"] == "amount"
        assert (await client.post(path, json={"amount": "1000000"})).status_code == 201
        async with await stage.service.admin() as stranger:
            error_of(await stranger.post(path, json={"amount": "1"}), 404, "not_found")
        for scope in ("read", "approver"):
            key = await stage.service.key(account=account, scope=scope)
            async with stage.service.client(key) as reader:
                error_of(await reader.post(path, json={"amount": "1"}), 403, "forbidden")
    async with await stage.service.admin(mode="live") as live:
        agent = await new_agent(live)
        answer = await live.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "1"})
        error_of(answer, 404, "not_found")


async def test_a_chain_that_is_away_is_503_and_changes_nothing(stage: Stage):
    """Goal: unavailable with Retry-After; once the chain is back the same key works, once."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "k"}
        rule = {"action": "drop", "methods": ["bursar_faucet"], "at": "request"}
        await stage.rpc("bursar_faults", {"rules": [rule]})
        answer = await client.post(path, json={"amount": "1"}, headers=headers)
        await stage.rpc("bursar_faults", {})
        assert error_of(answer, 503, "unavailable")["retryable"]
        assert int(answer.headers["retry-after"]) >= 1
        assert await get(client, f"/v1/wallets/{agent['id']}/deposits") == []
        assert (await client.post(path, json={"amount": "1"}, headers=headers)).status_code == 201
        assert await balance(client, agent) == "1.000000"


async def test_a_chain_that_goes_away_after_the_mint_loses_nothing(stage: Stage):
    """Goal: what was minted is answered as it stands and credited later, once."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        away = {"action": "drop", "methods": ["getSignaturesForAddress"], "count": 6}
        await stage.rpc("bursar_faults", {"rules": [away]})
        answer = await client.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "1"})
        await stage.rpc("bursar_faults", {})
        assert answer.status_code == 201, answer.text
        await stage.work()
        assert await balance(client, agent) == "1.000000"
        assert len(await get(client, f"/v1/wallets/{agent['id']}/deposits")) == 1


# Whoever sends -----------------------------------------------------------------------------------


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


def with_an_inner_memo(signature: str, memo_bytes: int) -> Lie:
    """As if a program had written so long a memo inside this transaction."""

    def lie(method: str, result: Any) -> Any:
        if method == "getTransaction" and result["transaction"]["signatures"][0] == signature:
            message = result["transaction"]["message"]
            message["accountKeys"].append("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
            memo = {
                "programIdIndex": len(message["accountKeys"]) - 1,
                "accounts": [],
                "data": base58.encode(b"m" * memo_bytes),
            }
            result["meta"]["innerInstructions"] = [{"index": 0, "instructions": [memo]}]
        return result

    return lie


async def test_a_long_inner_memo_hides_nothing(stage: Stage):
    """Goal: a deposit with an inner memo of 1,500 bytes is credited, and so is what comes after."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        first = await stage.rpc("bursar_faucet", agent["wallet"]["address"], 5)
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 20)
        async with in_front_of(stage.rpc, with_an_inner_memo(first, 1_500)) as url:
            await watcher_at(stage, url, lambda watcher: watcher.look_at(agent["id"]))
        assert await balance(client, agent) == "0.000025"


async def watcher_at(
    stage: Stage, url: str, work: Callable[[DepositWatcher], Awaitable[Any]]
) -> None:
    chain = Solana.open([url], 2, 0)
    try:
        await work(DepositWatcher(stage.db, chain, PolicyCache(), "test", str(MINT), 600))
    finally:
        await chain.close()


def garbled(*signatures: str) -> Lie:
    """Transactions whose balances belong to nobody: no reader can make sense of them."""

    def lie(method: str, result: Any) -> Any:
        if method == "getTransaction" and result["transaction"]["signatures"][0] in signatures:
            for held in result["meta"]["postTokenBalances"]:
                del held["owner"]
        return result

    return lie


async def test_what_cannot_be_read_hides_no_later_deposit(stage: Stage):
    """Goal: it is passed over and shown, however many there are; what comes after is credited; and
    it is credited by itself once it can be read."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        wallet = agent["wallet"]["address"]
        bad = [await stage.rpc("bursar_faucet", wallet, micros) for micros in (1, 2, 4, 8)]
        await stage.rpc("bursar_faucet", wallet, 100)
        async with in_front_of(stage.rpc, garbled(*bad)) as url:
            await watcher_at(stage, url, lambda watcher: watcher.sweep())
        assert await balance(client, agent) == "0.000100"
        assert unread_count() == 4
        listed = await by_command(stage, "unread")
        assert all(signature in listed.out for signature in bad)
        assert "no owner" in listed.out
        await stage.watcher.sweep()
        assert await balance(client, agent) == "0.000115"
        assert unread_count() == 0
        assert (await by_command(stage, "unread")).out == ""


@pytest.mark.parametrize(("given", "huge"), [([1], 2**63), ([10**18] * 9, 10**18)])
async def test_more_than_the_books_can_hold_hides_no_later_deposit(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    given: list[int],
    huge: int,
):
    """Goal: a deposit beyond 64 bits, alone or with what the wallet was given before, is noted as
    one that could not be read; what comes after it is credited."""
    async with (
        running_stage(postgres, tmp_path_factory.mktemp("huge")) as stage,
        await stage.service.admin() as client,
    ):
        agent = await new_agent(client)
        wallet = agent["wallet"]["address"]
        for micros in given:
            await stage.rpc("bursar_faucet", wallet, micros)
        sender = await stage.rpc.wallet(micros=10**18)
        for _ in range(huge // 10**18):
            await stage.rpc("bursar_faucet", str(sender.pubkey()), 10**18)
        blockhash = await stage.rpc.blockhash()
        sent = await stage.rpc.send(payment(sender, address(agent), huge, blockhash, "huge"))
        await stage.rpc("bursar_faucet", wallet, 5)
        for _ in range(3):
            await stage.reconciler.sweep()
        async with stage.db.connection() as tx:
            assert await tx.fetch("SELECT problem FROM quarantine") == []
        assert await balance(client, agent) == format_micros(sum(given) + 5)
        listed = await by_command(stage, "unread")
        assert sent in listed.out
        assert "more than the books can hold" in listed.out


async def test_a_person_credits_or_dismisses_what_could_not_be_read(stage: Stage):
    """Goal: the amount a person verified, never more than the chain holds beyond the ledger, once,
    with a line in the audit log; and what brought nothing is out of sight."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "1")
        wallet = agent["wallet"]["address"]
        bad = [await stage.rpc("bursar_faucet", wallet, micros) for micros in (5, 7)]
        async with in_front_of(stage.rpc, garbled(*bad)) as url:
            await watcher_at(stage, url, lambda watcher: watcher.sweep())
        for words, said in (
            (("credit", agent["id"], bad[0], "0.000013"), "0.000012 USDC more"),
            (("credit", agent["id"], bad[0], "0"), "no amount"),
            (("credit", agent["id"], "unknown", "0.000005"), "not among the transactions"),
            (("dismiss", agent["id"], "unknown"), "not among the transactions"),
            (("credit", "ag_nobody", bad[0], "0.000005"), "no agent"),
        ):
            refused = await by_command(stage, *words)
            assert refused.code == 1
            assert said in refused.err, refused.err
        done = await by_command(stage, "credit", agent["id"], bad[0], "0.000005")
        assert done.code == 0, done.err
        assert await balance(client, agent) == "1.000005"
        assert (await by_command(stage, "credit", agent["id"], bad[0], "0.000005")).code == 1
        assert (await by_command(stage, "dismiss", agent["id"], bad[1])).code == 0
        assert (await by_command(stage, "unread")).out == ""
        await stage.watcher.sweep()
        assert await balance(client, agent) == "1.000005", "what was dismissed stays so"
    async with stage.db.connection() as tx:
        lines = await tx.fetch(
            "SELECT action, after->>'signature' AS signature, after->>'amount' AS amount"
            " FROM audit_log WHERE subject = $1 AND action LIKE 'deposit.%' ORDER BY id",
            agent["id"],
        )
    assert [tuple(line) for line in lines] == [
        ("deposit.credited_by_hand", bad[0], "0.000005"),
        ("deposit.dismissed", bad[1], "0.000000"),
    ]


def unread_count() -> float | None:
    return REGISTRY.get_sample_value("bursar_deposits_unread", {"mode": "test"})


async def by_command(stage: Stage, *words: str) -> Finished:
    assert stage.config.database_url is not None
    return await bursar(
        "deposits",
        *words,
        database_url=stage.config.database_url,
        data_dir=str(stage.config.data_dir),
        localnet_port=str(stage.config.localnet_port),
    )


def _count_calls(stage: Stage) -> dict[str, int]:
    """How often each method is called on the node from now on."""
    counts: dict[str, int] = {}
    around = stage.node.faults.around

    async def counting(method: str, handle: Any) -> Any:
        counts[method] = counts.get(method, 0) + 1
        return await around(method, handle)

    stage.node.faults.around = counting
    return counts


# Status and events -------------------------------------------------------------------------------


async def test_the_life_of_a_wallet(stage: Stage):
    """Goal: provisioned, funded, depleted, funded; lastFundedAt moves with deposits only."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["status"], wallet["lastFundedAt"]) == ("provisioned", None)
        first = await stage.fund(client, agent["id"], "2")
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["status"], wallet["lastFundedAt"]) == ("funded", first["creditedAt"])
        made = await spend(client, agent["id"], "2")
        # Reserved is not gone: the balance is what counts.
        assert (await stage.wallet(client, agent["id"]))["status"] == "funded"
        assert (await stage.ended(client, made["id"]))["status"] == "settled"
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["status"], wallet["lastFundedAt"]) == ("depleted", first["creditedAt"])
        assert (await get(client, f"/v1/agents/{agent['id']}"))["wallet"] == {
            "address": wallet["address"],
            "balance": "0.000000",
            "status": "depleted",
        }
        second = await stage.fund(client, agent["id"], "0.000001")
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["status"], wallet["lastFundedAt"]) == ("funded", second["creditedAt"])


def _wallet_events(events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [type_ for type_, _ in events if type_.startswith("wallet.")]


async def test_low_and_depleted_as_the_contract_has_them(stage: Stage):
    """Goal: low below a tenth of the cap and not at it; one payment can fire both."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "50", policy={"dailyCap": "100.00"})
        events = await stage.events(agent["id"])
        # A new wallet is low silently; the first deposit lifts it.
        assert _wallet_events(events) == ["wallet.funded"]
        assert events[0][1] == await stage.wallet(client, agent["id"])

        exactly_a_tenth = await spend(client, agent["id"], "40")
        await stage.ended(client, exactly_a_tenth["id"])
        assert _wallet_events(await stage.events(agent["id"])) == ["wallet.funded"]

        a_micro_less = await spend(client, agent["id"], "0.000001")
        await stage.ended(client, a_micro_less["id"])
        events = await stage.events(agent["id"])
        assert _wallet_events(events) == ["wallet.funded", "wallet.low_balance"]
        assert (await stage.events(agent["id"], "wallet.low_balance"))[0][1][
            "balance"
        ] == "9.999999"

        # Low already: the rest only depletes.
        await stage.ended(client, (await spend(client, agent["id"], "9.999999"))["id"])
        assert _wallet_events(await stage.events(agent["id"]))[2:] == ["wallet.depleted"]

        await stage.fund(client, agent["id"], "20")
        both = await stage.withdraw(client, agent["id"], "20", str(Keypair().pubkey()))
        await stage.ended(client, both["id"])
        fired = _wallet_events(await stage.events(agent["id"]))[3:]
        assert fired[0] == "wallet.funded"
        assert sorted(fired[1:]) == ["wallet.depleted", "wallet.low_balance"]


async def test_a_cap_of_nothing_is_never_low(stage: Stage):
    """Goal: with a cap of 0 only depleted fires; raising the cap over the balance is low."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "5", policy={"dailyCap": "0.00"})
        made = await stage.withdraw(client, agent["id"], "4", str(Keypair().pubkey()))
        await stage.ended(client, made["id"])
        assert _wallet_events(await stage.events(agent["id"])) == ["wallet.funded"]
        path = f"/v1/agents/{agent['id']}"
        await client.patch(path, json={"policy": {"dailyCap": "10.00"}})  # exactly a tenth
        assert await stage.events(agent["id"], "wallet.low_balance") == []
        await client.patch(path, json={"policy": {"dailyCap": "10.01"}})
        assert len(await stage.events(agent["id"], "wallet.low_balance")) == 1
        await client.patch(path, json={"policy": {"dailyCap": "0.00"}})
        made = await stage.withdraw(client, agent["id"], "1", str(Keypair().pubkey()))
        await stage.ended(client, made["id"])
        assert len(await stage.events(agent["id"], "wallet.low_balance")) == 1
        assert len(await stage.events(agent["id"], "wallet.depleted")) == 1


async def test_nothing_about_a_wallet_after_termination(stage: Stage):
    """Goal: deposits to a terminated agent are credited, and silent."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "5")
        before = await stage.events(agent["id"])
        await client.delete(f"/v1/agents/{agent['id']}")
        await stage.fund(client, agent["id"], "5")
        assert await balance(client, agent) == "10.000000"
        made = await stage.withdraw(client, agent["id"], "10", str(Keypair().pubkey()))
        await stage.ended(client, made["id"])
        assert _wallet_events(await stage.events(agent["id"])) == _wallet_events(before)


async def test_cap_and_balance_change_at_once(stage: Stage):
    """Goal: whatever order they commit in, the flag is right and each turn to low fires once."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10", policy={"dailyCap": "100.00"})
        path = f"/v1/agents/{agent['id']}"
        for round_ in range(5):
            spends = [await spend(client, agent["id"], "0.4") for _ in range(2)]
            caps = ("1.00", "100.00", "50.00", "100.00")

            async def patch(cap: str) -> None:
                answer = await client.patch(path, json={"policy": {"dailyCap": cap}})
                assert answer.status_code == 200

            await asyncio.gather(
                *(patch(cap) for cap in caps), *(stage.ended(client, s["id"]) for s in spends)
            )
            del round_
        async with stage.db.connection() as tx:
            low, cap, micros = await tx.fetchrow(  # pyright: ignore[reportGeneralTypeIssues]
                "SELECT w.is_low, p.cap_micros_daily, w.credits_posted - w.debits_posted"
                " FROM wallet w JOIN agent a ON a.id = w.agent_id JOIN policy p"
                " ON p.agent_id = a.id AND p.version = a.policy_version WHERE w.agent_id = $1",
                agent["id"],
            )
        assert low == (micros * 10 < cap)
        fired = len(await stage.events(agent["id"], "wallet.low_balance"))
        assert fired >= 1
        # Recomputed from the journal and the versions in the order they were committed.
        assert fired == await _turns_to_low(stage, agent["id"])


async def _turns_to_low(stage: Stage, agent_id: str) -> int:
    """Replays balances and caps in the order they held. Transaction ids do not tell it (they are
    given before the lock is), but each change of the policy tells the balance that it met."""
    async with stage.db.connection() as tx:
        balances = await tx.fetch(
            "SELECT (credits_posted_after - debits_posted_after)::bigint AS micros FROM transfer"
            " WHERE agent_id = $1 AND kind IN ('deposit', 'post') ORDER BY number",
            agent_id,
        )
        changes = await tx.fetch(
            "SELECT data FROM event WHERE agent_id = $1 AND type = 'agent.policy_updated'", agent_id
        )
    agents = sorted((json.loads(row["data"]) for row in changes), key=_version)
    caps: dict[int | None, list[int]] = defaultdict(list)
    for agent in agents:
        cap = parse_micros(agent["policy"]["dailyCap"])
        assert cap is not None
        caps[parse_micros(agent["wallet"]["balance"])].append(cap)
    cap, low, turns = 100_000_000, True, 0
    for row in balances:
        for cap in [cap, *caps.pop(row["micros"], [])]:  # noqa: B020 - the last one stays in force
            now = row["micros"] * 10 < cap
            turns += now and not low
            low = now
    assert not caps, "every change met a balance that the journal knows"
    return turns


def _version(agent: dict[str, Any]) -> int:
    return agent["policy"]["version"]


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
            "INSERT INTO policy (agent_id, version, cap_micros_daily, allowlist, blocklist, frozen,"
            " changed_by, changed_at) SELECT id, 1, 0, '{}', '{}', false, 'test', moment()"
            " FROM unnest($1::text[]) AS n (id)",
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
