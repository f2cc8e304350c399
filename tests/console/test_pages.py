"""Pages: their headers, what they count as, and news that come by themselves."""

import re

from bursar.console.explorer import explorer
from tests.console.support import Tenant, browser_of, sign_in, token_of
from tests.support import Service, new_account, new_agent, spend


async def test_every_page_is_locked_down(tenant: Tenant):
    """Goal: no inline script or style, nothing from elsewhere, in no frame, in no cache."""
    agent = await new_agent(tenant.api)
    for path in (
        "/console",
        "/console/sign-in",
        "/console/nothing",
        f"/console/agents/{agent['id']}",
    ):
        answer = await tenant.visitor.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        for part in ("default-src 'none'", "script-src 'self'", "form-action 'self'"):
            assert part in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-request-id"]
        assert not re.search(r"<script(?! src)|<style|\sstyle=|\son\w+=", answer.text)
        assert not re.search(r"(src|href|action)=\"(?!/console|\?|#|\")", answer.text)


async def test_static_files_are_kept_by_their_hash(tenant: Tenant):
    page = await tenant.visitor.get("/console")
    assets = set(re.findall(r'"(/console/static/[^"]+)"', page.text))
    assert len(assets) == 3
    for address in assets:
        answer = await tenant.visitor.get(address)
        assert "immutable" in answer.headers["cache-control"]
        await tenant.visitor.get(address, 304, **{"If-None-Match": answer.headers["etag"]})
        plain = await tenant.visitor.get(address.partition("?")[0])
        assert plain.headers["cache-control"] == "no-cache"
    await tenant.visitor.get("/console/static/../app.py", 404)
    await tenant.visitor.get("/console/static/nothing.css", 404)


async def test_a_link_from_another_site_asks_once_more(service: Service):
    """Goal: the browser kept a Strict cookie back; the page must not be mistaken for signed out."""
    async with browser_of(service) as http:
        answer = await http.get(
            "/console/approvals?x=%22%3E", headers={"Sec-Fetch-Site": "cross-site"}
        )
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert 'content="0;url=/console/approvals?x=%22%3E"' in answer.text


def test_public_chains_have_links_to_an_explorer():
    assert explorer("localnet", "tx", "5V") is None
    assert explorer("solana-devnet", "tx", "5V") == (
        "https://explorer.solana.com/tx/5V?cluster=devnet"
    )
    assert explorer("solana-mainnet", "address", "7E") == "https://explorer.solana.com/address/7E"


# Limits and news ----------------------------------------------------------------------------------


async def test_pages_count_as_what_they_stand_for(tenant: Tenant):
    """Goal: the console is no way around a key's limit, and looking on does not use it up."""
    before = int((await tenant.api.get("/v1/webhooks")).headers["ratelimit-remaining"])
    page = await tenant.visitor.get("/console/webhooks")
    mark = re.search(r'data-mark="([^"]+)"', page.text)
    assert mark is not None
    for _ in range(5):
        await tenant.visitor.get("/console/webhooks", 204, **{"Bursar-Mark": mark[1]})
    after = int((await tenant.api.get("/v1/webhooks")).headers["ratelimit-remaining"])
    assert before - after == 2
    for _ in range(after):
        await tenant.visitor.get("/console/webhooks")
    answer = await tenant.visitor.get("/console/webhooks", 429)
    assert int(answer.headers["retry-after"]) >= 1
    assert "A moment, please" in answer.text
    # What was typed is not lost, nor its key.
    form = {"form_token": token_of(page), "once": "k", "url": "https://x.example.com/"}
    answer = await tenant.visitor.http.post(
        "/console/webhooks", data={**form, "events": ["agent.paused", "agent.terminated"]}
    )
    assert answer.status_code == 429
    for field in ('name="once" value="k"', 'value="agent.paused"', 'value="agent.terminated"'):
        assert field in answer.text
    answer = await tenant.visitor.http.post("/console/webhooks", data={"once": "k"})
    assert 'value="k"' not in answer.text, "somebody else's form is not made ours"


async def test_signing_in_counts(service: Service):
    """Goal: it writes to the database, so it is as limited as making a key is."""
    key = await service.key(account=new_account())
    async with service.client(key) as api, browser_of(service) as http:
        limit = {"name": "x"}
        first = await api.post("/v1/keys", json=limit)
        await sign_in(http, key)
        second = await api.post("/v1/keys", json=limit)
    remaining = [int(answer.headers["ratelimit-remaining"]) for answer in (first, second)]
    assert remaining[0] - remaining[1] == 2


async def test_news_come_when_there_are_some(tenant: Tenant):
    agent = await new_agent(tenant.api)
    await tenant.service.fund(agent["id"], "20")
    page = await tenant.visitor.get("/console")
    mark = re.search(r'data-mark="([^"]+)"', page.text)
    assert mark is not None
    header = {"Bursar-Mark": mark[1]}
    await tenant.visitor.get("/console", 204, **header)
    made = await spend(tenant.api, agent["id"], "1")
    news = await tenant.visitor.get("/console", 200, **header)
    assert made["id"] in news.text
    # At most one drawing a second, however fast somebody asks.
    answers = [await tenant.visitor.http.get("/console", headers=header) for _ in range(5)]
    assert {answer.status_code for answer in answers} <= {200, 204}
    assert sum(answer.status_code == 200 for answer in answers) <= 1


async def test_a_mark_is_no_way_around_the_limit(tenant: Tenant):
    """Goal: a page that is drawn counts, unless it is news, once a second for all a session's
    pages; an export and a page that does not renew itself are never news."""
    agent = await new_agent(tenant.api)
    header = {"Bursar-Mark": "whatever"}
    paths = (
        "/console/transactions", "/console/approvals", f"/console/agents/{agent['id']}",
        "/console/agents", "/console",
    )  # fmt: skip
    answers = [await tenant.visitor.http.get(path, headers=header) for path in paths * 2]
    assert sum(answer.status_code == 200 for answer in answers) <= 3
    assert {answer.status_code for answer in answers} == {200, 204}
    for path, stands_for in (
        ("/console/transactions.csv", "/v1/transactions"),
        ("/console/agents/new", "/v1/agents/ag_0"),
        ("/console/keys", "/v1/keys"),
    ):
        method = "PATCH" if path.endswith("new") else "GET"
        before = (await tenant.api.request(method, stands_for)).headers["ratelimit-remaining"]
        for _ in range(3):
            await tenant.visitor.get(path, 200, **header)
        after = (await tenant.api.request(method, stands_for)).headers["ratelimit-remaining"]
        assert int(before) - int(after) == 4, path


async def test_news_need_the_scope_and_count_without_it(tenant: Tenant):
    """Goal: nothing is looked up for a key that may not see it."""
    agent = await new_agent(tenant.api)
    body = {"name": "x", "scope": "agent", "agentId": agent["id"]}
    key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]
    async with browser_of(tenant.service) as http, tenant.service.client(key) as api:
        visitor = await sign_in(http, key)
        for _ in range(3):
            await visitor.get("/console/webhooks", 403, **{"Bursar-Mark": "x"})
        answer = await api.get("/v1/webhooks")
        assert int(answer.headers["ratelimit-remaining"]) == 120 - 4
