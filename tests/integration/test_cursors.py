"""Cursors over HTTP: each belongs to one list, and a bad one is told of before anything else."""

import httpx
import pytest

from bursar.api.routes import ROUTES
from tests.support import ON_CURVE, Service, error_of, new_account, new_agent, spend

NO_AGENT = "ag_00000000000000000000000000"
NO_WEBHOOK = "wh_00000000000000000000000000"


async def filled(service: Service, client: httpx.AsyncClient) -> dict[str, str]:
    """Every list there is, by its route, with at least two rows."""
    agent, hook = {}, {}
    for _ in range(2):
        agent = await new_agent(client)
        hooked = await client.post(
            "/v1/webhooks", json={"url": "https://example.com/hook", "events": ["*"]}
        )
        hook = hooked.json()["data"]
    for number in range(2):
        policy = {"policy": {"dailyCap": f"{number}.00"}}
        assert (await client.patch(f"/v1/agents/{agent['id']}", json=policy)).is_success
        put = f"/v1/recipients/h{number}.example.com"
        assert (await client.put(put, json={"address": ON_CURVE})).is_success
        budget = {"name": "team", "limits": [{"window": "day", "amount": "100"}]}
        assert (await client.post("/v1/budgets", json=budget)).is_success
        key = {"name": "k", "scope": "read"}
        assert (await client.post("/v1/keys", json=key)).is_success
        await spend(client, agent["id"], "1")
        await service.fund(agent["id"], "10")
        # Not visited, because its host is not allowed; so no seller names an address to pin.
        order = {"agentId": agent["id"], "url": "https://elsewhere.example.net/"}
        assert (await client.post("/v1/purchases", json=order)).is_success
        await service.pin(agent["id"], f"https://seller-{number}.example.com:443")
        out = {"amount": "1", "destination": ON_CURVE}
        assert (await client.post(f"/v1/wallets/{agent['id']}/withdraw", json=out)).is_success
    paths: dict[str, str] = {}
    for route in ROUTES:
        if route.is_list:
            path = route.path.replace(":agentId", agent["id"])
            of_hook = path.startswith("/v1/webhooks")
            paths[route.path] = path.replace(":id", hook["id"] if of_hook else agent["id"])
    return paths


async def test_a_cursor_belongs_to_one_list(service: Service):
    """Goal: the unfiltered cursor of each list is taken by that list, and by no other."""
    async with await service.admin() as client:
        paths = await filled(service, client)
        assert len(paths) >= 10
        for source in paths.values():
            cursor = (await client.get(f"{source}?limit=1")).json()["nextCursor"]
            assert (await client.get(f"{source}?after={cursor}")).status_code == 200
            for path in paths.values():
                if path != source:
                    answer = await client.get(f"{path}?after={cursor}")
                    assert error_of(answer, 400, "validation_error")["param"] == "after", path


@pytest.mark.parametrize("path", ["/v1/agents", "/v1/transactions"])
async def test_all_states_are_no_filter(service: Service, path: str):
    """Goal: `status=all` and no status are one list, and share their cursors; other states not."""
    async with await service.admin() as client:
        for _ in range(2):
            await spend(client, (await new_agent(client))["id"], "1")
        for made_by, taken_by in (("", "&status=all"), ("&status=all", "")):
            first = (await client.get(f"{path}?limit=1{made_by}")).json()
            rest = await client.get(f"{path}?limit=1{taken_by}&after={first['nextCursor']}")
            assert rest.status_code == 200
            assert rest.json()["data"] != first["data"]
            other = await client.get(f"{path}?status=rejected&after={first['nextCursor']}")
            error_of(other, 400, "validation_error")


async def test_a_cursor_is_judged_before_its_object(service: Service):
    """Goal: 400 of `after` comes before the 404 of what the list is of, with all other faults."""
    async with await service.admin() as client:
        for route in ROUTES:
            if route.is_list:
                path = route.path.replace(":agentId", NO_AGENT).replace(
                    ":id", NO_WEBHOOK if "webhooks" in route.path else NO_AGENT
                )
                answer = await client.get(f"{path}?limit=0&after=AAAA")
                error = error_of(answer, 400, "validation_error")
                assert [fault["param"] for fault in error["details"]] == ["limit", "after"], path
                if ":" in route.path:
                    error_of(await client.get(path), 404, "not_found")


async def test_a_wrong_filter_is_not_blamed_on_the_cursor(service: Service):
    """Goal: a good cursor beside a filter that is at fault is no fault; a broken one still is."""
    async with await service.admin(account=new_account()) as client:
        for _ in range(2):
            await new_agent(client)
        listed = await client.get("/v1/agents?limit=1&status=active")
        cursor = listed.json()["nextCursor"]
        for after, faults in ((cursor, ["status"]), (cursor + "=", ["status", "after"])):
            answer = await client.get(f"/v1/agents?status=actve&after={after}")
            error = error_of(answer, 400, "validation_error")
            assert [fault["param"] for fault in error["details"]] == faults
