"""What goes wrong outside Bursar ends in a clear state: nothing lost, nothing paid twice."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from prometheus_client import REGISTRY
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from bursar.clock import SystemClock
from bursar.db import Database, Tx
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement import payment_store
from bursar.settlement.worker import Settler
from bursar_localnet.rpc import Settings, serve
from bursar_localnet.slots import Lag
from tests.localnet.support import MINT, payment
from tests.processes import bursar, until
from tests.settlement.stage import Stage, get, running_stage, token_account_of
from tests.support import new_agent, spend

TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"


@pytest.fixture(scope="module")
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    async with running_stage(postgres, tmp_path_factory.mktemp("failures")) as running:
        yield running


@asynccontextmanager
async def paying(
    stage: Stage, amount: str, to: str
) -> "AsyncGenerator[tuple[httpx.AsyncClient, dict[str, Any], dict[str, Any]]]":
    """An agent with 10 USDC and an approved spend of `amount` to an address."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10", policy={"allowlist": ["*"]})
        made = await spend(client, agent["id"], amount, recipient=to, allowOffCurve=True)
        assert made["status"] == "approved"
        yield client, agent, made


async def assert_given_back(
    stage: Stage, client: httpx.AsyncClient, agent: dict[str, Any], made: dict[str, Any]
) -> None:
    """Rejected with settlement_failed: funds, day and totals are as before, with one event."""
    ended = await stage.ended(client, made["id"])
    assert (ended["status"], ended["rejectCode"]) == ("rejected", "settlement_failed")
    assert (ended["decidedBy"], ended["decidedAt"], ended["decisionReason"]) == (None, None, None)
    assert ended["signature"] is None
    wallet = await stage.wallet(client, agent["id"])
    assert (wallet["available"], wallet["reserved"]) == ("10.000000", "0.000000")
    budget = await get(client, f"/v1/agents/{agent['id']}/budget")
    assert budget["spentToday"] == "0.000000"
    ((_, event),) = await stage.events(agent["id"], "transaction.rejected")
    assert event == ended
    assert await stage.tokens(agent["wallet"]["address"]) == 10_000_000


# Recipients --------------------------------------------------------------------------------------


async def test_a_recipient_without_a_token_account_gets_one(stage: Stage):
    """Goal: it is made in the same transaction, and the fee payer pays for it, not the wallet."""
    to = Keypair().pubkey()
    async with paying(stage, "3", str(to)) as (client, agent, made):
        before = (await stage.rpc("getBalance", stage.fee_payer))["value"]
        settled = await stage.ended(client, made["id"])
        assert settled["status"] == "settled"
        assert await stage.tokens(str(to)) == 3_000_000
        after = (await stage.rpc("getBalance", stage.fee_payer))["value"]
        assert before - after == settled["feeLamports"] + 2_039_280
        assert await stage.tokens(agent["wallet"]["address"]) == 7_000_000


@pytest.mark.parametrize("kind", ["token account", "program", "mint"])
async def test_a_recipient_that_is_no_wallet_is_never_paid(stage: Stage, kind: str):
    """Goal: refused before anything is signed."""
    owner = await stage.rpc.wallet(micros=1)
    to = {
        "token account": token_account_of(str(owner.pubkey())),
        "program": TOKEN_PROGRAM,
        "mint": str(MINT),
    }[kind]
    async with paying(stage, "3", to) as (client, agent, made):
        await assert_given_back(stage, client, agent, made)
        async with stage.db.connection() as tx:
            assert not await tx.fetchval(
                "SELECT EXISTS (SELECT FROM submission WHERE payment_id = $1)", made["id"]
            )


@pytest.mark.parametrize("whose", ["recipient", "source"])
async def test_a_frozen_token_account_fails_after_expiry(stage: Stage, whose: str):
    """Goal: the node's no is not proof; only when the attempt can land no more are funds released.
    Thawed in time, the same attempt pays."""
    owner = await stage.rpc.wallet(micros=1)
    async with paying(stage, "3", str(owner.pubkey())) as (client, agent, made):
        frozen = str(owner.pubkey()) if whose == "recipient" else agent["wallet"]["address"]
        await stage.rpc("bursar_freeze", frozen)
        for _ in range(5):
            await stage.work()
        shown = await get(client, f"/v1/transactions/{made['id']}")
        assert shown["status"] == "approved"
        assert (await stage.wallet(client, agent["id"]))["reserved"] == "3.000000"
        await stage.expire()
        await assert_given_back(stage, client, agent, made)

        second = await spend(client, agent["id"], "2", recipient=str(owner.pubkey()))
        for _ in range(3):
            await stage.work()
        await stage.rpc("bursar_thaw", frozen)
        settled = await stage.ended(client, second["id"])
        assert settled["status"] == "settled"
        async with stage.db.connection() as tx:
            assert (
                await tx.fetchval("SELECT attempts FROM payment WHERE id = $1", second["id"]) == 1
            )
        assert await stage.tokens(str(owner.pubkey())) == 2_000_001


async def test_an_attempt_that_expires_is_made_again_and_pays_once(stage: Stage):
    """Goal: dropped by the network until its blockhash is too old, then a second attempt."""
    to = Keypair().pubkey()
    async with paying(stage, "3", str(to)) as (client, _, made):
        lost = {"action": "drop", "methods": ["sendTransaction"], "at": "request"}
        await stage.rpc("bursar_faults", {"rules": [lost]})
        for _ in range(3):
            await stage.work()
        await stage.expire()
        await stage.rpc("bursar_faults", {})
        assert (await stage.ended(client, made["id"]))["status"] == "settled"
        async with stage.db.connection() as tx:
            states = await tx.fetch(
                "SELECT state, outcome FROM submission WHERE payment_id = $1 ORDER BY attempt",
                made["id"],
            )
        assert [tuple(row) for row in states] == [("dead", "expired"), ("settled", "finalized")]
        assert await stage.tokens(str(to)) == 3_000_000


async def test_who_approved_a_spend_stays_known_when_it_cannot_be_paid(stage: Stage):
    """Goal: a failed payment is nobody's decision, and undoes none."""
    async with await stage.service.admin() as client:
        policy = {"allowlist": ["*"], "approvalThreshold": "1"}
        agent = await stage.funded_agent(client, "10", policy=policy)
        made = await spend(client, agent["id"], "3", recipient=str(MINT))
        path = f"/v1/transactions/{made['id']}"
        answer = await client.post(f"{path}/approve", json={"reason": "we need it"})
        approved = answer.json()["data"]
        ended = await stage.ended(client, made["id"])
        assert (ended["status"], ended["rejectCode"]) == ("rejected", "settlement_failed")
        for name in ("decidedBy", "decidedAt", "decisionReason"):
            assert ended[name] == approved[name] is not None
        async with stage.db.connection() as tx:
            problem = await tx.fetchval("SELECT problem FROM payment WHERE id = $1", made["id"])
        assert problem == "the destination is no wallet"


async def test_a_payment_that_fails_is_counted_once(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """Goal: what is rolled back and done again counts once."""
    transact = Database.transact

    async def lost_at_first(db: Database, work: Any) -> Any:
        tries = itertools.count()

        async def again(tx: Tx) -> Any:
            result = await work(tx)
            if next(tries) == 0:
                raise asyncpg.SerializationError("to be done again")
            return result

        return await transact(db, again)

    def failed() -> float:
        labels = {"mode": "test", "end": "failed"}
        counted = REGISTRY.get_sample_value("bursar_payments_ended_total", labels)
        return counted or 0.0

    async with paying(stage, "3", str(MINT)) as (client, _, made):
        before = failed()
        monkeypatch.setattr(Database, "transact", lost_at_first)
        assert (await stage.ended(client, made["id"]))["status"] == "rejected"
        assert failed() == before + 1


# The fee payer -----------------------------------------------------------------------------------


async def test_an_empty_fee_payer_makes_payments_wait(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
):
    """Goal: nothing fails, however long it takes; after an airdrop everything is paid, once."""
    folder = tmp_path_factory.mktemp("poor")
    async with (
        running_stage(postgres, folder, funded=False) as stage,
        await stage.service.admin() as client,
    ):
        agent = await stage.funded_agent(client, "10", policy={"allowlist": ["*"]})
        to = Keypair().pubkey()
        made = [await spend(client, agent["id"], "1", recipient=str(to)) for _ in range(3)]
        out = await stage.withdraw(client, agent["id"], "1", str(to))
        for _ in range(12):
            for _ in range(3):
                await stage.work()
            await stage.expire()
        assert (await stage.wallet(client, agent["id"]))["reserved"] == "4.000000"
        async with stage.db.connection() as tx:
            # Signed for nothing, they would expire, and ten of those are the end of a payment.
            assert await tx.fetchval("SELECT sum(attempts) FROM payment") == 0
        await stage.rpc("requestAirdrop", stage.fee_payer, 1_000_000_000)
        for payment_id in [*(spent["id"] for spent in made), out["id"]]:
            assert (await stage.ended(client, payment_id))["status"] == "settled"
        assert await stage.tokens(str(to)) == 4_000_000
        assert await stage.differences() == []


# Networks ----------------------------------------------------------------------------------------


async def test_the_wrong_network_refuses_to_start(stage: Stage, tmp_path: Path):
    """Goal: worker and audit notice that the genesis differs, say so, and touch nothing."""
    assert stage.config.database_url is not None
    async with serve(Settings(tmp_path / "other", port=0, ws_port=0), SystemClock()) as other:
        ended = await bursar(
            "worker",
            database_url=stage.config.database_url,
            data_dir=str(stage.config.data_dir),
            localnet_port=str(other.port),
            live_network="",
        )
        assert ended.code == 1
        told = ended.err.splitlines()[-1]
        assert told.startswith("bursar: This database's test mode belongs to the network")
        assert "BURSAR_TEST_NETWORK" in told
        audit = await stage.audit(live_network="", localnet_port=str(other.port))
        assert audit.code == 2
        assert "another network" in audit.out


async def test_a_node_of_another_network_is_never_believed(stage: Stage, tmp_path: Path):
    """Goal: a second address that leads elsewhere neither settles nor buries anything."""
    to = Keypair().pubkey()
    async with (
        paying(stage, "1", str(to)) as (client, _, made),
        serve(Settings(tmp_path / "other", port=0, ws_port=0), SystemClock()) as other,
    ):
        mixed = f"http://127.0.0.1:{other.port},http://127.0.0.1:{stage.node.port}"
        chain = type(stage.chain).open(mixed.split(","), 5, 0)
        try:
            chain.expect(await stage.chain.genesis_hash())
            settler = replace(stage.settler, chain=chain)
            await _run_until_settled(settler, client, made["id"])
        finally:
            await chain.close()
        assert await stage.tokens(str(to)) == 1_000_000


async def _run_until_settled(settler: Settler, client: httpx.AsyncClient, spend_id: str) -> None:
    for _ in range(500):
        await settler.work()
        if (await get(client, f"/v1/transactions/{spend_id}"))["status"] == "settled":
            return
    raise AssertionError("never settled")


# Forks -------------------------------------------------------------------------------------------


async def test_what_is_not_final_is_not_credited_and_not_settled(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
):
    """Goal: a deposit that a fork takes back was never there; a payment that a fork takes back is
    sent again and made once."""
    lag = Lag(confirmed=1, finalized=10_000)
    async with (
        running_stage(postgres, tmp_path_factory.mktemp("forks")) as stage,
        await stage.service.admin() as client,
    ):
        agent = await stage.funded_agent(client, "10", policy={"allowlist": ["*"]})
        address = Pubkey.from_string(agent["wallet"]["address"])
        await stage.rpc(
            "bursar_faults", {"lag": {"confirmed": lag.confirmed, "finalized": lag.finalized}}
        )
        sender = await stage.rpc.wallet(micros=1_000)
        deposit = await stage.rpc.send(
            payment(sender, address, 1_000, await stage.rpc.blockhash("processed"), "forked"),
            preflightCommitment="processed",
        )
        for _ in range(3):
            await stage.work()
        assert (await stage.wallet(client, agent["id"]))["balance"] == "10.000000"
        assert deposit in await stage.rpc("bursar_fork", deposit)

        to = Keypair().pubkey()
        made = await spend(client, agent["id"], "2", recipient=str(to))

        async def landed() -> bool:
            async with stage.db.connection() as tx:
                signature = await tx.fetchval(
                    "SELECT signature FROM submission WHERE payment_id = $1", made["id"]
                )
            if signature is None:
                return False
            return (await stage.rpc("getSignatureStatuses", [signature]))["value"][0] is not None

        await stage.work_until(landed)
        assert (await get(client, f"/v1/transactions/{made['id']}"))["status"] == "approved"
        async with stage.db.connection() as tx:
            signature = await tx.fetchval(
                "SELECT signature FROM submission WHERE payment_id = $1", made["id"]
            )
        assert signature in await stage.rpc("bursar_fork", signature)
        await stage.work_until(landed)
        await stage.rpc("bursar_faults", {"lag": {"confirmed": 0, "finalized": 0}})
        settled = await stage.ended(client, made["id"])
        assert (settled["status"], settled["signature"]) == ("settled", signature)
        assert await stage.tokens(str(to)) == 2_000_000
        for _ in range(3):
            await stage.work()
        assert (await stage.wallet(client, agent["id"]))["balance"] == "8.000000"
        assert len(await get(client, f"/v1/wallets/{agent['id']}/deposits")) == 1
        assert await stage.differences() == []


async def test_the_faucet_on_a_slow_chain_answers_as_it_stands(
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
):
    """Goal: 201 with a pending deposit when it is not final in time; credited later, the same."""
    monkeypatch.setattr("bursar.settlement.faucet.WAIT_SECONDS", 1)
    async with (
        running_stage(postgres, tmp_path_factory.mktemp("slow")) as stage,
        await stage.service.admin() as client,
    ):
        agent = await new_agent(client)
        await stage.fund(client, agent["id"], "1")
        await stage.rpc("bursar_faults", {"lag": {"confirmed": 0, "finalized": 10_000}})
        path = f"/v1/test/wallets/{agent['id']}/fund"
        answer = await client.post(path, json={"amount": "2"})
        assert answer.status_code == 201
        deposit = answer.json()["data"]
        assert (deposit["status"], deposit["creditedAt"]) == ("pending", None)
        assert (await stage.wallet(client, agent["id"]))["balance"] == "1.000000"
        assert await stage.differences() == []
        await stage.rpc("bursar_faults", {"lag": {"confirmed": 0, "finalized": 0}})
        await stage.work()
        newest = (await get(client, f"/v1/wallets/{agent['id']}/deposits"))[0]
        assert (newest["id"], newest["status"]) == (deposit["id"], "credited")
        assert (await stage.wallet(client, agent["id"]))["balance"] == "3.000000"


async def test_a_payment_just_signed_elsewhere_is_not_failed(stage: Stage):
    """Goal: a worker that judges a payment unpayable while another stores an attempt of it waits
    for the other, and then leaves it alone."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        made = await spend(client, agent["id"], "1")
        async with stage.db.transaction() as tx:
            claimed = [p.id for p in await payment_store.claim_payments(tx, "test", 10)]
        assert made["id"] in claimed
        async with stage.db.transaction() as signing:
            # What storing an attempt does to the payment.
            await signing.execute("UPDATE payment SET state = 'live' WHERE id = $1", made["id"])

            async def fail() -> bool:
                async with stage.db.transaction() as tx:
                    return await payment_store.fail_payment(tx, made["id"], "no wallet", "waiting")

            async def waits() -> bool:
                async with stage.db.connection() as tx:
                    return await tx.fetchval(
                        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
                    )

            failing = asyncio.create_task(fail())
            await until(waits, seconds=10)
        assert not await failing
