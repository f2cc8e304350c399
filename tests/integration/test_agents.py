"""Agents over HTTP: what the contract promises of create, read, change and terminate."""

from tests.support import POLICY, Service, error_of, new_agent


async def test_a_new_agent_is_active_with_a_provisioned_wallet(service: Service):
    async with await service.admin() as client:
        answer = await client.post(
            "/v1/agents",
            json={
                "name": "  researcher ",
                "policy": {"dailyCap": "25", "allowlist": ["API.Example.com.", "api.example.com"]},
                "metadata": {"team": "search"},
            },
        )
        assert answer.status_code == 201
        agent = answer.json()["data"]
        assert agent["name"] == "researcher"
        assert agent["status"] == "active"
        assert agent["wallet"]["balance"] == "0.000000"
        assert agent["wallet"]["status"] == "provisioned"
        assert agent["policy"]["dailyCap"] == "25.00"
        assert agent["policy"]["allowlist"] == ["api.example.com"]
        assert agent["policy"]["frozen"] is False
        assert agent["policy"]["version"] == 1
        assert agent["metadata"] == {"team": "search"}
        assert agent["terminatedAt"] is None
        again = await client.get(f"/v1/agents/{agent['id']}")
        assert again.json()["data"] == agent


async def test_a_policy_version_rises_only_with_a_real_change(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client)
        path = f"/v1/agents/{agent['id']}"
        same = await client.patch(path, json={"policy": {"dailyCap": "100.00"}})
        assert same.json()["data"] == agent
        changed = await client.patch(path, json={"policy": {"frozen": True}})
        assert changed.json()["data"]["policy"]["version"] == 2
        stale = await client.patch(path, json={"policy": {"dailyCap": "1", "version": 1}})
        error_of(stale, 409, "policy_version_conflict")
        history = (await client.get(f"{path}/policies")).json()["data"]
        assert [(v["version"], v["frozen"]) for v in history] == [(2, True), (1, False)]


async def test_termination_is_idempotent_and_final(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client)
        path = f"/v1/agents/{agent['id']}"
        first = await client.delete(path)
        second = await client.delete(path)
        assert first.status_code == second.status_code == 200
        assert first.json() == second.json()
        assert first.json()["data"]["status"] == "terminated"
        error_of(await client.patch(path, json={"name": "x"}), 409, "agent_terminated")
        made = await client.post(
            "/v1/keys", json={"name": "k", "scope": "agent", "agentId": agent["id"]}
        )
        error_of(made, 409, "agent_terminated")


async def test_pages_show_every_agent_once(service: Service):
    async with await service.admin() as client:
        made = [await new_agent(client, metadata={"n": str(n % 2)}) for n in range(7)]
        for query, expected in (({}, made), ({"metadata[n]": "1"}, made[1::2])):
            seen: list[str] = []
            after = None
            for _ in range(10):
                page = (
                    await client.get(
                        "/v1/agents",
                        params={**query, "limit": "2", **({"after": after} if after else {})},
                    )
                ).json()
                seen += [agent["id"] for agent in page["data"]]
                after = page["nextCursor"]
                if not page["hasMore"]:
                    break
            assert after is None
            assert seen == [agent["id"] for agent in reversed(expected)]


async def test_a_cursor_is_bound_to_its_filters(service: Service):
    async with await service.admin() as client:
        for _ in range(2):
            await new_agent(client)
        cursor = (await client.get("/v1/agents?limit=1")).json()["nextCursor"]
        other = await client.get("/v1/agents", params={"after": cursor, "status": "active"})
        assert error_of(other, 400, "validation_error")["param"] == "after"
        bad = await client.get("/v1/agents", params={"after": "nonsense"})
        assert error_of(bad, 400, "validation_error")["param"] == "after"


async def test_the_same_key_and_request_make_one_agent(service: Service):
    async with await service.admin() as client:
        body = {"name": "once", "policy": POLICY}
        headers = {"Idempotency-Key": "create-once"}
        first = await client.post("/v1/agents", json=body, headers=headers)
        second = await client.post("/v1/agents", json=body, headers=headers)
        assert second.status_code == 201
        assert second.content == first.content
        assert second.headers["idempotent-replayed"] == "true"
        other = await client.post("/v1/agents", json={**body, "name": "two"}, headers=headers)
        error_of(other, 422, "idempotency_key_reused")
        assert len((await client.get("/v1/agents")).json()["data"]) == 1
