"""Transactions that nobody can read: they hide no deposit, and a person may decide about them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from bursar.chain.message import token_account
from bursar.chain.solana import Solana
from bursar.errors import CommandFailed
from bursar.money import format_micros
from bursar.policy.cache import PolicyCache
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement.by_hand import credit_by_hand
from bursar.settlement.deposits import DepositWatcher
from bursar.wallet import store as wallet_store
from bursar_localnet import base58
from tests.localnet.support import MINT, payment
from tests.processes import Finished, bursar
from tests.settlement.stage import Stage, address, balance, running_stage
from tests.settlement.support import Lie, in_front_of
from tests.support import new_agent


@pytest.fixture(scope="module")
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    async with running_stage(postgres, tmp_path_factory.mktemp("unread")) as running:
        yield running


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
        assert "owner is missing" in listed.out
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
            (("credit", agent["id"], bad[0], "0"), "not an amount"),
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


async def test_two_hands_at_once_credit_no_more_than_is_there(stage: Stage):
    """Goal: what is beyond the ledger is counted again under the wallet's lock."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        address = agent["wallet"]["address"]
        await stage.rpc("bursar_faucet", address, 5)
        async with stage.db.connection() as tx:
            (wallet,) = await wallet_store.watched_wallets(tx, [agent["id"]])
            for signature in ("one", "two"):
                await wallet_store.insert_unread(
                    tx,
                    realm_id=wallet.realm_id,
                    agent_id=agent["id"],
                    token_account=token_account(address, str(MINT)),
                    signature=signature,
                    problem="no node shows it",
                )
        ended = await asyncio.gather(
            *(
                credit_by_hand(
                    stage.db,
                    stage.reconciler.watcher.chain,
                    mode="test",
                    mint=str(MINT),
                    agent_id=agent["id"],
                    signature=signature,
                    micros=5,
                )
                for signature in ("one", "two")
            ),
            return_exceptions=True,
        )
        assert [type(end) for end in ended].count(CommandFailed) == 1
        assert (await stage.wallet(client, agent["id"]))["balance"] == "10.000005"


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
