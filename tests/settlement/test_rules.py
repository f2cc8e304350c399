"""The six rules of `settlement/worker.py`, against a real node that can be made to misbehave."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from solders.pubkey import Pubkey

from bursar.custody import store as custody_store
from bursar.db import Database
from bursar.settlement import payment_store
from bursar.settlement.model import MOST_ATTEMPTS
from bursar.settlement.outside import Outside
from bursar.settlement.worker import Settler
from tests.localnet.support import payment as foreign_payment
from tests.processes import until
from tests.settlement import scenarios
from tests.settlement.scenarios import NEVER_ARRIVES, Outcome
from tests.settlement.support import Stage, deny_everything, in_front_of

PAID_ONCE = Outcome(made=1, status="settled", attempts=1)


# 1: stored before sent ---------------------------------------------------------------------------


async def test_a_crash_at_the_commit_pays_once(stage: Stage):
    """Goal: what was signed but not stored was never sent."""
    assert await scenarios.crash_at_the_commit(stage) == PAID_ONCE


@pytest.mark.parametrize("kind", ["spend", "withdrawal"])
async def test_a_crash_before_sending_pays_once(stage: Stage, kind: str):
    """Goal: whoever comes next sends what was stored, and signs nothing."""
    assert await scenarios.crash_before_sending(stage, kind) == PAID_ONCE


async def test_a_crash_after_sending_pays_once(stage: Stage):
    """Goal: whoever comes next finds it on the chain."""
    assert await scenarios.crash_after_sending(stage) == PAID_ONCE


async def test_a_worker_that_overslept_sends_nothing(stage: Stage):
    """Goal: of two workers with the same payment, one signs in vain."""
    assert await scenarios.two_workers_one_payment(stage) == PAID_ONCE


# 2: only a status is believed --------------------------------------------------------------------


async def test_the_race_of_naive_confirm_loops_pays_once(stage: Stage):
    """Goal: landed after the status was read and before the height was: not dead."""
    assert await scenarios.lands_between_status_and_height(stage) == PAID_ONCE


def rule(action: str, *methods: str, **more: Any) -> dict[str, Any]:
    return {"action": action, "methods": list(methods), **more}


@pytest.mark.parametrize(
    "rules",
    [
        [rule("drop", "sendTransaction")],
        [rule("drop", "sendTransaction", at="request", count=2)],
        [rule("duplicate")],
        [rule("delay", "sendTransaction", "getSignatureStatuses", ms=300)],
        [rule("fail", "sendTransaction", httpStatus=503)],
        [rule("fail", "sendTransaction", code=-32002, message="without a reason")],
        [rule("fail", "sendTransaction", code=-32602, message="cannot read this")],
        [rule("fail", "getSignatureStatuses", "getTransaction")],
        [rule("drop", "getTransaction", percent=50), rule("drop", "getEpochInfo", percent=50)],
        [rule("lie", "getSignatureStatuses", claim="failed")],
        [rule("lie", "getTransaction", "getSignaturesForAddress", claim="absent")],
        [NEVER_ARRIVES, rule("lie", "getSignatureStatuses", claim="landed")],
    ],
    ids=lambda rules: "+".join(
        f"{r['action']}-{r.get('at', '')}{len(r['methods'])}" for r in rules
    ),
)
async def test_bad_answers_mean_unknown(stage: Stage, rules: list[dict[str, Any]]):
    """Goal: whatever a node says or does not say, one attempt and one payment."""
    assert await scenarios.bad_answers(stage, *rules) == PAID_ONCE


# 3: final ----------------------------------------------------------------------------------------


async def test_landing_with_an_error_pays_nothing(stage: Stage):
    """Goal: a clear end, the fee noted, the reservation gone, nothing signed again."""
    outcome, reserved = await scenarios.lands_with_an_error(stage)
    assert outcome == Outcome(made=0, status="rejected", attempts=1)
    assert reserved == "0.000000"
    async with stage.db.connection() as tx:
        dead = await tx.fetchrow("SELECT state, outcome, fee_lamports FROM submission")
    assert dead is not None
    assert dead["state"] == "dead"
    assert "InstructionError" in dead["outcome"]
    assert dead["fee_lamports"] > 0


async def test_a_lost_fork_is_sent_again(stage: Stage):
    """Goal: confirmed is not final; the same bytes make it in the end."""
    assert await scenarios.loses_its_fork(stage) == PAID_ONCE


# 4: dead only when it is proven ------------------------------------------------------------------


async def test_a_denied_status_does_not_pay_twice(stage: Stage):
    """Goal: the memo on the source account shows what the status denies."""
    assert await scenarios.denied_by_its_status(stage) == PAID_ONCE


async def test_one_honest_node_is_enough(stage: Stage):
    """Goal: a node that denies everything cannot make us pay twice while another one knows."""
    assert await scenarios.denied_by_one_node(stage) == PAID_ONCE


async def test_a_silent_witness_leaves_it_in_doubt(stage: Stage):
    """Goal: nothing is signed and the reservation stands until every node has spoken."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent, "4")
    await stage.faults(NEVER_ARRIVES)
    await (await stage.settler()).sign()
    await stage.pass_blocks()
    silent = True

    def speak(method: str, result: Any) -> Any:
        return None if silent and method == "getEpochInfo" else result

    async with in_front_of(stage.rpc, speak) as second:
        settler = await stage.settler(stage.rpc.url, second)
        await stage.round(settler, 2)
        (attempt,) = await stage.attempts(payment_id)
        assert (attempt["state"], attempt["in_doubt"]) == ("live", True)
        assert (await stage.balance(agent))["reserved"] == "4.000000"
        await stage.faults()
        silent = False
        await stage.round(settler, 4)
    assert await stage.made(agent, payment_id) == 1
    assert await stage.status(payment_id) == "settled"
    assert [a["state"] for a in await stage.attempts(payment_id)] == ["dead", "settled"]


async def test_a_lagging_node_proves_nothing(stage: Stage):
    """Goal: a history that ends before the expiry says nothing about what came after."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    await (await stage.settler()).sign()
    late = await stage.rpc("getSlot")

    def lag(method: str, result: Any) -> Any:
        """Answers of a pool of nodes, some of which are far behind."""
        if method == "getSignatureStatuses":
            return {"context": {**result["context"], "slot": late}, "value": [None]}
        return deny_everything(method, result)

    await stage.pass_blocks()
    async with in_front_of(stage.rpc, lag) as pool:
        await stage.round(await stage.settler(pool), 3)
    await stage.round(await stage.settler(), 2)
    assert await stage.made(agent, payment_id) == 1
    assert len(await stage.attempts(payment_id)) == 1


async def test_it_may_still_arrive(stage: Stage):
    """Goal: while a blockhash lives, nothing else is signed, so a late arrival pays once."""
    assert await scenarios.arrives_at_last(stage) == PAID_ONCE


# 5: again only when all are dead -----------------------------------------------------------------


async def test_an_expired_attempt_is_signed_again(stage: Stage):
    """Goal: one at a time, each dead before the next, and paid once."""
    young, old, settled = await scenarios.never_arrives(stage)
    assert young == Outcome(made=0, status="approved", attempts=1)
    assert old == Outcome(made=0, status="approved", attempts=2)
    assert settled == Outcome(made=1, status="settled", attempts=2)
    async with stage.db.connection() as tx:
        states = await tx.fetch("SELECT state FROM submission ORDER BY attempt")
    assert [row["state"] for row in states] == ["dead", "settled"]


async def test_ten_expired_attempts_are_enough(stage: Stage):
    """Goal: then it fails, and what was reserved is available again."""
    agent = await stage.agent()
    payment_id = await stage.withdraw(agent, "2")
    settler = await stage.settler()
    await stage.faults(NEVER_ARRIVES)
    await stage.round(settler)
    for number in range(1, MOST_ATTEMPTS + 1):
        assert await stage.status(payment_id) == "pending"
        assert len(await stage.attempts(payment_id)) == number
        await stage.pass_blocks()
        await stage.round(settler, 2)
    await stage.faults()
    await stage.round(settler, 2)
    assert await stage.status(payment_id) == "failed"
    assert len(await stage.attempts(payment_id)) == MOST_ATTEMPTS
    assert await stage.made(agent, payment_id) == 0
    assert (await stage.balance(agent))["available"] == "100.000000"


async def test_a_refusal_is_final_only_after_the_expiry(stage: Stage):
    """Goal: refused by every node, it fails when it can no longer land, and not before."""
    agent = await stage.agent("10")
    payment_id = await stage.spend(agent, "8")
    await stage.take_behind_our_back(agent, 5_000_000)
    settler = await stage.settler()
    await stage.round(settler, 3)
    assert await stage.status(payment_id) == "approved"
    assert (await stage.balance(agent))["reserved"] == "8.000000"
    await stage.pass_blocks()
    await stage.round(settler, 2)
    assert await stage.status(payment_id) == "rejected"
    assert len(await stage.attempts(payment_id)) == 1
    assert await stage.made(agent, payment_id) == 0
    assert (await stage.balance(agent))["reserved"] == "0.000000"


async def test_a_refusal_that_passes_is_no_failure(stage: Stage):
    """Goal: refused for want of money that then comes in: paid, once."""
    assert await scenarios.refused_but_funded_later(stage) == PAID_ONCE


async def test_without_sol_payments_wait(stage: Stage):
    """Goal: an empty fee payer costs no attempt; when it has SOL again, everything is paid."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    accounts, witnesses = settler.chain.accounts, settler.chain.witnesses

    async def empty(addresses: Any) -> Any:
        return dict.fromkeys(await accounts(addresses))

    def empty_ones() -> Any:
        views = witnesses()
        for view in views:
            view.accounts = empty  # type: ignore[method-assign]
        return views

    # No node knows of any SOL.
    settler.chain.accounts = empty  # type: ignore[method-assign]
    settler.chain.witnesses = empty_ones  # type: ignore[method-assign]
    await stage.round(settler, 2)
    assert await stage.attempts(payment_id) == []
    async with stage.db.connection() as tx:
        assert "SOL" in await tx.fetchval("SELECT problem FROM payment WHERE id = $1", payment_id)
    settler.chain.accounts = accounts  # type: ignore[method-assign]
    settler.chain.witnesses = witnesses  # type: ignore[method-assign]
    await stage.round(settler, 2)
    assert await stage.made(agent, payment_id) == 1


# 6: after a failover or a restore ----------------------------------------------------------------


async def test_a_failover_keeps_quiet(stage: Stage):
    """Goal: nothing is signed until whatever was forgotten can no longer land."""
    agent = await stage.agent()
    settler = await stage.settler()
    await stage.spend(agent)
    await stage.round(settler, 2)
    payment_id = await stage.spend(agent)
    await stage.fail_over()
    newest = await stage.rpc("getLatestBlockhash", {"commitment": "confirmed"})
    await stage.round(settler)
    async with stage.db.connection() as tx:
        quiet_until = await tx.fetchval("SELECT quiet_until_height FROM settlement_watch")
    assert quiet_until >= newest["value"]["lastValidBlockHeight"] + 32
    await stage.rpc("bursar_expireBlockhashes")
    await stage.round(settler)
    assert await stage.attempts(payment_id) == []
    await stage.pass_blocks()
    await stage.round(settler, 2)
    assert await stage.made(agent, payment_id) == 1


async def test_a_forgotten_payment_is_found(stage: Stage):
    """Goal: made before the restore, adopted after it, by its memo."""
    outcome = await scenarios.forgotten_and_landed(stage)
    assert outcome == Outcome(made=1, status="settled", attempts=0)


async def test_a_forgotten_payment_on_its_way_is_waited_for(stage: Stage):
    """Goal: it lands while we keep quiet, and is then found."""
    outcome = await scenarios.forgotten_and_on_its_way(stage)
    assert outcome == Outcome(made=1, status="settled", attempts=0)


async def test_a_forgotten_payment_is_found_although_another_attempt_lives(stage: Stage):
    """Goal: an attempt that expires while an older, forgotten one has paid ends in `settled`."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    await stage.faults(NEVER_ARRIVES)
    await settler.sign()
    await stage.faults()
    await stage.next_block()
    await _pay_unknown_to_us(stage, agent, payment_id)
    await stage.faults(NEVER_ARRIVES)
    await stage.pass_blocks()
    await stage.round(settler, 2)
    await stage.faults()
    await stage.round(settler, 2)
    assert await stage.made(agent, payment_id) == 1
    assert await stage.status(payment_id) == "settled"
    assert [a["state"] for a in await stage.attempts(payment_id)] == ["dead"]


async def test_forgotten_payments_of_a_wallet_share_one_reading(stage: Stage):
    """Goal: after a failover a wallet's history is read once for all its payments, made or not."""
    readings: list[str] = []

    def count(method: str, result: Any) -> Any:
        if method == "getSignaturesForAddress":
            readings.append(method)
        return result

    agent = await stage.agent()
    made = [await stage.spend(agent) for _ in range(3)]
    async with in_front_of(stage.rpc, count) as address:
        settler = await stage.settler(address)
        await settler.sign()
        await stage.next_block()
        for payment_id in made:
            await stage.forget_attempts(payment_id)
        unmade = [await stage.spend(agent) for _ in range(3)]
        await stage.fail_over()
        await stage.round(settler)
        await stage.pass_blocks()
        await stage.due()
        await settler.sign()
        # One page with everything, and one that is empty.
        assert len(readings) == 2
        await stage.round(settler, 2)
    for payment_id in (*made, *unmade):
        assert await stage.status(payment_id) == "settled"
        assert await stage.made(agent, payment_id) == 1


QUEUES = {
    "sign": "SELECT leased_until FROM payment WHERE id = $1",
    "follow": "SELECT next_check_at FROM submission WHERE payment_id = $1",
}


@asynccontextmanager
async def claimed(
    stage: Stage, settler: Settler, duty: str, payment_id: str
) -> AsyncGenerator["asyncio.Task[int]"]:
    """While a round waits for the chain with its claim on the payment."""

    async def leased() -> bool:
        long = f"SELECT ({QUEUES[duty]}) > clock_timestamp() + interval '20 s'"
        async with stage.db.connection() as tx:
            return bool(await tx.fetchval(long, payment_id))

    async def waits_for_the_chain() -> bool:
        return (await stage.rpc("bursar_faults"))["struck"].get("delay", 0) > 0 and await leased()

    await stage.due()
    await stage.faults({"action": "delay", "at": "request", "ms": 1_000})
    working = asyncio.create_task(getattr(settler, duty)())
    await until(waits_for_the_chain, seconds=60)
    yield working
    await stage.faults()


async def test_a_worker_that_is_stopped_gives_its_claims_back(stage: Stage):
    """Goal: payments and attempts are free at once for whoever goes on, not after their lease."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    for duty, free_from in QUEUES.items():
        async with claimed(stage, settler, duty, payment_id) as working:
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            async with stage.db.connection() as tx:
                assert await tx.fetchval(f"SELECT ({free_from}) <= clock_timestamp()", payment_id)
        await settler.sign()
    await stage.round(settler, 2)
    assert await stage.status(payment_id) == "settled"
    assert await stage.made(agent, payment_id) == 1


async def test_a_worker_without_a_database_can_be_stopped(stage: Stage):
    """Goal: claims that cannot be given back keep no worker running."""
    payment_id = await stage.spend(await stage.agent())
    settler = await stage.settler()
    assert stage.config.database_url is not None
    for duty in QUEUES:
        lost = await Database.open(stage.config.database_url, 1, 5)
        async with claimed(stage, replace(settler, db=lost), duty, payment_id) as working:
            await lost.close()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
        await stage.due()
        await settler.sign()


async def test_the_oldest_payments_are_served_first(stage: Stage):
    """Goal: claims are in the order of the spends, whatever happened to the rows since."""
    agent = await stage.agent()
    made = [await stage.spend(agent, "0.1") for _ in range(12)]
    for _ in range(3):
        async with stage.db.transaction() as tx:
            # The plan that the server chooses when there are many of them.
            await tx.execute("SET LOCAL enable_nestloop = off")
            claimed = await payment_store.claim_payments(tx, "test", 100)
            assert [payment.id for payment in claimed] == made
        # Each is written anew, the newest first.
        for payment_id in reversed(made):
            async with stage.db.connection() as tx:
                await payment_store.release_payments(tx, [payment_id], 0, None)


async def test_a_strangers_memo_is_not_believed(stage: Stage):
    """Goal: who writes our memo on a payment of his own does not settle ours."""
    assert await scenarios.somebody_writes_its_memo(stage) == PAID_ONCE


async def test_what_was_signed_before_a_failover_is_not_stored_after_it(stage: Stage):
    """Goal: a worker that slept through the failover sends nothing."""
    outcome = await scenarios.stored_after_a_failover(stage)
    assert outcome == Outcome(made=1, status="settled", attempts=0)


async def test_a_wallet_is_not_frozen_for_what_was_forgotten(stage: Stage):
    """Goal: while forgotten payments are looked for, their money is not missing."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    await settler.sign()
    await stage.forget_attempts(payment_id)
    await stage.fail_over()
    await stage.round(settler)
    reconciler = await stage.reconciler()
    for _ in range(4):
        await reconciler.sweep()
    await stage.pass_blocks()
    await stage.round(settler, 2)
    assert await stage.status(payment_id) == "settled"
    shown = (await stage.client.get(f"/v1/agents/{agent['id']}")).json()["data"]
    assert shown["policy"]["frozen"] is False
    async with stage.db.connection() as tx:
        assert await tx.fetchval("SELECT is_frozen FROM wallet") is False


async def _pay_unknown_to_us(stage: Stage, agent: dict[str, Any], payment_id: str) -> None:
    """The payment itself, signed with the wallet's key, without a row of ours."""
    async with stage.db.connection() as tx:
        row = await tx.fetchrow("SELECT amount_micros, destination FROM payment")
    assert row is not None
    await stage.take_behind_our_back(
        agent, row["amount_micros"], memo=payment_id, destination=row["destination"]
    )


# 6, without a word: a snapshot put back -----------------------------------------------------------


async def test_an_attempt_that_only_the_folder_knows_means_restored(stage: Stage, tmp_path: Path):
    """Goal: the process is new, the chain has heard nothing yet, and still nothing is signed before
    the forgotten attempt can no longer land."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = replace(await stage.settler(), outside=Outside(tmp_path / "signed"))
    await stage.faults(NEVER_ARRIVES)
    await settler.sign()
    await stage.faults()
    (forgotten,) = await stage.attempts(payment_id)
    await stage.forget_attempts(payment_id)
    settler = replace(await stage.settler(), outside=Outside(tmp_path / "signed"))
    await stage.round(settler, 3)
    assert await stage.attempts(payment_id) == []
    await settler.chain.send(forgotten["raw"])
    await stage.pass_blocks()
    await stage.round(settler, 3)
    assert await stage.made(agent, payment_id) == 1
    assert await stage.status(payment_id) == "settled"
    # It is noticed once: the next payment does not wait.
    another = await stage.spend(agent)
    await stage.round(settler, 2)
    assert await stage.made(agent, another) == 1


async def test_an_attempt_that_only_the_chain_knows_means_restored(stage: Stage):
    """Goal: no folder and no process remembers; the payment is on the chain and not made again."""
    agent = await stage.agent()
    await stage.spend(agent)
    await stage.round(await stage.settler(), 2)
    await stage.next_block()
    payment_id = await stage.spend(agent)
    await (await stage.settler()).sign()
    assert await stage.made(agent, payment_id) == 1
    await stage.forget_attempts(payment_id)
    settler = await stage.settler()
    await stage.round(settler, 2)
    await stage.pass_blocks()
    await stage.round(settler, 3)
    assert await stage.made(agent, payment_id) == 1
    assert await stage.status(payment_id) == "settled"


async def test_a_stranger_cannot_make_it_look_restored(stage: Stage):
    """Goal: a transfer to the fee payer with the id of a payment as its memo holds nothing up."""
    agent = await stage.agent()
    first = await stage.spend(agent)
    await stage.round(await stage.settler(), 2)
    await stage.next_block()
    async with stage.db.connection() as tx:
        fee_payer = await custody_store.fee_payer_key(tx, "test")
    assert fee_payer is not None
    stranger = await stage.rpc.wallet(micros=1_000_000)
    blockhash = await stage.rpc.blockhash("confirmed")
    await stage.rpc.send(
        foreign_payment(stranger, Pubkey.from_string(fee_payer.address), 1, blockhash, first)
    )
    second = await stage.spend(agent)
    await stage.round(await stage.settler(), 2)
    assert await stage.made(agent, second) == 1
