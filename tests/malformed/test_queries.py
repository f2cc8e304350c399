"""Filters, page sizes and cursors that mean nothing are refused, never guessed."""

import httpx
import pytest

from bursar.api.call import Route
from bursar.api.routes import ROUTES
from bursar.form.query import PageSize
from tests.malformed.support import body_of, path_of, route_id
from tests.support import Service, error_of, new_account, new_agent


@pytest.mark.parametrize("route", ROUTES, ids=route_id)
async def test_unknown_and_repeated_parameters_are_refused(service: Service, route: Route):
    """Goal: on every route a parameter is known and given once, or it is named."""
    known = [field.name for field in route.query]
    body = None if route.body is None else body_of(route.body)
    async with await service.admin() as client:
        path = path_of(route)
        answer = await client.request(route.method, f"{path}?zzz=1&LIMIT=1", json=body)
        error = error_of(answer, 400, "validation_error")
        assert [fault["param"] for fault in error["details"]] == ["zzz", "LIMIT"]
        accepted = error["details"][0]["message"].partition("Accepted parameters: ")[2]
        assert accepted == f"{', '.join(known) or 'none'}."
        for name in known:
            twice = f"{path}?{name}=1&{name}=1"
            error = error_of(
                await client.request(route.method, twice, json=body), 400, "validation_error"
            )
            assert name in {fault["param"] for fault in error["details"]}
            (message,) = (
                fault["message"]
                for fault in error["details"]
                if "more than once" in fault["message"]
            )
            assert message.partition("Accepted parameters: ")[2] == f"{', '.join(known)}."


BAD_LIMITS = [
    "0",
    "-1",
    "1.5",
    "abc",
    "",
    "%20",
    "+5",
    "%2B5",
    "1e1",
    "0x5",
    "%EF%BC%95",
    "٣",
    "5%00",
    "5%0A",
    "true",
    "null",
    "99999999999999999999",
    "9" * 5000,
    "[]",
    "1,2",
]


PAGED = [(r, f.kind) for r in ROUTES for f in r.query if isinstance(f.kind, PageSize)]


@pytest.mark.parametrize(("route", "size"), PAGED, ids=[route_id(route) for route, _ in PAGED])
async def test_a_page_size_is_a_whole_number_within_its_bounds(
    service: Service, route: Route, size: PageSize
):
    """Goal: anything but 1 to the maximum is refused, and the message names the maximum."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        path = route.path
        if path.startswith("/v1/webhooks/:id"):
            hook = {"url": "https://example.com/hook", "events": ["*"]}
            made = (await client.post("/v1/webhooks", json=hook)).json()["data"]
            path = path.replace(":id", made["id"])
        path = path.replace(":id", agent["id"]).replace(":agentId", agent["id"])
        for text in [*BAD_LIMITS, str(size.most + 1)]:
            error = error_of(await client.get(f"{path}?limit={text}"), 400, "validation_error")
            assert error["param"] == "limit", text
            if "%00" not in text:
                assert str(size.most) in error["message"], text
        for text in ("1", str(size.most)):
            assert (await client.get(f"{path}?limit={text}")).status_code == 200


BAD_QUERIES = [
    "status=open",
    "status=",
    "status=active&status=active",
    "after=",
    "after=%00",
    "after=!",
    "after=AAAA",
    "after=" + "A" * 200,
    "after=" + "A" * 1001,
    "metadata=",
    "metadata=x",
    "metadata=[]",
    "metadata=null",
    "metadata={}{}",
    'metadata={"a":1}',
    'metadata={"a":"1","a":"2"}',
    "metadata[]=x",
    "metadata[a]=1&metadata[a]=2",
    "metadata[a]=1&metadata={}",
    "metadata={}&metadata={}",
    "metadata[a]=%00",
    "metadata[%00]=1",
    f"metadata[{'k' * 41}]=1",
    f"metadata[k]={'v' * 501}",
    "status[a]=active",
    "limit[]=1",
    "[a]=1",
    "=1",
    "%00=1",
    "metadata[a=1",
    "metadata.a=1",
    "Status=active",
    "%FF=1",
    "status=%FF",
    "status=%ED%A0%80",
    "&".join(f"p{n}=1" for n in range(200)),
    'metadata={"a":"\\u0000"}',
    'metadata={"a":"\\ud800"}',
    "metadata=" + "[" * 500,
]


@pytest.mark.parametrize("query", BAD_QUERIES, ids=[query[:40] for query in BAD_QUERIES])
async def test_a_malformed_query_is_refused(service: Service, query: str):
    """Goal: odd filters, encodings and NUL are 400, never ignored and never a 5xx."""
    async with await service.admin() as client:
        quoted = httpx.QueryParams(query) if '"' in query else query
        error_of(await client.get(f"/v1/agents?{quoted}"), 400, "validation_error")


async def test_a_cursor_is_refused_by_every_list_it_does_not_belong_to(service: Service):
    """Goal: cursors do not travel between lists, filters, agents, modes or tenants."""
    account = new_account()
    async with await service.admin(account=account) as client:
        agents = [await new_agent(client) for _ in range(2)]
        for agent in agents:
            for cap in ("1", "2"):
                await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": cap}})
        first, second = (f"/v1/agents/{agent['id']}/policies" for agent in agents)
        cursor = (await client.get(f"{first}?limit=1")).json()["nextCursor"]
        assert (await client.get(f"{first}?limit=2&after={cursor}")).status_code == 200
        async with (
            await service.admin() as stranger,
            await service.admin(account=account, mode="live") as other_mode,
        ):
            listed = (await client.get("/v1/agents?limit=1")).json()["nextCursor"]
            for asked in (
                client.get(f"{second}?after={cursor}"),
                client.get(f"/v1/agents?after={cursor}"),
                client.get(f"/v1/keys?after={cursor}"),
                client.get(f"{first}?after={listed}"),
                client.get(f"{first}?after={cursor[:-1]}"),
                client.get(f"{first}?after={cursor.swapcase()}"),
                client.get(f"/v1/agents?status=active&after={listed}"),
                client.get(f"/v1/agents?metadata[a]=1&after={listed}"),
                stranger.get(f"/v1/agents?after={listed}"),
                other_mode.get(f"/v1/agents?after={listed}"),
            ):
                assert error_of(await asked, 400, "validation_error")["param"] == "after"
