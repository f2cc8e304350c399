"""Purchases and the books: after a failover nothing is signed before all that left is known, and no
outflow is entered twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bursar.chain.sponsored import Sponsored
from bursar.custody import store as custody_store
from bursar.errors import CommandFailed
from bursar.policy.engine import RejectCode
from bursar.purchase import compare, end, outflow_store
from bursar.purchase.compare import OutflowCheck
from bursar.purchase.sign import OutflowsUnknown
from bursar.settlement.adopt import adopt
from bursar.settlement.outside import Outside
from bursar.settlement.reconcile import audit_chain, audit_payments
from bursar_localnet.genesis import TEST_MINT
from tests.settlement.bought import (
    Bought,
    buy,
    countersigned,
    follow,
    follower,
    new_payee,
    note_history,
    offered,
    open_purchase,
    price,
    sign,
)
from tests.settlement.support import Stage, deny_everything, in_front_of, the_truth


async def check_of(stage: Stage, *addresses: str) -> OutflowCheck:
    return OutflowCheck(stage.db, await stage.chain(*addresses), "test")


async def round_of(stage: Stage, check: OutflowCheck) -> None:
    """With every wallet due."""
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE outflows_known SET next_look_at = clock_timestamp()")
    await check.compare()


async def may_sign(stage: Stage, agent: dict[str, Any]) -> bool:
    async with stage.db.connection() as tx:
        return await tx.fetchval(
            "SELECT s.outflows_are_known FROM agent a,"
            " standing_to_sign(a.realm_id, a.id, 'test', NULL) s WHERE a.id = $1",
            agent["id"],
        )


async def problem(stage: Stage, agent: dict[str, Any]) -> str | None:
    async with stage.db.connection() as tx:
        return await tx.fetchval(
            "SELECT problem FROM outflows_known WHERE agent_id = $1", agent["id"]
        )


async def fail_over(stage: Stage, agent: dict[str, Any]) -> None:
    """Noticed, and the wallet asked to buy since."""
    await note_history(stage)
    await stage.fail_over()
    await note_history(stage)
    with pytest.raises(OutflowsUnknown):
        await buy(stage, agent)
    await outflow_store.ask(stage.db, "test", agent["id"])


async def past_the_quiet(stage: Stage) -> None:
    await stage.pass_blocks()
    await stage.pass_blocks()


async def forget(bought: Bought) -> None:
    """What a database that lagged behind does not know: the purchase, its spend, its transfer."""
    async with bought.stage.db.transaction() as tx:
        for table in ("purchase", "spend", "transfer", "wallet"):
            await tx.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        spend = await bought.spend()
        await tx.execute("DELETE FROM purchase_secret WHERE purchase_id = $1", bought.row.id)
        await tx.execute("DELETE FROM purchase WHERE id = $1", bought.row.id)
        await tx.execute("DELETE FROM spend WHERE id = $1", spend["id"])
        await tx.execute("DELETE FROM transfer WHERE subject_id = $1", spend["id"])
        await tx.execute(
            "UPDATE wallet SET debits_pending = debits_pending - $2, transfers = transfers - 1"
            " WHERE agent_id = $1",
            spend["agent_id"],
            spend["amount_micros"],
        )
        for table in ("purchase", "spend", "transfer", "wallet"):
            await tx.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


async def forget_signature(bought: Bought) -> None:
    """As the database was when a person had approved it."""
    async with bought.stage.db.transaction() as tx:
        await tx.execute("ALTER TABLE purchase DISABLE TRIGGER USER")
        await tx.execute(
            "UPDATE purchase SET status = 'pending', raw = NULL, signature = NULL,"
            " fee_payer = NULL, blockhash = NULL, last_valid_height = NULL, signed_slot = NULL,"
            " signed_at = NULL, next_check_at = NULL WHERE id = $1",
            bought.row.id,
        )
        await tx.execute("ALTER TABLE purchase ENABLE TRIGGER USER")
        await tx.execute(
            "DELETE FROM purchase_secret WHERE purchase_id = $1 AND kind = 'header'", bought.row.id
        )


async def paid_and_forgotten(stage: Stage, agent: dict[str, Any]) -> str:
    """A purchase that a failover forgot and its seller submitted; what it may do is over."""
    bought = await buy(stage, agent, 2_000_000)
    await forget(bought)
    await fail_over(stage, agent)
    signature = await bought.settle()
    await past_the_quiet(stage)
    return signature


async def enter(stage: Stage, agent: dict[str, Any], signature: str) -> None:
    await adopt(
        stage.db,
        await stage.chain(),
        mode="test",
        mint=TEST_MINT,
        network="localnet",
        agent_id=agent["id"],
        signature=signature,
    )


# After a failover --------------------------------------------------------------------------------


async def test_a_new_installation_buys_once_the_worker_has_started(stage: Stage):
    """Goal: not before it is noted which history this is; then at once."""
    agent = await stage.agent("10")
    assert not await may_sign(stage, agent)
    await outflow_store.ask(stage.db, "test", agent["id"])
    await note_history(stage)
    assert await may_sign(stage, agent)
    await round_of(stage, await check_of(stage))
    assert await problem(stage, agent) is None


async def test_a_failover_holds_purchases_until_the_history_is_known(stage: Stage):
    """Goal: quiet first, then every line by every node; payments of ours and deposits are known,
    what strangers wrote is read."""
    agent = await stage.agent("10")
    await stage.spend(agent)
    settler = await stage.settler()
    await stage.round(settler, times=2)
    bought, alive = await buy(stage, agent), await buy(stage, agent)
    await bought.settle()
    await follow(stage, await follower(stage))
    await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)
    await fail_over(stage, agent)
    check = await check_of(stage)
    await round_of(stage, check)
    assert "quiet" in (await problem(stage, agent) or "")
    # Presented before the failover, settled by its seller since: known by its signature.
    await alive.settle()
    await past_the_quiet(stage)
    await round_of(stage, check)
    assert await problem(stage, agent) is None
    assert await may_sign(stage, agent)
    await buy(stage, agent)
    await stage.fail_over()
    assert not await may_sign(stage, agent)


async def test_a_forgotten_purchase_that_was_paid_has_to_be_entered(stage: Stage):
    """Goal: nothing is signed beside it; `bursar adopt` puts it right."""
    agent = await stage.agent("10")
    signature = await paid_and_forgotten(stage, agent)
    check = await check_of(stage)
    await round_of(stage, check)
    told = await problem(stage, agent) or ""
    assert signature in told
    assert "2.000000" in told
    assert "bursar adopt" in told
    assert not await may_sign(stage, agent)
    await enter(stage, agent, signature)
    await round_of(stage, check)
    assert await may_sign(stage, agent)
    assert (await stage.balance(agent))["balance"] == "8.000000"


async def test_an_approved_purchase_that_forgot_its_signature_is_not_paid_twice(stage: Stage):
    """Goal: where no memo of ours says what was paid for, price and payee do; what left is entered
    only when the purchase can no longer be signed."""
    await note_history(stage)
    agent = await stage.agent("10")
    await stage.client.patch(
        f"/v1/agents/{agent['id']}", json={"policy": {"approvalThreshold": "0"}}
    )
    facilitator = await stage.rpc.wallet()
    offer = replace(offered(2_000_000, facilitator, await new_payee(stage)), memo="invoice 17")
    pending = await price(stage, await open_purchase(stage.db, agent["id"]), offer)
    approval = f"/v1/transactions/{pending.spend_id}/approve"
    assert (await stage.client.post(approval, json={})).status_code == 200
    # Here the backup is taken that is put back later.
    bought = await sign(stage, agent, pending, offer, facilitator)
    signature = await bought.settle()
    await forget_signature(bought)
    await stage.fail_over()
    await note_history(stage)
    await outflow_store.ask(stage.db, "test", agent["id"])
    await past_the_quiet(stage)
    check = await check_of(stage)
    await round_of(stage, check)
    assert signature in (await problem(stage, agent) or "")
    with pytest.raises(CommandFailed, match=f"may have paid for {pending.id}"):
        await enter(stage, agent, signature)
    await round_of(stage, check)
    assert not await may_sign(stage, agent)
    async with stage.db.transaction() as tx:
        await end.give_up(tx, pending, "not_continued", RejectCode.CANCELLED, "not in time")
    await enter(stage, agent, signature)
    await round_of(stage, check)
    assert await may_sign(stage, agent)
    assert (await stage.balance(agent))["balance"] == "8.000000"


async def test_two_nodes_at_one_host_are_two_witnesses(stage: Stage):
    """Goal: what one of them does not list, the other does."""
    agent = await stage.agent("10")
    signature = await paid_and_forgotten(stage, agent)
    async with in_front_of(stage.rpc, deny_everything, the_truth) as host:
        check = await check_of(stage, f"{host}/0", f"{host}/1")
        for _ in range(2):
            await round_of(stage, check)
    assert not await may_sign(stage, agent)
    assert signature in (await problem(stage, agent) or "")


async def test_a_snapshot_that_was_put_back_is_noticed(stage: Stage, tmp_path: Path):
    """Goal: the database has the same name as before, and has forgotten a purchase that the
    worker's folder knows."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent)
    worker = await follower(stage)
    worker.outside = Outside(tmp_path / "signed")
    await follow(stage, worker)
    await forget(bought)
    restarted = await stage.settler()
    restarted.outside = Outside(tmp_path / "signed")
    await restarted.note_history()
    assert not await may_sign(stage, agent)
    await restarted.note_history()
    assert not await may_sign(stage, agent)
    await outflow_store.ask(stage.db, "test", agent["id"])
    await past_the_quiet(stage)
    await restarted.note_history()
    await round_of(stage, await check_of(stage))
    assert await may_sign(stage, agent)


async def test_another_life_of_the_server_is_looked_at_first(stage: Stage):
    """Goal: it may be a snapshot; a worker has to say that it knows no more."""
    agent = await stage.agent("10")
    await note_history(stage)
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE settlement_watch SET life = 'another'")
    assert not await may_sign(stage, agent)
    await note_history(stage)
    assert await may_sign(stage, agent)


async def test_a_long_history_is_compared_in_several_rounds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Goal: a round is bounded, and the next one goes on."""
    monkeypatch.setattr(compare, "_PAGE", 2)
    monkeypatch.setattr(compare, "_READ_AT_ONCE", 2)
    agent = await stage.agent("10")
    for _ in range(5):
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 1)
    await fail_over(stage, agent)
    await past_the_quiet(stage)
    check = await check_of(stage)
    await round_of(stage, check)
    assert "still being read" in (await problem(stage, agent) or "")
    for _ in range(3):
        await round_of(stage, check)
    assert await may_sign(stage, agent)


async def test_a_line_that_no_node_shows_is_for_a_person(stage: Stage):
    """Goal: it may have taken money; dismissed, it counts as read."""
    agent = await stage.agent("10")
    await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)
    await fail_over(stage, agent)
    await past_the_quiet(stage)
    hidden: Any = lambda method, result: None if method == "getTransaction" else result  # noqa: E731
    async with in_front_of(stage.rpc, hidden) as address:
        check = await check_of(stage, address)
        await round_of(stage, check)
        assert "bursar deposits dismiss" in (await problem(stage, agent) or "")
        async with stage.db.connection() as tx:
            await tx.execute("UPDATE unread_deposit SET dismissed_at = moment()")
        await round_of(stage, check)
    assert await may_sign(stage, agent)


# The books ---------------------------------------------------------------------------------------


async def test_a_purchase_that_is_not_over_is_not_adopted(stage: Stage):
    """Goal: the worker settles it; entered by hand it would be in the books twice."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent)
    signature = await bought.settle()
    with pytest.raises(CommandFailed, match=bought.row.id):
        await enter(stage, agent, signature)
    await follow(stage, await follower(stage))
    with pytest.raises(CommandFailed, match="in the books already"):
        await enter(stage, agent, signature)


async def test_the_audit_of_the_chain_knows_purchases(stage: Stage):
    """Goal: one that landed and is not settled yet is no difference; a settled one is looked up by
    our signature."""
    agent = await stage.agent("10")
    bought = await buy(stage, agent)
    await bought.settle()
    chain = await stage.chain()
    assert (await audit_chain(stage.db, chain, "test")).differences == []
    await follow(stage, await follower(stage))
    for everything in (True, False):
        found = await audit_payments(stage.db, chain, "test", everything=everything)
        assert (found.checked, found.differences) == (1, [])
    async with stage.db.transaction() as tx:
        await tx.execute("ALTER TABLE purchase DISABLE TRIGGER USER")
        await tx.execute("UPDATE purchase SET signature = 'another'")
        await tx.execute("ALTER TABLE purchase ENABLE TRIGGER USER")
    found = await audit_payments(stage.db, chain, "test", everything=True)
    assert found.difference_count == 1
    assert bought.row.id in found.differences[0]


async def test_a_purchase_with_the_memo_of_a_spend_is_not_that_spend(stage: Stage):
    """Goal: a seller may ask for any memo; evidence of ours is what our fee payer paid for."""
    agent = await stage.agent("10")
    await note_history(stage)
    spend_id = await stage.spend(agent)
    await stage.fail_over()
    async with stage.db.connection() as tx:
        payee = await tx.fetchval("SELECT pay_to FROM spend WHERE id = $1", spend_id)
    await stage.rpc("bursar_faucet", payee, 1)
    await pay_for_it(stage, agent, 1_500_000, memo=spend_id, payee=payee)
    settler = await stage.settler()
    await stage.round(settler)
    await stage.pass_blocks()
    await stage.round(settler, times=2)
    async with stage.db.connection() as tx:
        signature = await tx.fetchval("SELECT signature FROM spend WHERE id = $1", spend_id)
    assert [row["signature"] for row in await stage.attempts(spend_id)] == [signature]


async def pay_for_it(
    stage: Stage, agent: dict[str, Any], micros: int, *, memo: str, payee: str
) -> None:
    """What the wallet signed, at a fee that a stranger paid."""
    stranger = await stage.rpc.wallet()
    async with stage.db.connection() as tx:
        keys = await custody_store.wallet_keys(tx, [agent["id"]])
    sponsored = Sponsored(
        amount_micros=micros,
        source=agent["wallet"]["address"],
        destination=payee,
        mint=TEST_MINT,
        decimals=6,
        blockhash=str(await stage.rpc.blockhash()),
        fee_payer=str(stranger.pubkey()),
        memo=memo,
        variation=0,
    )
    signed = await stage.vault.sign_sponsored(sponsored, keys[agent["id"]])
    await stage.rpc.send(countersigned(signed.raw, stranger))
