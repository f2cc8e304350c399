"""One wallet whose commit raises stops no other: it is set aside, seen, and taken back once it is
well."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from solders.keypair import Keypair

from bursar.db import Database
from bursar.spend.approve import expire_spends
from tests.settlement.support import Stage, in_front_of, nothing_there
from tests.support import new_agent, spend

_STEPS = {
    # What approves a spend makes its payment; signing makes that live; settling moves the wallet's
    # counters; a wallet that is short is held.
    "approving": ("INSERT ON payment", "NEW.agent_id = '{}'"),
    "signing": (
        "UPDATE ON payment",
        "OLD.agent_id = '{}' AND NEW.state = 'live' AND OLD.state = 'waiting'",
    ),
    "settling": (
        "UPDATE ON wallet",
        "OLD.agent_id = '{}' AND NEW.debits_posted <> OLD.debits_posted",
    ),
    "stopping": ("UPDATE ON wallet", "OLD.agent_id = '{}' AND NEW.is_frozen <> OLD.is_frozen"),
    "expiring": ("UPDATE ON spend", "OLD.agent_id = '{}' AND NEW.status = 'rejected'"),
}


@asynccontextmanager
async def poisoned(db: Database, agent: dict[str, Any], what: str) -> AsyncGenerator[None]:
    """The database refuses one step for one wallet, as it would a row that is broken."""
    event, when = _STEPS[what]
    async with db.transaction() as tx:
        await tx.execute(
            "CREATE OR REPLACE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation'; END $$"
        )
        await tx.execute(
            f"CREATE TRIGGER poison BEFORE {event} FOR EACH ROW"
            f" WHEN ({when.format(agent['id'])}) EXECUTE FUNCTION poison()"
        )
    try:
        yield
    finally:
        async with db.transaction() as tx:
            await tx.execute(
                f"DROP TRIGGER poison {event.removeprefix('INSERT ').removeprefix('UPDATE ')}"
            )


async def try_again(db: Database) -> None:
    """As if the pause of what is set aside had passed."""
    async with db.connection() as tx:
        await tx.execute("UPDATE quarantine SET next_try_at = clock_timestamp()")


async def set_aside(db: Database) -> list[tuple[str, str, int]]:
    async with db.connection() as tx:
        rows = await tx.fetch("SELECT agent_id, duty, tries FROM quarantine")
    return [(row["agent_id"], row["duty"], row["tries"]) for row in rows]


async def test_a_spend_that_cannot_become_a_payment_stops_no_other(stage: Stage):
    """Goal: of spends that are decided in one go, those of the others are approved and settle; the
    bad one is not approved, because what is approved is paid."""
    bad, *others = [await stage.agent() for _ in range(4)]
    settler = await stage.settler()
    asked = [agent for agent in (bad, *others) for _ in range(5)]
    async with poisoned(stage.db, bad, "approving"):
        answers = await asyncio.gather(*(stage.ask(agent) for agent in asked))
        assert [answer.status_code for answer in answers] == [500] * 5 + [201] * 15
        await stage.round(settler, times=3)
        healthy = [answer.json()["data"]["id"] for answer in answers[5:]]
        assert [await stage.status(one) for one in healthy] == ["settled"] * len(healthy)
    assert (await stage.balance(bad))["reserved"] == "0.000000"
    repaired = await stage.spend(bad)
    await stage.round(settler, times=3)
    assert await stage.status(repaired) == "settled"


@pytest.mark.parametrize("step", ["signing", "settling"])
async def test_a_wallet_whose_commit_raises_stops_no_other(stage: Stage, step: str):
    """Goal: every payment of the others settles in the same rounds; the bad one is tried again, and
    settles by itself when its wallet is repaired."""
    bad = await stage.agent()
    others = [await stage.agent() for _ in range(3)]
    settler = await stage.settler()
    async with poisoned(stage.db, bad, step):
        stuck = [await stage.spend(bad) for _ in range(2)]
        healthy = [await stage.spend(agent) for agent in others for _ in range(2)]
        await stage.round(settler, times=3)
        assert [await stage.status(one) for one in healthy] == ["settled"] * len(healthy)
        assert {await stage.status(one) for one in stuck} == {"approved"}
        assert await set_aside(stage.db) == [(bad["id"], "settle", 1)]
        ready = (await stage.client.get("/readyz")).json()["workers"]
        assert ready["test"] == "starting; wallets set aside: 1"

        # The next payments do not meet it: it waits, however often others are paid.
        later = [await stage.spend(agent) for agent in others]
        await stage.round(settler, times=2)
        assert [await stage.status(one) for one in later] == ["settled"] * len(later)
        assert await set_aside(stage.db) == [(bad["id"], "settle", 1)]
        # Tried again, alone, it makes way again.
        await try_again(stage.db)
        last = await stage.spend(others[0])
        await stage.round(settler, times=2)
        assert await stage.status(last) == "settled"
        assert await set_aside(stage.db) == [(bad["id"], "settle", 2)]
    await try_again(stage.db)
    await stage.round(settler, times=2)
    await try_again(stage.db)
    await stage.round(settler, times=2)
    assert {await stage.status(one) for one in stuck} == {"settled"}
    for one in stuck:
        assert await stage.made(bad, one) == 1
    assert await set_aside(stage.db) == []


async def test_a_stop_that_raises_stops_no_other(stage: Stage):
    """Goal: of two wallets that are short the one that can be held is held in the same sweep, and
    released as soon as it is whole; the other is set aside, and held once it is well."""
    bad, good = [await stage.agent() for _ in range(2)]
    async with in_front_of(stage.rpc, nothing_there) as liar:
        misled = await stage.reconciler(liar)
        async with poisoned(stage.db, bad, "stopping"):
            for _ in range(4):
                await misled.sweep()
            assert await held(stage.db) == {good["id"]}
            assert await set_aside(stage.db) == [(bad["id"], "stop", 1)]
        await try_again(stage.db)
        await misled.sweep()
        assert await held(stage.db) == {bad["id"], good["id"]}
        assert await set_aside(stage.db) == []
    reconciler = await stage.reconciler()
    async with poisoned(stage.db, bad, "stopping"):
        for _ in range(4):
            await reconciler.sweep()
        assert await held(stage.db) == {bad["id"]}
        assert await set_aside(stage.db) == [(bad["id"], "stop", 1)]
    await try_again(stage.db)
    await reconciler.sweep()
    assert await held(stage.db) == set()


async def held(db: Database) -> set[str]:
    async with db.connection() as tx:
        rows = await tx.fetch("SELECT agent_id FROM wallet WHERE is_frozen")
    return {row["agent_id"] for row in rows}


async def test_an_expiry_that_raises_stops_no_other(stage: Stage):
    """Goal: pending spends of the others expire in the same round."""
    policy = {"dailyCap": "100.00", "allowlist": ["*"], "approvalThreshold": "0.00"}
    agents = [await new_agent(stage.client, policy=policy) for _ in range(3)]
    made: list[str] = []
    for agent in agents:
        answer = await stage.client.post(
            f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "10"}
        )
        assert answer.status_code == 201, answer.text
        asked = await spend(stage.client, agent["id"], "1", recipient=str(Keypair().pubkey()))
        assert asked["status"] == "pending"
        made.append(asked["id"])
    # The bad one is the first to expire.
    async with stage.db.transaction() as tx:
        for number, one in enumerate(made):
            await tx.execute(
                "UPDATE spend SET expires_at = created_at + $2 * interval '1 ms' WHERE id = $1",
                one,
                number,
            )
    bad = agents[0]
    async with poisoned(stage.db, bad, "expiring"):
        assert await expire_spends(stage.db) == 2
        assert [await stage.status(one) for one in made] == ["pending", "rejected", "rejected"]
        assert await set_aside(stage.db) == [(bad["id"], "expire", 1)]
        assert await expire_spends(stage.db) == 0
    await try_again(stage.db)
    assert await expire_spends(stage.db) == 1
    assert await stage.status(made[0]) == "rejected"
    assert await set_aside(stage.db) == []
