"""What a wallet is said to be, low, depleted or funded, and the events that say so."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from solders.keypair import Keypair

from bursar.money import parse_micros
from bursar.service.postgres import EmbeddedPostgres
from tests.settlement.stage import Stage, balance, get, running_stage
from tests.support import new_agent, spend


@pytest.fixture(scope="module")
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    async with running_stage(postgres, tmp_path_factory.mktemp("status")) as running:
        yield running


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
