"""What becomes of a presented purchase: only the chain decides, and by our signature."""

from typing import Any

import pytest
from solders.keypair import Keypair

from bursar.custody.rotate import rotate_master
from bursar.custody.store import master_versions
from bursar.db import Tx
from bursar.ledger.audit import QUESTIONS, audit
from bursar.policy.engine import RejectCode
from bursar.purchase import end, search, secret_store, store
from bursar.purchase.unsigned import end_unsigned
from bursar.service.retention import forget
from tests.settlement.bought import (
    Bought,
    buy,
    follow,
    follower,
    new_payee,
    offered,
    open_purchase,
    price,
)
from tests.settlement.support import Stage, deny_everything, in_front_of

DAY = 86_400


async def events(stage: Stage, purchase_id: str) -> list[str]:
    async with stage.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT type FROM event WHERE type LIKE 'purchase.%' AND data::json ->> 'id' = $1",
            purchase_id,
        )
    return [row["type"] for row in rows]


async def past_its_life(stage: Stage) -> None:
    """604 blocks: past the blockhash, the room to spare, and the time a node has to list it."""
    await stage.pass_blocks()
    await stage.pass_blocks()


async def ended(bought: Bought) -> tuple[str, str, str | None]:
    """The purchase's state, its spend's, and the code of that."""
    spend = await bought.spend()
    return (await bought.now()).status, spend["status"], spend["reject_code"]


async def books_are_clean(stage: Stage) -> None:
    findings = await audit(stage.db, lambda _: None, everything=True)
    assert [line for finding in findings for line in finding.differences] == []


# Paid --------------------------------------------------------------------------------------------


async def test_what_a_facilitator_settled_is_paid(stage: Stage):
    """Goal: found by our signature alone, once, with the chain's signature in the books and no
    cost of ours."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent, 1_500_000)
    assert (await stage.balance(agent))["available"] == "8.500000"
    worker = await follower(stage)
    await follow(stage, worker)
    assert (await bought.now()).status == "presented"
    signature = await bought.settle()
    await follow(stage, worker, times=2)
    spend = await bought.spend()
    assert (await bought.now()).status == "paid"
    assert (spend["status"], spend["signature"]) == ("settled", signature)
    assert (spend["fee_lamports"], spend["rent_lamports"], spend["network_lamports"]) == (0, 0, 0)
    assert await events(stage, bought.row.id) == ["purchase.paid"]
    assert (await stage.balance(agent))["balance"] == "8.500000"
    reconciler = await stage.reconciler()
    for _ in range(3):
        await reconciler.sweep()
    assert not await stage.frozen(agent)
    await books_are_clean(stage)


async def test_what_the_seller_claims_is_only_a_hint(stage: Stage):
    """Goal: a true claim is found by it; one that names another payment, or nothing, changes
    nothing."""
    agent = await stage.agent("10")
    honest, liar, mad = [await buy(stage, agent) for _ in range(3)]
    signature = await honest.settle()
    await honest.answer(signature)
    await liar.answer(signature)
    await mad.answer("1" * 88)
    worker = await follower(stage)
    await follow(stage, worker, times=2)
    assert [(await b.now()).status for b in (honest, liar, mad)] == [
        "paid",
        "presented",
        "presented",
    ]
    await mad.settle()
    await follow(stage, worker)
    assert [(await b.now()).status for b in (honest, liar, mad)] == ["paid", "presented", "paid"]


async def test_a_claim_is_believed_where_no_history_is_shown(stage: Stage):
    """Goal: the node that lists nothing still shows the transaction that the seller named."""
    bought = await buy(stage, await stage.agent("10"))
    signature = await bought.settle()
    await bought.answer(signature)
    silent = lambda method, result: [] if method == "getSignaturesForAddress" else result  # noqa: E731
    async with in_front_of(stage.rpc, silent) as address:
        await follow(stage, await follower(stage, address))
    assert (await bought.now()).status == "paid"


async def test_two_purchases_of_a_wallet_from_another_wallet_of_ours(stage: Stage):
    """Goal: each is told by its own signature, and what one of our wallets pays another is found in
    the history of both."""
    buyer, seller = await stage.agent("10"), await stage.agent("10")
    payee = seller["wallet"]["address"]
    bought = await buy(stage, buyer, 2_000, payee)
    other = await buy(stage, seller, 3_000)
    same = await buy(stage, buyer, 2_000, payee)
    worker = await follower(stage)
    await bought.settle()
    await follow(stage, worker, times=2)
    states = [(await b.now()).status for b in (bought, other, same)]
    assert states == ["paid", "presented", "presented"]
    await same.settle()
    await other.settle()
    await follow(stage, worker, times=2)
    assert [(await b.now()).status for b in (bought, other, same)] == ["paid"] * 3
    await (await stage.reconciler()).sweep()
    assert (await stage.balance(seller))["balance"] == "10.001000"


async def test_dust_delays_a_look_and_no_more(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """Goal: what strangers write into a history is read once, so many lines in a look."""
    monkeypatch.setattr(search, "READ_AT_ONCE", 2)
    agent = await stage.agent("10")
    bought = await buy(stage, agent)
    for _ in range(5):
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 1)
    await bought.settle()
    worker = await follower(stage)
    await follow(stage, worker, times=2)
    assert (await bought.now()).status == "presented"
    await follow(stage, worker)
    assert (await bought.now()).status == "paid"


# Not paid ----------------------------------------------------------------------------------------


async def test_what_was_never_submitted_is_unpaid_once_it_is_proven(stage: Stage):
    """Goal: not while it could land, not while a node had too little time to list it; then its
    amount is given back."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent, 1_500_000)
    worker = await follower(stage)
    await stage.pass_blocks()
    await follow(stage, worker)
    assert (await bought.now()).status == "presented"
    await stage.pass_blocks()
    await follow(stage, worker)
    assert await ended(bought) == ("unpaid", "rejected", RejectCode.PURCHASE_EXPIRED)
    assert await events(stage, bought.row.id) == ["purchase.unpaid"]
    assert (await stage.balance(agent))["available"] == "10.000000"
    await books_are_clean(stage)


async def test_one_that_landed_unseen_is_never_buried(stage: Stage):
    """Goal: a node that denies everything proves nothing: its balance is short, or another node
    shows the payment."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent, 1_500_000)
    await bought.settle()
    await past_its_life(stage)
    async with in_front_of(stage.rpc, deny_everything) as liar:
        await follow(stage, await follower(stage, liar), times=2)
        assert (await bought.now()).status == "presented"
        await follow(stage, await follower(stage, liar, stage.rpc.url), times=2)
    assert (await bought.now()).status == "paid"


async def test_a_node_that_does_not_answer_leaves_it_in_doubt(stage: Stage):
    """Goal: every node has to say so."""
    bought = await buy(stage, await stage.agent("10"))
    await past_its_life(stage)
    await follow(stage, await follower(stage, stage.rpc.url, "http://127.0.0.1:1"))
    assert (await bought.now()).status == "presented"
    await follow(stage, await follower(stage))
    assert (await bought.now()).status == "unpaid"


async def test_a_line_that_no_node_shows_means_doubt_until_a_person_looked(stage: Stage):
    """Goal: what cannot be read may be the payment."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent)
    await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)
    await past_its_life(stage)
    hidden: Any = lambda method, result: None if method == "getTransaction" else result  # noqa: E731
    async with in_front_of(stage.rpc, hidden) as address:
        worker = await follower(stage, address)
        await follow(stage, worker, times=2)
        assert (await bought.now()).status == "presented"
        async with stage.db.connection() as tx:
            unread = await tx.fetchrow("SELECT * FROM unread_deposit")
            assert unread is not None
            assert bought.row.id in unread["problem"]
            await tx.execute("UPDATE unread_deposit SET dismissed_at = moment()")
        await follow(stage, worker)
    assert (await bought.now()).status == "unpaid"


async def test_one_that_failed_on_the_chain_is_unpaid_at_once(stage: Stage):
    """Goal: final with an error, it never pays; and a wallet that is short stays so."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent, 6_000_000)
    await stage.take_behind_our_back(agent, 5_000_000)
    await bought.settle(skipPreflight=True)
    await follow(stage, await follower(stage), times=2)
    assert await ended(bought) == ("unpaid", "rejected", RejectCode.PURCHASE_EXPIRED)
    assert "failed on the chain" in ((await bought.now()).problem or "")


async def test_a_wallet_whose_commit_raises_stops_no_other(stage: Stage):
    """Goal: it is set aside; the others are followed."""
    broken, whole = await stage.agent("10"), await stage.agent("10")
    first, second = await buy(stage, broken), await buy(stage, whole)
    await first.settle()
    await second.settle()
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE wallet SET debits_pending = 0 WHERE agent_id = $1", broken["id"])
    worker = await follower(stage)
    await follow(stage, worker)
    assert [(await b.now()).status for b in (first, second)] == ["presented", "paid"]
    async with stage.db.connection() as tx:
        rows = await tx.fetch("SELECT agent_id, duty FROM quarantine")
    assert [(row["agent_id"], row["duty"]) for row in rows] == [(broken["id"], "purchase")]


# Never signed ------------------------------------------------------------------------------------


async def test_an_interrupted_purchase_gives_its_money_back(stage: Stage):
    """Goal: once nobody is at work on it: with a price and without."""
    agent = await stage.agent("10")
    offer = offered(1_500_000, Keypair(), await new_payee(stage))
    early = await open_purchase(stage.db, agent["id"])
    late = await price(stage, await open_purchase(stage.db, agent["id"]), offer)
    assert late.status == "open"
    assert await end_unsigned(stage.db, DAY) == 0
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE purchase SET busy_until = now()")
    assert await end_unsigned(stage.db, DAY) == 2
    async with stage.db.connection() as tx:
        found = await store.get_purchases(tx, [early.id, late.id])
        code = await tx.fetchval("SELECT reject_code FROM spend WHERE id = $1", late.spend_id)
    assert {(row.status, row.failure_code) for row in found} == {("failed", "interrupted")}
    assert code == RejectCode.CANCELLED
    assert await events(stage, early.id) == await events(stage, late.id) == ["purchase.failed"]
    assert (await stage.balance(agent))["available"] == "10.000000"
    await books_are_clean(stage)


async def test_an_approved_purchase_that_nobody_continues_ends(stage: Stage):
    """Goal: a day after its approval, and not before; one that is continued now is left alone."""
    agent = await stage.agent("10")
    limits = {"policy": {"approvalThreshold": "1.00"}}
    assert (await stage.client.patch(f"/v1/agents/{agent['id']}", json=limits)).is_success
    offer = offered(1_500_000, Keypair(), await new_payee(stage))
    purchase = await price(stage, await open_purchase(stage.db, agent["id"]), offer)
    assert purchase.status == "pending"
    async with stage.db.connection() as tx:
        # As an approval does.
        await tx.execute(
            "UPDATE spend SET status = 'approved', decided_by = 'key_1', decided_at = moment()"
            " WHERE id = $1",
            purchase.spend_id,
        )
        await tx.execute("UPDATE wallet SET pending_count = 0 WHERE agent_id = $1", agent["id"])
    assert await end_unsigned(stage.db, DAY) == 0
    async with stage.db.transaction() as tx:
        assert await store.take(tx, purchase.id, 60, ["pending"]) is not None
    assert await end_unsigned(stage.db, 0) == 0
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE purchase SET busy_until = NULL")
    assert await end_unsigned(stage.db, 0) == 1
    async with stage.db.connection() as tx:
        (found,) = await store.get_purchases(tx, [purchase.id])
        code = await tx.fetchval("SELECT reject_code FROM spend WHERE id = $1", purchase.spend_id)
    assert (found.status, found.failure_code) == ("failed", "not_continued")
    assert code == RejectCode.HOLD_EXPIRED
    await books_are_clean(stage)


async def test_a_stop_that_held_purchases_can_call_them_off(stage: Stage):
    """Goal: none is signed any more, and the money is back; one that was signed goes on."""
    agent = await stage.agent("10")
    signed = await buy(stage, agent)
    offer = offered(1_500_000, Keypair(), await new_payee(stage))
    held = await price(stage, await open_purchase(stage.db, agent["id"]), offer)
    stop: dict[str, Any] = {"reason": "a drill", "alsoUnsigned": True}
    assert (await stage.client.post("/v1/stop", json=stop)).is_success
    resumed = await stage.client.post("/v1/resume", json={"unsigned": "cancel"})
    assert resumed.json()["data"]["cancelled"] == 1
    assert await end_unsigned(stage.db, DAY) == 1
    async with stage.db.connection() as tx:
        (found,) = await store.get_purchases(tx, [held.id])
        spend = await tx.fetchrow("SELECT * FROM spend WHERE id = $1", held.spend_id)
    assert (found.status, found.failure_code) == ("failed", "interrupted")
    assert spend is not None
    assert spend["reject_code"] == RejectCode.CANCELLED
    assert (await signed.now()).status == "presented"
    await books_are_clean(stage)


async def test_what_was_signed_is_never_given_up(stage: Stage):
    """Goal: from the signature on only the chain ends it."""
    bought = await buy(stage, await stage.agent("10"))

    async def work(tx: Tx) -> Any:
        return await end.give_up(tx, bought.row, "interrupted", RejectCode.CANCELLED, None)

    assert await stage.db.transact(work) is None
    assert await ended(bought) == ("presented", "approved", None)


# What is kept ------------------------------------------------------------------------------------


async def test_a_new_master_key_opens_what_is_kept_of_purchases(stage: Stage):
    """Goal: the old one is retired, and the header can still be shown."""
    bought = await buy(stage, await stage.agent("10"))
    async with stage.db.connection() as tx:
        before = await secret_store.open_secrets(tx, stage.vault, bought.row.id)
    assert before.header is not None
    await rotate_master(stage.db, stage.config, "operator", "test")
    async with stage.db.connection() as tx:
        assert len(await master_versions(tx)) == 1
        after = await secret_store.open_secrets(tx, stage.vault, bought.row.id)
    assert after.header == before.header


async def test_what_is_kept_of_a_purchase_is_forgotten_after_its_time(stage: Stage):
    """Goal: not before."""
    bought = await buy(stage, await stage.agent("10"))
    assert await forget(stage.config, stage.db, "purchase secrets") == 0
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE purchase_secret SET expires_at = moment()")
    assert await forget(stage.config, stage.db, "purchase secrets") == 1
    async with stage.db.connection() as tx:
        kept = await secret_store.open_secrets(tx, stage.vault, bought.row.id)
    assert kept.header is None


# The audit ---------------------------------------------------------------------------------------

SPENDS = "every purchase is where its spend is, and settlement pays none"
SIGNED = "every purchase was signed once if it was presented, and never otherwise"
EVENTS = "every end of a purchase has its event (of the newest 100,000)"


async def test_the_audit_finds_what_was_done_to_purchases(stage: Stage):
    """Goal: each is found by its question, and the purchase named."""
    agent = await stage.agent("10")
    paid, open_one = await buy(stage, agent), await buy(stage, agent)
    await paid.settle()
    await follow(stage, await follower(stage))
    await books_are_clean(stage)
    payment = (
        "INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination,"
        " leased_until, created_at) SELECT id, 'test', realm_id, agent_id, amount_micros, pay_to,"
        " now(), now() FROM spend WHERE purchase_id = '{}'"
    )
    for statement, question, named in (
        ("UPDATE purchase SET amount_micros = 7 WHERE id = '{}'", SPENDS, paid),
        ("UPDATE purchase SET pay_to = 'thief' WHERE id = '{}'", SPENDS, open_one),
        ("UPDATE spend SET purchase_id = NULL WHERE purchase_id = '{}'", SPENDS, open_one),
        (payment, SPENDS, open_one),
        (
            (
                "ALTER TABLE purchase DROP CONSTRAINT signed_once;"
                " UPDATE purchase SET signature = NULL WHERE id = '{}'"
            ),
            SIGNED,
            paid,
        ),
        ("DELETE FROM event WHERE data LIKE '%\"{}\"%'", EVENTS, paid),
    ):
        found = await tampered(stage, statement.format(named.row.id))
        assert any(named.row.id in line for line in found[question]), (statement, found)


async def tampered(stage: Stage, statement: str) -> dict[str, list[str]]:
    """What the audit says after this was done by one who can switch triggers off; undone again."""
    async with stage.db.connection() as tx:
        transaction = tx.transaction()
        await transaction.start()
        try:
            for table in ("purchase", "spend"):
                await tx.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            await tx.execute(statement)
            return {
                q.text: [row[0] for row in await tx.fetch(q.differs)]
                for q in QUESTIONS
                if "purchase" in q.text
            }
        finally:
            await transaction.rollback()
