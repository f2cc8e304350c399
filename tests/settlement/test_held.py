"""What a stop with `alsoUnsigned` holds: from its answer on nothing is signed for an agent, and a
person says at the resume whether it is paid."""

import asyncio
from typing import Any

import pytest

from bursar.settlement import submission_store
from bursar.stop import store as stop_store
from tests.settlement.scenarios import NEVER_ARRIVES
from tests.settlement.support import Stage
from tests.simulation.world import assert_clean

STOP = {"reason": "a look at the books", "alsoUnsigned": True}


async def stop(stage: Stage, **fields: Any) -> dict[str, Any]:
    answer = await stage.client.post("/v1/stop", json={**STOP, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def resume(stage: Stage, unsigned: str) -> dict[str, Any]:
    answer = await stage.client.post("/v1/resume", json={"unsigned": unsigned})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def shown(stage: Stage, spend_id: str) -> dict[str, Any]:
    return (await stage.client.get(f"/v1/transactions/{spend_id}")).json()["data"]


async def test_held_and_paid(stage: Stage):
    """Goal: nothing is signed while it stands, another account and a withdrawal are paid, and at
    the resume all is paid once."""
    agent, settler = await stage.agent(), await stage.settler()
    held = [await stage.spend(agent) for _ in range(3)]
    await stop(stage)
    withdrawn = await stage.withdraw(agent)
    async with await stage.service.admin() as other:
        mine, stage.client = stage.client, other
        free = await stage.spend(await stage.agent())
        await stage.round(settler, 3)
        assert await stage.status(free) == "settled"
        stage.client = mine
    assert await stage.status(withdrawn) == "settled"
    for spend_id in held:
        assert await stage.attempts(spend_id) == []
        assert await stage.status(spend_id) == "approved"
    assert (await resume(stage, "pay"))["cancelled"] == 0
    await stage.round(settler, 3)
    for spend_id in held:
        assert await stage.status(spend_id) == "settled"
        assert await stage.made(agent, spend_id) == 1
    await assert_clean(stage.db)


async def test_held_and_cancelled(stage: Stage):
    """Goal: from the answer on none of them is paid; each ends as cancelled and is given back."""
    agents, settler = [await stage.agent() for _ in range(2)], await stage.settler()
    held = [await stage.spend(agent) for agent in agents for _ in range(2)]
    await stop(stage)
    resumed = await resume(stage, "cancel")
    assert resumed["cancelled"] == 4
    later = await stage.spend(agents[0])
    await stage.round(settler, 3)
    for spend_id in held:
        spend = await shown(stage, spend_id)
        assert (spend["status"], spend["rejectCode"]) == ("rejected", "cancelled")
        assert spend["decidedBy"] == resumed["resumedBy"]
        assert await stage.attempts(spend_id) == []
    assert await stage.status(later) == "settled"
    for agent, spent in zip(agents, ("1.500000", "0.000000"), strict=True):
        assert (await stage.balance(agent))["reserved"] == "0.000000"
        budget = (await stage.client.get(f"/v1/agents/{agent['id']}/budget")).json()["data"]
        assert budget["spentToday"] == spent
    await assert_clean(stage.db)


async def test_without_the_flag_nothing_is_held(stage: Stage):
    """Goal: what was approved before a plain stop is paid while it stands, and `cancel` finds
    nothing to cancel."""
    agent, settler = await stage.agent(), await stage.settler()
    first = await stage.spend(agent)
    await stop(stage, alsoUnsigned=False)
    await stage.round(settler, 2)
    assert await stage.status(first) == "settled"
    assert (await resume(stage, "cancel"))["cancelled"] == 0


async def test_what_is_being_signed_when_it_comes(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """Goal: a worker that signed before the stop and stores after it stores and sends nothing; one
    that signed before a resume with `cancel` and stores after that neither."""
    agent, settler = await stage.agent(), await stage.settler()
    for unsigned in ("pay", "cancel"):
        spend_id = await stage.spend(agent)
        stored = submission_store.insert_submissions

        async def late(*args: Any, unsigned: str = unsigned, stored: Any = stored) -> Any:
            monkeypatch.setattr(submission_store, "insert_submissions", stored)
            await stop(stage)
            if unsigned == "cancel":
                await resume(stage, unsigned)
            return await stored(*args)

        monkeypatch.setattr(submission_store, "insert_submissions", late)
        await stage.due()
        await settler.sign()
        assert await stage.attempts(spend_id) == []
        if unsigned == "pay":
            await resume(stage, unsigned)
        await stage.round(settler, 3)
        assert await stage.made(agent, spend_id) == (1 if unsigned == "pay" else 0)
        assert await stage.status(spend_id) == ("settled" if unsigned == "pay" else "rejected")
    await assert_clean(stage.db)


async def test_a_stop_waits_for_what_is_being_stored(stage: Stage):
    """Goal: it is answered only once whoever may still store something signed has done so."""
    await stage.agent()
    async with stage.db.transaction() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent")
        assert await stop_store.may_sign(tx, [realm_id]) == {realm_id}
        stopping = asyncio.create_task(stop(stage))
        async with stage.db.connection() as other:
            while not await other.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock')"
            ):
                assert not stopping.done()
                await asyncio.sleep(0.01)
    await stopping
    async with stage.db.transaction() as tx:
        assert await stop_store.may_sign(tx, [realm_id]) == set()


async def test_what_was_signed_goes_on(stage: Stage):
    """Goal: an attempt that may land is followed to its end; one whose attempt died is held, and
    goes on at the resume even with `cancel`: something was signed for it."""
    agent, settler = await stage.agent(), await stage.settler()
    live, dead = await stage.spend(agent), await stage.spend(agent)
    await stage.faults(NEVER_ARRIVES)
    await settler.sign()
    await stage.faults()
    async with stage.db.connection() as tx:
        raw = await tx.fetchval("SELECT raw FROM submission WHERE payment_id = $1", live)
    chain = await stage.chain()
    await stop(stage)
    await chain.send(raw)
    await stage.next_block()
    # Resending is what a worker would do for both; here the other never leaves.
    await stage.faults(NEVER_ARRIVES)
    await stage.pass_blocks()
    await stage.round(settler, 3)
    await stage.faults()
    assert await stage.status(live) == "settled"
    assert [a["state"] for a in await stage.attempts(dead)] == ["dead"]
    assert await stage.status(dead) == "approved"
    assert (await resume(stage, "cancel"))["cancelled"] == 0
    await stage.round(settler, 3)
    assert await stage.status(dead) == "settled"
    assert await stage.made(agent, dead) == 1
    await assert_clean(stage.db)


async def test_a_forgotten_payment_is_not_cancelled(stage: Stage):
    """Goal: after a failover that forgot an attempt, what was paid is settled although a person
    called it off; what was not is cancelled once the quiet is over."""
    agent, settler = await stage.agent(), await stage.settler()
    made = await stage.spend(agent)
    await settler.sign()
    await stage.next_block()
    await stage.forget_attempts(made)
    unmade = await stage.spend(agent)
    await stage.fail_over()
    await stop(stage)
    assert (await resume(stage, "cancel"))["cancelled"] == 2
    await stage.round(settler)
    assert await stage.status(unmade) == "approved", "it keeps quiet"
    await stage.pass_blocks()
    await stage.round(settler, 2)
    assert await stage.status(made) == "settled"
    assert (await shown(stage, unmade))["rejectCode"] == "cancelled"
    assert await stage.made(agent, made) == 1
    await assert_clean(stage.db)


async def test_called_off_while_stopped_again(stage: Stage):
    """Goal: a stop that comes before the worker has given them back changes nothing for them."""
    agent, settler = await stage.agent(), await stage.settler()
    spend_id = await stage.spend(agent)
    await stop(stage)
    await resume(stage, "cancel")
    await stop(stage)
    await stage.round(settler)
    assert (await shown(stage, spend_id))["rejectCode"] == "cancelled"
    assert (await resume(stage, "cancel"))["cancelled"] == 0
    await assert_clean(stage.db)
