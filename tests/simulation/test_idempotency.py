"""One key, one transaction: whoever asks, however often, through whichever process, and whatever
dies between the effect and the answer."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from bursar.config import Mode
from tests.processes import spawn_api
from tests.simulation.wire import Connection, Cut
from tests.simulation.world import HOST, LONG, World, assert_clean, make_agent, seeded
from tests.support import ON_CURVE, error_of, new_account, new_agent, spend

KILLS = 60 if LONG else 5
KEYS_PER_KILL = 40


async def test_a_hundred_identical_requests_through_two_processes(world: World):
    """Goal: one transaction, and a hundred answers that are equal to the byte."""
    key = await world.admin_key()
    connections = [world.connect(key, number) for number in range(100)]
    agent = await make_agent(connections[0])
    await world.service.fund(agent["id"], "100")
    body = {"agentId": agent["id"], "amount": "1.5", "recipient": HOST, "metadata": {"a": "é"}}
    for order in range(5 if LONG else 2):
        answers = await asyncio.gather(
            *(c.request("POST", "/v1/spend/authorise", body, key=f"{order}") for c in connections)
        )
        assert {answer.status for answer in answers} == {201}
        assert len({answer.body for answer in answers}) == 1
        replayed = [answer.headers.get("idempotent-replayed") for answer in answers]
        assert (replayed.count("true"), replayed.count(None)) == (99, 1)
        again = {**body, "amount": "1.50"}
        other = await connections[0].request("POST", "/v1/spend/authorise", again, key=f"{order}")
        # The same amount in other digits is the same request.
        assert (other.status, other.body) == (201, answers[0].body)
    listed = (await connections[0].request("GET", "/v1/transactions")).data
    assert len(listed) == (5 if LONG else 2)
    for connection in connections:
        connection.close()


async def test_a_different_body_is_refused_and_changes_nothing(world: World):
    """Goal: 422 for every field that differs, through the other process too."""
    async with clients(world) as (first, second):
        agent = await new_agent(first)
        await world.service.fund(agent["id"], "100")
        headers = {"Idempotency-Key": "order"}
        made = await spend(first, agent["id"], "1", headers=headers)
        for change in (
            {"amount": "1.000001"},
            {"recipient": "other.example.com"},
            {"memo": "x"},
            {"metadata": {"a": "b"}},
        ):
            body = {"agentId": agent["id"], "amount": "1", "recipient": HOST, **change}
            for client in (first, second):
                answer = await client.post("/v1/spend/authorise", json=body, headers=headers)
                error_of(answer, 422, "idempotency_key_reused")
        assert await ids_of(first) == [made["id"]]


async def test_keys_of_others_never_meet(world: World):
    """Goal: another account, the other mode, another agent and another route each have the key to
    themselves, and never see what it stands for elsewhere."""
    account = new_account()
    headers = {"Idempotency-Key": "the same key"}
    seen: set[str] = set()
    of_others: list[str] = []
    places: list[tuple[Mode, str]] = [("test", account), ("live", account), ("test", new_account())]
    for mode, name in places:
        async with clients(world, name, mode) as (client, other):
            answer = await client.put(f"/v1/recipients/{HOST}", json={"address": ON_CURVE})
            assert answer.status_code == 200, answer.text
            # Twice through each process: the second time it has seen the key, and looks for it.
            for agent_id in of_others * 2:
                body = {"agentId": agent_id, "amount": "1", "recipient": HOST}
                for asking in (client, other):
                    answer = await asking.post("/v1/spend/authorise", json=body, headers=headers)
                    error_of(answer, 404, "not_found")
            agents = [await new_agent(client) for _ in range(2)]
            of_others += [agent["id"] for agent in agents]
            agent_key = ""
            for agent in agents:
                await world.service.fund(agent["id"], "100")
                agent_key = await world.service.key(
                    account=name, mode=mode, scope="agent", agent_id=agent["id"]
                )
                made = await spend(client, agent["id"], "1", headers=headers)
                assert made["status"] == "approved"
                assert made["id"] not in seen
                seen.add(made["id"])
                # The agent's own key, which may leave out the agent, asks for the same.
                async with world.service.client(agent_key) as own:
                    body = {"amount": "1", "recipient": HOST}
                    answer = await own.post("/v1/spend/authorise", json=body, headers=headers)
                    assert answer.json()["data"] == made
                    # A preview stores nothing, so the key means nothing to it.
                    answer = await own.post("/v1/spend/preview", json=body, headers=headers)
                    assert answer.status_code == 200
            # Another agent's key cannot reach it by naming it.
            async with world.service.client(agent_key) as stranger:
                body = {"agentId": agents[0]["id"], "amount": "1", "recipient": HOST}
                answer = await stranger.post("/v1/spend/authorise", json=body, headers=headers)
                error_of(answer, 404, "not_found")
            # Another route, through the other process.
            answer = await other.post(
                "/v1/agents",
                json={"name": "agent", "policy": {"dailyCap": "1", "allowlist": []}},
                headers=headers,
            )
            assert answer.status_code == 201
            assert answer.json()["data"]["id"].startswith("ag_")
    assert len(seen) == 6


async def test_the_other_posts_are_done_once_too(world: World):
    """Goal: making an agent, approving and denying, twenty times at once with one key."""
    async with clients(world) as (first, second):
        headers = {"Idempotency-Key": "x"}
        policy = {"dailyCap": "10", "allowlist": ["*"], "approvalThreshold": "0"}
        body = {"name": "a", "policy": policy}
        made = await at_once(first, second, "/v1/agents", body, headers)
        agent = made["data"]
        assert len((await first.get("/v1/agents")).json()["data"]) == 1
        await world.service.fund(agent["id"], "100")
        for verb, status in (("approve", "approved"), ("deny", "rejected")):
            pending = await spend(first, agent["id"], "1")
            path = f"/v1/transactions/{pending['id']}/{verb}"
            decided = await at_once(first, second, path, {}, headers)
            assert decided["data"]["status"] == status
            # The same key for another transaction is another request.
            pending = await spend(first, agent["id"], "1")
            answer = await second.post(f"/v1/transactions/{pending['id']}/{verb}", headers=headers)
            error_of(answer, 422, "idempotency_key_reused")


@pytest.mark.timeout(1800 if LONG else 900)
async def test_a_killed_process_between_effect_and_answer(world: World):
    """Goal: requests in flight when their process is killed are asked again with the same key, and
    every key has exactly one transaction and one answer."""
    seed, chance = seeded("kill api")
    key = await world.admin_key()
    survivor = world.connect(key)
    agent = await make_agent(survivor, dailyCap="1000.00")
    await world.service.fund(agent["id"], "1000")
    answered: dict[str, bytes] = {}
    cut = kept = 0
    for kill in range(KILLS):
        victim = await spawn_api(world.config)
        requests = [
            (f"{kill}-{n}", f"0.{chance.randrange(1, 10**6):06}") for n in range(KEYS_PER_KILL)
        ]
        lost: list[tuple[str, str]] = []

        async def ask(name: str, amount: str, url: str = victim.url, lost: Any = lost) -> None:
            connection = Connection(url, key)
            body = {"agentId": agent["id"], "amount": amount, "recipient": HOST}
            try:
                answer = await connection.request("POST", "/v1/spend/authorise", body, key=name)
                answered[name] = answer.body
                assert answer.status == 201
            except Cut:
                lost.append((name, amount))
            finally:
                connection.close()

        warm = Connection(victim.url, key)
        for _ in range(5):
            await warm.request("GET", f"/v1/agents/{agent['id']}/budget")
        warm.close()
        async with asyncio.TaskGroup() as group:
            # The moment of the kill is what is tried out, so this is no wait for a condition.
            for request in requests:
                group.create_task(ask(*request))
                await asyncio.sleep(chance.uniform(0, 0.001))
            await asyncio.sleep(chance.uniform(0, 0.003))
            os.kill(victim.process.pid, signal.SIGKILL)
        await victim.process.wait()
        cut += len(lost)
        # Through the other process, each asked twice at once.
        for name, amount in requests:
            body = {"agentId": agent["id"], "amount": amount, "recipient": HOST}
            other = world.connect(key, 1)
            first, second = await asyncio.gather(
                survivor.request("POST", "/v1/spend/authorise", body, key=name),
                other.request("POST", "/v1/spend/authorise", body, key=name),
            )
            other.close()
            assert first.body == second.body, seed
            both = {a.headers.get("idempotent-replayed") for a in (first, second)}
            kept += name not in answered and both == {"true"}
            assert answered.setdefault(name, first.body) == first.body, seed
    async with world.db.connection() as tx:
        spends = await tx.fetchval("SELECT count(*) FROM spend WHERE agent_id = $1", agent["id"])
    print(f"{KILLS} kills, {len(answered)} keys, {cut} answers lost, {kept} of them committed")
    assert spends == len(answered) == KILLS * KEYS_PER_KILL
    assert cut > 0, "no request was in flight at any kill: the test proves nothing"
    survivor.close()
    await assert_clean(world.db)


@asynccontextmanager
async def clients(
    world: World, account: str | None = None, mode: Mode = "test"
) -> AsyncGenerator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """One admin key of a fresh account, at both processes."""
    key = await world.service.key(account=account or new_account(), mode=mode)
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(base_url=world.urls[0], headers=headers, timeout=30) as first,
        httpx.AsyncClient(base_url=world.urls[1], headers=headers, timeout=30) as second,
    ):
        yield first, second


async def at_once(
    first: httpx.AsyncClient,
    second: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str],
) -> dict[str, Any]:
    """The one answer that twenty equal requests get."""
    answers = await asyncio.gather(
        *((first, second)[n % 2].post(path, json=body, headers=headers) for n in range(20))
    )
    assert all(answer.is_success for answer in answers), [answer.text for answer in answers]
    assert len({answer.content for answer in answers}) == 1
    return answers[0].json()


async def ids_of(client: httpx.AsyncClient) -> list[str]:
    return [row["id"] for row in (await client.get("/v1/transactions")).json()["data"]]
