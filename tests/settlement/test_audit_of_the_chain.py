"""The audit against the chain: what it finds, names, and says that it could not check."""

import json
from collections.abc import AsyncGenerator

import asyncpg
import pytest
from solders.keypair import Keypair
from solders.signature import Signature

from bursar.chain.store import Pinned, pin
from bursar.ledger.audit import QUESTIONS
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement.reconcile import (
    audit_payments,
    chain_question,
)
from tests.localnet.support import MINT
from tests.settlement.stage import Stage, adopt, running_stage
from tests.support import new_agent, spend


@pytest.fixture
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    """Of its own for each: the audit looks at everything."""
    async with running_stage(postgres, tmp_path_factory.mktemp("audit")) as running:
        yield running


async def test_a_payment_between_two_wallets_of_ours_is_named(stage: Stage):
    """Goal: one that a restore forgot is unknown to the payer, though the payee's deposit of the
    same transaction is in the books."""
    async with await stage.service.admin() as client:
        payer = await stage.funded_agent(client, "10")
        payee = await new_agent(client)
        forgotten = await stage.steal(payer["id"], 4_000_000, to=payee["wallet"]["address"])
        await stage.reconciler.sweep()
        assert (await stage.wallet(client, payee["id"]))["balance"] == "4.000000"
        _, unknown = await stage.differences()
        assert unknown.startswith(
            f"{payer['id']}: unknown payment of 4.000000 USDC, transaction {forgotten}"
        )
        await adopt(stage, payer["id"], forgotten)
        assert await stage.differences() == []


async def test_the_audit_says_what_it_could_not_check(stage: Stage):
    """Goal: exit code 2 and a plain sentence when the chain is away; 0 without it; differences
    weigh more."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "3")
        await stage.ended(client, (await spend(client, agent["id"], "1"))["id"])
        clean = await stage.audit(live_network="")
        assert clean.code == 0, clean.out
        assert "ok    every test wallet holds on the chain what the ledger says (1 checked)" in (
            clean.out
        )
        # Live mode is configured here, but nothing answers.
        away = await stage.audit(
            live_network="localnet", live_localnet_port=str(stage.config.live_localnet_port)
        )
        assert away.code == 2
        assert "????? every live wallet holds on the chain" in away.out
        await stage.steal(agent["id"], 1)
        found = await stage.audit("--json", live_network="localnet")
        assert found.code == 1
        told = {finding["question"]: finding for finding in json.loads(found.out)}
        test, live = told[chain_question("test")], told[chain_question("live")]
        assert (test["differences"], test["problem"]) == (1, None)
        assert "never reached" in live["problem"]
        assert (await stage.audit("--no-chain", live_network="localnet")).code == 0


async def test_the_audit_says_that_a_mode_has_no_network_any_more(stage: Stage):
    """Goal: money that is on a chain nobody named is not left out in silence."""
    async with stage.db.transaction() as tx:
        await pin(tx, Pinned("live", "another chain", "its mint", 6))
    try:
        forgotten = await stage.audit(live_network="")
    finally:
        async with stage.db.transaction() as tx:
            await tx.execute("DELETE FROM network WHERE mode = 'live'")
    assert forgotten.code == 2
    assert "????? every live wallet holds on the chain" in forgotten.out
    assert "not checked, BURSAR_LIVE_NETWORK is not set" in forgotten.out


async def test_the_audit_finds_what_was_tampered_with(stage: Stage):
    """Goal: each rule between payments, withdrawals, deposits and journal is really asked."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "9")
        await stage.ended(client, (await spend(client, agent["id"], "1"))["id"])
        paid = await stage.withdraw(client, agent["id"], "1", str(Keypair().pubkey()))
        await stage.ended(client, paid["id"])
        failed = await stage.withdraw(client, agent["id"], "1", str(MINT), allowOffCurve=True)
        await stage.ended(client, failed["id"])
        assert await stage.differences() == []
    wid, fid = paid["id"], failed["id"]
    for statement, question in (
        (f"UPDATE withdrawal SET amount_micros = 2 WHERE id = '{wid}'", "every withdrawal holds"),
        (f"DELETE FROM withdrawal WHERE id = '{fid}'", "every reserve belongs to a payment"),
        ("UPDATE deposit SET amount_micros = 1", "every deposit in the journal"),
        ("DELETE FROM deposit", "every deposit in the journal"),
        ("UPDATE submission SET state = 'dead'", "made by exactly one attempt"),
        ("UPDATE submission SET signature = 'x' || payment_id", "made by exactly one attempt"),
        (f"UPDATE payment SET state = 'failed' WHERE id = '{wid}'", "is where its spend"),
        (f"UPDATE payment SET destination = 'me' WHERE id = '{wid}'", "is where its spend"),
        (f"UPDATE payment SET state = 'waiting' WHERE id = '{fid}'", "is where its spend"),
        ("UPDATE payment SET attempts = attempts + 1", "has the attempts that it says"),
        ("UPDATE submission SET state = 'dead', outcome = ''", "every dead attempt has a reason"),
    ):
        assert question in await wrong_after(stage, statement), statement


async def test_a_signature_that_is_not_the_payment_is_found(stage: Stage):
    """Goal: a settled spend or withdrawal is held against what its transaction moved, to whom; one
    that a person entered, against what left. Of all of them, or of a sample."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "9")
        other = await stage.funded_agent(client, "9")
        paid = await stage.ended(client, (await spend(client, agent["id"], "1"))["id"])
        out = await stage.withdraw(client, agent["id"], "1", str(Keypair().pubkey()))
        out = await stage.ended(client, out["id"])
        theft = await stage.steal(other["id"], 1_000_000)
        await adopt(stage, other["id"], theft)
    for everything in (False, True):
        clean = await audit_payments(stage.db, stage.chain, "test", everything=everything)
        assert (clean.checked, clean.differences, clean.problem) == (3, [], None)
    thief, nowhere = str(Keypair().pubkey()), str(Signature.default())
    for statement, named in (
        (f"UPDATE spend SET signature = '{nowhere}' WHERE id = '{paid['id']}'", "no node knows"),
        (f"UPDATE spend SET signature = '{theft}' WHERE id = '{paid['id']}'", paid["id"]),
        (f"UPDATE payment SET destination = '{thief}' WHERE id = '{out['id']}'", thief),
        (f"UPDATE payment SET amount_micros = 2 WHERE id = '{out['id']}'", "0.000002 USDC"),
        ("UPDATE payment SET amount_micros = 3 WHERE attempts = 0", "0.000003 USDC"),
    ):
        connection = await asyncpg.connect(stage.admin_dsn)
        try:
            before = await connection.fetch(
                "SELECT id, signature FROM spend UNION ALL SELECT id, signature FROM withdrawal"
            )
            payments = await connection.fetch("SELECT id, destination, amount_micros FROM payment")
            await connection.execute(f"SET session_replication_role = replica; {statement}")
            for everything in (False, True):
                found = await audit_payments(stage.db, stage.chain, "test", everything=everything)
                assert any(named in line for line in found.differences), statement
            for table in ("spend", "withdrawal"):
                await connection.executemany(
                    f"UPDATE {table} SET signature = $2 WHERE id = $1",
                    [tuple(row) for row in before],
                )
            await connection.executemany(
                "UPDATE payment SET destination = $2, amount_micros = $3 WHERE id = $1",
                [tuple(row) for row in payments],
            )
        finally:
            await connection.close()
    assert await stage.differences() == []


async def wrong_after(stage: Stage, statement: str) -> str:
    """The questions that fail once a statement has been at work, which is then undone."""
    assert stage.config.database_url is not None
    connection = await asyncpg.connect(stage.admin_dsn)
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(statement)
            wrong = [q.text for q in QUESTIONS if await connection.fetch(q.differs)]
            raise _Undo("; ".join(wrong))
    except _Undo as undo:
        return str(undo)
    finally:
        await connection.close()


class _Undo(Exception):
    pass
