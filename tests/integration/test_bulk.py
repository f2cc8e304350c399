"""One change of many agents."""

import asyncio
from typing import Any

import httpx

from bursar.agent.lifecycle import MOST_AT_ONCE
from bursar.ids import new_id
from tests.integration.test_decisions import read
from tests.support import POLICY, Service, error_of, new_account, new_agent, spend

PAUSE = {"status": "paused"}


async def change(client: httpx.AsyncClient, query: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.patch(f"/v1/agents?{query}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_those_that_match_are_changed(service: Service):
    """Goal: exactly those, each with its version, its events and its line of the audit log; those
    that are so already count as matched only."""
    async with await service.admin() as client:
        search = [await new_agent(client, metadata={"team": "search"}) for _ in range(3)]
        other = await new_agent(client, metadata={"team": "ads"})
        await client.patch(f"/v1/agents/{search[0]['id']}", json=PAUSE)
        await client.delete(f"/v1/agents/{search[2]['id']}")
        wanted = {"status": "paused", "policy": {"dailyCap": "7.00"}}
        assert await change(client, "metadata[team]=search", wanted) == {
            "matched": 2, "changed": 2,
        }  # fmt: skip
        assert await change(client, "metadata[team]=search", wanted) == {
            "matched": 2, "changed": 0,
        }  # fmt: skip
        for agent in search[:2]:
            shown = await read(client, f"/v1/agents/{agent['id']}")
            assert (shown["status"], shown["policy"]["dailyCap"]) == ("paused", "7.00")
            assert shown["policy"]["version"] == 2
            assert (await spend(client, agent["id"], "1"))["rejectCode"] == "agent_paused"
        ended = await read(client, f"/v1/agents/{search[2]['id']}")
        assert (ended["status"], ended["policy"]["version"]) == ("terminated", 1)
        assert (await read(client, f"/v1/agents/{other['id']}"))["status"] == "active"
        told = [event["type"] for event in await read(client, "/v1/events?limit=100")]
        assert told.count("agent.policy_updated") == 2
        assert told.count("agent.paused") == 2
        kept = [
            (line["before"]["policy"]["dailyCap"], line["after"]["policy"]["dailyCap"])
            for line in await read(client, "/v1/audit-log")
            if line["action"] == "agent.changed" and line["subject"] == search[1]["id"]
        ]
        assert kept == [("100.00", "7.00")]


async def test_filters(service: Service):
    """Goal: status, one pair and several pairs narrow together; labels follow a change."""
    async with await service.admin() as client:
        for team, tier in (("a", "gold"), ("a", "iron"), ("b", "gold")):
            await new_agent(client, metadata={"team": team, "tier": tier})
        found = {
            "status=active": 3,
            "status=paused": 0,
            "metadata[team]=a": 2,
            "metadata[team]=a&metadata[tier]=gold": 1,
            'metadata={"tier":"gold"}': 2,
            "metadata[team]=c": 0,
            "status=paused&metadata[team]=a": 0,
        }
        for query, matched in found.items():
            assert await change(client, query, {}) == {"matched": matched, "changed": 0}
        moved = await change(client, "metadata[team]=a", {"metadata": {"team": "b"}})
        assert moved == {"matched": 2, "changed": 2}
        assert (await change(client, "metadata[team]=b", {}))["matched"] == 3


async def test_those_under_a_budget(service: Service):
    """Goal: the agents directly under it, in the list and in a change of many; they can be moved on
    to another one."""
    async with await service.admin() as client:
        limits = [{"window": "day", "amount": "5.00"}]
        made = await client.post("/v1/budgets", json={"name": "all", "limits": limits})
        above = made.json()["data"]["id"]
        made = await client.post(
            "/v1/budgets", json={"name": "crew", "limits": limits, "parentId": above}
        )
        below = made.json()["data"]["id"]
        gold = await new_agent(client, metadata={"tier": "gold"}, budgetId=below)
        iron = await new_agent(client, metadata={"tier": "iron"}, budgetId=below)
        top = await new_agent(client, metadata={"tier": "gold"}, budgetId=above)
        await new_agent(client, metadata={"tier": "gold"})
        for query, found in (
            (f"budgetId={below}", [iron, gold]),
            (f"budgetId={below}&metadata[tier]=gold", [gold]),
            (f"budgetId={below}&status=paused", []),
            (f"budgetId={above}", [top]),
            (f"budgetId={new_id('bud')}", []),
        ):
            listed = (await client.get(f"/v1/agents?{query}")).json()["data"]
            assert [agent["id"] for agent in listed] == [agent["id"] for agent in found]
            assert (await change(client, query, {}))["matched"] == len(found)
        moved = await change(client, f"budgetId={below}", {"budgetId": above})
        assert moved == {"matched": 2, "changed": 2}
        assert (await change(client, f"budgetId={above}", PAUSE))["changed"] == 3


async def test_without_a_filter_nothing_happens(service: Service):
    """Goal: no slip of the hand changes everybody."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        for query in ("", "?status=all", "?metadata={}"):
            answer = await client.patch(f"/v1/agents{query}", json=PAUSE)
            error_of(answer, 400, "validation_error")
        for query in ("?name=x", "?limit=1", "?status=terminated", "?status=active&status=active"):
            error_of(await client.patch(f"/v1/agents{query}", json=PAUSE), 400, "validation_error")
        answer = await client.patch("/v1/agents?status=active", json={"status": "terminated"})
        error_of(answer, 400, "validation_error")
        assert (await read(client, f"/v1/agents/{agent['id']}"))["status"] == "active"


async def test_all_or_nothing(service: Service):
    """Goal: one that saw another version keeps all of them as they are."""
    async with await service.admin() as client:
        first, second = [await new_agent(client) for _ in range(2)]
        await client.patch(f"/v1/agents/{second['id']}", json={"policy": {"dailyCap": "5.00"}})
        body = {"status": "paused", "policy": {"dailyCap": "7.00", "version": 1}}
        answer = await client.patch("/v1/agents?status=active", json=body)
        assert second["id"] in error_of(answer, 409, "policy_version_conflict")["message"]
        assert await read(client, f"/v1/agents/{first['id']}") == first


async def test_an_approver_may_only_stop_them(service: Service):
    account = new_account()
    async with await service.admin(account=account) as admin:
        await new_agent(admin)
        key = await service.key(account=account, scope="approver")
        async with service.client(key) as approver:
            body = {"policy": {"dailyCap": "0"}}
            answer = await approver.patch("/v1/agents?status=active", json=body)
            error_of(answer, 403, "forbidden")
            assert await change(approver, "status=active", PAUSE) == {"matched": 1, "changed": 1}


async def test_a_thousand_and_no_more(service: Service):
    """Goal: 1,000 agents in one commit, of this account alone; one more: 409, nothing changed."""
    async with await service.admin() as client:
        model = await new_agent(client, metadata={"team": "search"})
        await _copy(service, model["id"], MOST_AT_ONCE)
        body = {"status": "paused", "policy": {"dailyCap": "7.00"}}
        answer = await client.patch("/v1/agents?metadata[team]=search", json=body)
        assert "1,000" in error_of(answer, 409, "limit_reached")["message"]
        assert (await change(client, "status=paused", {}))["matched"] == 0
        await client.delete(f"/v1/agents/{model['id']}")
        done = await change(client, "metadata[team]=search", body)
        assert done == {"matched": MOST_AT_ONCE, "changed": MOST_AT_ONCE}


async def _copy(service: Service, agent_id: str, count: int) -> None:
    """So many agents like this one; to make them one by one would take longer than the test."""
    own = {"agent": "id", "policy": "agent_id", "wallet": "agent_id", "agent_label": "agent_id"}
    unique = {"policy_id": "'pol_' || substr(n.id, 4)", "address": "t.address || n.id"}
    ids = [new_id("ag") for _ in range(count)]
    async with service.db.transaction() as tx:
        for table, key in own.items():
            names = [
                row["column_name"]
                for row in await tx.fetch(
                    "SELECT column_name FROM information_schema.columns WHERE table_name = $1",
                    table,
                )
            ]
            values = ", ".join("n.id" if n == key else unique.get(n, f"t.{n}") for n in names)
            await tx.execute(
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {values}"
                f" FROM {table} t, unnest($2::text[]) AS n (id) WHERE t.{key} = $1",
                agent_id,
                ids,
            )


async def test_a_change_that_comes_first(service: Service):
    """Goal: bulk changes and changes of single agents at once take turns; none is lost, and none
    of those that stopped matching meanwhile is touched."""
    async with await service.admin() as client:
        agents = [await new_agent(client, metadata={"team": "a"}) for _ in range(8)]
        moves = [
            client.patch(f"/v1/agents/{agent['id']}", json={"metadata": {"team": "b"}})
            for agent in agents
        ]
        bulk = [
            client.patch(
                "/v1/agents?metadata[team]=a", json={"policy": {**POLICY, "dailyCap": cap}}
            )
            for cap in ("1.00", "2.00", "3.00")
        ]
        answers = await asyncio.gather(*moves, *bulk)
        assert {answer.status_code for answer in answers} == {200}
        changed = sum(answer.json()["data"]["changed"] for answer in answers[len(moves) :])
        versions = [
            (await read(client, f"/v1/agents/{agent['id']}"))["policy"]["version"]
            for agent in agents
        ]
        assert sum(versions) - len(agents) == changed
        assert (await change(client, "metadata[team]=b", {}))["matched"] == len(agents)
