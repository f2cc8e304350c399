"""/v1/agents/:id/policy/draft: a policy that is tried on what happens."""

import httpx

from bursar.backtest.follow import DraftFollower
from tests.backtest.support import fail, follower
from tests.support import Service, error_of, new_agent, spend


async def test_a_draft_is_followed_and_put_in_force(service: Service, client: httpx.AsyncClient):
    """Goal: each request is decided a second time, also after what came back, and promoting makes
    the next version of exactly what was drafted."""
    agent = await new_agent(client)
    path = f"/v1/agents/{agent['id']}/policy/draft"
    await service.fund(agent["id"], "100")
    before = await spend(client, agent["id"], "9")
    error_of(await client.get(path), 404, "not_found")
    limits = [{"window": "lifetime", "amount": "20.00"}]
    drafted = await client.put(path, json={"limits": limits, "dailyCap": "50.00"})
    assert drafted.status_code == 200, drafted.text
    shown = drafted.json()["data"]
    assert (shown["baseVersion"], shown["policy"]["version"]) == (1, 2)
    assert (shown["policy"]["dailyCap"], shown["decided"]) == ("50.00", 0)
    following = follower(service)
    first = await spend(client, agent["id"], "8")
    second = await spend(client, agent["id"], "8")
    await _follow(following)
    shown = (await client.get(path)).json()["data"]
    # 9 and 8 fit into 20, the next 8 does not.
    assert (shown["decided"], shown["differing"]) == (2, 1)
    assert [one["transactionId"] for one in shown["differences"]] == [second["id"]]
    # What was given back makes room, under the draft as well.
    await fail(service.db, first["id"], agent["id"])
    third = await spend(client, agent["id"], "11")
    fourth = await spend(client, agent["id"], "1")
    await _follow(following)
    shown = (await client.get(path)).json()["data"]
    assert (shown["decided"], shown["differing"]) == (4, 2)
    assert [one["transactionId"] for one in shown["differences"]] == [fourth["id"], second["id"]]
    # A worker that takes over finds the same.
    await _follow(follower(service))
    again = (await client.get(path)).json()["data"]
    assert {**again, "followedUntil": ""} == {**shown, "followedUntil": ""}
    assert [one["status"] for one in (before, third)] == ["approved", "approved"]

    promoted = await client.post(f"{path}/promote")
    assert promoted.status_code == 200, promoted.text
    policy = promoted.json()["data"]["policy"]
    assert (policy["version"], policy["dailyCap"]) == (2, "50.00")
    assert [limit["amount"] for limit in policy["limits"]] == ["20.00"]
    error_of(await client.get(path), 404, "not_found")
    error_of(await client.post(f"{path}/promote"), 404, "not_found")
    refused = await spend(client, agent["id"], "1")
    assert refused["rejectCode"] == "limit_exceeded"


async def test_a_draft_of_an_older_policy_is_not_put_in_force(
    service: Service, client: httpx.AsyncClient
):
    """Goal: nobody's change is overwritten by a draft that did not see it."""
    agent = await new_agent(client)
    path = f"/v1/agents/{agent['id']}/policy/draft"
    assert (await client.put(path, json={"dailyCap": "1.00"})).status_code == 200
    await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": "2.00"}})
    error_of(await client.post(f"{path}/promote"), 409, "policy_version_conflict")
    error_of(
        await client.put(path, json={"dailyCap": "1.00", "version": 1}),
        409,
        "policy_version_conflict",
    )
    again = await client.put(path, json={"dailyCap": "1.00", "version": 2})
    assert again.json()["data"]["baseVersion"] == 2
    assert (await client.delete(path)).status_code == 204
    error_of(await client.delete(path), 404, "not_found")
    assert (await client.put(path, json={"dailyCap": "3.00"})).status_code == 200
    await client.delete(f"/v1/agents/{agent['id']}")
    error_of(await client.put(path, json={"dailyCap": "4.00"}), 409, "agent_terminated")
    error_of(await client.post(f"{path}/promote"), 409, "agent_terminated")


async def test_agents_that_come_under_its_budgets_are_followed_too(
    service: Service, client: httpx.AsyncClient
):
    """Goal: what others use of a shared budget counts, from whenever they share it."""
    limits = [{"window": "lifetime", "amount": "10.00"}]
    made = await client.post("/v1/budgets", json={"name": "all", "limits": limits})
    budget = made.json()["data"]["id"]
    agent = await new_agent(client, budgetId=budget)
    other = await new_agent(client)
    for one in (agent, other):
        await service.fund(one["id"], "100")
    path = f"/v1/agents/{agent['id']}/policy/draft"
    await client.put(path, json={"perTransactionCap": "3.00"})
    following = follower(service)
    await spend(client, agent["id"], "4")
    await _follow(following)
    assert (await client.get(path)).json()["data"]["differing"] == 1
    await client.patch(f"/v1/agents/{other['id']}", json={"budgetId": budget})
    taken = await spend(client, other["id"], "7")
    assert taken["rejectCode"] == "budget_exceeded"
    await _follow(following)
    shown = (await client.get(path)).json()["data"]
    assert (shown["decided"], shown["differing"]) == (1, 2)
    newest = shown["differences"][0]
    assert (newest["agentId"], newest["was"], newest["would"]) == (
        other["id"], "rejected", "approved",
    )  # fmt: skip


async def _follow(following: DraftFollower) -> None:
    while await following.follow():
        pass
