"""The console over plain HTTP: sessions, forms, headers, limits and what each key may reach."""

import html
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from bursar.access.store import lock_idempotency_key
from bursar.clock import SystemClock
from bursar.config import Config
from bursar.console import store
from bursar.console.screens import SCREENS
from bursar.http.routes import ROUTES
from bursar.service.api import Api
from bursar.service.postgres import EmbeddedPostgres
from tests.databases import own_database
from tests.support import ON_CURVE, Service, new_account, new_agent, spend

HOSTILE = """"><script>alert(1)</script>'{{ 7*7 }}"""


@dataclass
class Visitor:
    """A browser without a screen: keeps cookies, reads form tokens."""

    http: httpx.AsyncClient

    async def get(self, path: str, status: int = 200, **headers: str) -> httpx.Response:
        answer = await self.http.get(path, headers=headers)
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        return answer

    async def post(self, path: str, page: str, status: int = 303, **fields: str) -> httpx.Response:
        """Sends a form with the token of a page that has one."""
        token = token_of(await self.get(page))
        answer = await self.http.post(path, data={"form_token": token, **fields})
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        return answer


def token_of(answer: httpx.Response) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', answer.text)
    assert found is not None, answer.text[:500]
    return found[1]


def browser_of(service: Service) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=service.url, timeout=30, verify=False)


async def sign_in(http: httpx.AsyncClient, key: str) -> Visitor:
    visitor = Visitor(http)
    answer = await visitor.post("/console/sign-in", "/console/sign-in", key=key)
    assert answer.headers["location"] == "/console"
    return visitor


@dataclass
class Tenant:
    service: Service
    account: str
    api: httpx.AsyncClient
    visitor: Visitor


@pytest.fixture
async def tenant(service: Service) -> AsyncGenerator[Tenant]:
    account = new_account()
    async with await service.admin(account=account) as api, browser_of(service) as http:
        key = api.headers["Authorization"].removeprefix("Bearer ")
        yield Tenant(service, account, api, await sign_in(http, key))


# Sessions -----------------------------------------------------------------------------------------


async def test_a_session_is_a_hash_and_a_key_id(service: Service, tenant: Tenant):
    """Goal: nothing in the database lets anybody in, and the cookie is out of reach."""
    answer = await tenant.visitor.http.get("/console/sign-in")
    assert answer.status_code == 303, "whoever is signed in need not sign in"
    (cookie,) = tenant.visitor.http.cookies.jar
    assert (cookie.name, cookie.path) == ("bursar_console", "/console")
    async with browser_of(service) as http:
        page = await http.get("/console/sign-in")
        kept = page.headers["set-cookie"]
        assert "HttpOnly" in kept
        assert "SameSite=Strict" in kept
        assert "Path=/console" in kept
        assert "Secure" not in kept
    async with browser_of(service) as http:
        behind = await http.get("/console/sign-in", headers={"X-Forwarded-Proto": "https"})
        assert behind.headers["set-cookie"].endswith("; Secure")
    async with service.db.read() as tx:
        rows = await tx.fetch("SELECT * FROM console_session")
        trail = await tx.fetchval(
            "SELECT count(*) FROM audit_log WHERE action = 'console.signed_in'"
        )
    assert trail >= 1
    key = tenant.api.headers["Authorization"].removeprefix("Bearer ")
    assert cookie.value is not None
    for row in rows:
        assert cookie.value not in str(dict(row))
        assert key not in str(dict(row))


async def test_signing_in_changes_the_token(service: Service):
    """Goal: a token that somebody planted before is worth nothing after."""
    async with await service.admin() as api, browser_of(service) as http:
        page = await http.get("/console/sign-in")
        before = http.cookies["bursar_console"]
        key = api.headers["Authorization"].removeprefix("Bearer ")
        await http.post("/console/sign-in", data={"form_token": token_of(page), "key": key})
        assert http.cookies["bursar_console"] != before
        async with browser_of(service) as planted:
            planted.cookies.set("bursar_console", before, path="/console")
            assert (await planted.get("/console")).status_code == 303


@pytest.mark.parametrize("key", ["", "bur_test_x", "é", "Bearer", "bur_live_" + "0" * 38])
async def test_a_wrong_key_is_refused(service: Service, key: str):
    async with browser_of(service) as http:
        await Visitor(http).post("/console/sign-in", "/console/sign-in", 401, key=key)


async def test_a_revoked_key_ends_its_sessions_at_once(tenant: Tenant, service: Service):
    made = (await tenant.api.post("/v1/keys", json={"name": "x", "scope": "read"})).json()["data"]
    async with browser_of(service) as http:
        guest = await sign_in(http, made["key"])
        await guest.get("/console/agents")
        await tenant.visitor.post(f"/console/keys/{made['id']}/revoke", "/console/keys")
        answer = await guest.get("/console/agents", 303)
        assert answer.headers["location"].startswith("/console/sign-in?ended=1&next=")
        await guest.get("/console/agents", 401, **{"Bursar-Mark": "x"})


async def test_a_session_ends(tenant: Tenant, service: Service):
    """Goal: after its time, and by signing out, it is gone from the database too."""
    await tenant.visitor.get("/console")
    await tenant.visitor.post("/console/sign-out", "/console")
    await tenant.visitor.get("/console", 303)
    async with service.db.read() as tx:
        assert await tx.fetchval(
            "SELECT count(*) FROM console_session s JOIN api_key k ON k.id = s.key_id"
            " JOIN realm r ON r.id = k.realm_id JOIN account a ON a.id = r.account_id"
            " WHERE a.name = $1",
            tenant.account,
        ) == 0  # fmt: skip


async def test_a_key_has_a_bounded_number_of_sessions(tenant: Tenant, service: Service):
    key = tenant.api.headers["Authorization"].removeprefix("Bearer ")
    for _ in range(20):
        async with browser_of(service) as http:
            await sign_in(http, key)
    await tenant.visitor.get("/console", 303)


async def test_the_database_is_away(postgres: EmbeddedPostgres, config: Config, localnets: None):
    """Goal: a page that says so, and no traceback."""
    async with own_database(postgres) as (dsn, db):
        own = replace(config, database_url=dsn, database_timeout_seconds=1)
        database = urlsplit(dsn).path.removeprefix("/")
        api = await Api.start(own, SystemClock())
        service = Service(f"http://127.0.0.1:{api.port}", own, db)
        try:
            async with browser_of(service) as http:
                visitor = await sign_in(http, await service.key(account=new_account()))
                await visitor.get("/console")
                admin = await asyncpg.connect(postgres.admin_dsn)
                await admin.execute(f"ALTER DATABASE {database} CONNECTION LIMIT 0")
                await admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
                    database,
                )
                await admin.close()
                page = await visitor.get("/console", 503)
                assert "Out of reach for a moment" in page.text
                assert "Traceback" not in page.text
        finally:
            await api.stop()


# Forms --------------------------------------------------------------------------------------------


def _concrete(path: str) -> str:
    return path.replace(":id", "ag_00000000000000000000000000")


@pytest.mark.parametrize("screen", [s for s in SCREENS if s.method == "POST"], ids=lambda s: s.path)
async def test_no_form_without_its_token(tenant: Tenant, screen: Any):
    """Goal: another site can make a browser send a form, but not one that acts."""
    for token in ({}, {"form_token": "0" * 64}, {"form_token": HOSTILE}):
        answer = await tenant.visitor.http.post(_concrete(screen.path), data=token)
        assert answer.status_code == 403
        assert "nothing was changed" in answer.text
    async with browser_of(tenant.service) as http:
        answer = await http.post(_concrete(screen.path), data={})
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/console/sign-in")


async def test_sign_in_and_sign_out_need_a_token_too(tenant: Tenant, service: Service):
    key = tenant.api.headers["Authorization"].removeprefix("Bearer ")
    async with browser_of(service) as http:
        assert (await http.post("/console/sign-in", data={"key": key})).status_code == 403
        assert "bursar_console" in http.cookies
        assert (await http.get("/console")).status_code == 303
    assert (await tenant.visitor.http.post("/console/sign-out", data={})).status_code == 403
    await tenant.visitor.get("/console")


async def test_a_form_that_is_sent_twice_acts_once(tenant: Tenant):
    """Goal: a double click withdraws once."""
    agent = await new_agent(tenant.api)
    await tenant.service.fund(agent["id"], "20")
    page = await tenant.visitor.get(f"/console/agents/{agent['id']}")
    fields = {
        "form_token": token_of(page),
        "once": "the-same",
        "amount": "3",
        "destination": "4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS",
    }
    for _ in range(2):
        answer = await tenant.visitor.http.post(
            f"/console/agents/{agent['id']}/withdraw", data=fields
        )
        assert answer.status_code == 303, answer.text
    made = (await tenant.api.get(f"/v1/wallets/{agent['id']}/withdrawals")).json()["data"]
    assert len(made) == 1


async def test_a_form_whose_first_try_still_runs_keeps_its_key(tenant: Tenant):
    """Goal: whoever sends it again, in haste or by the page that says so, withdraws once."""
    fields, path = await _withdrawal(tenant)
    async with tenant.service.db.transaction() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", path.split("/")[3])
        await lock_idempotency_key(
            tx, realm_id, "POST /v1/wallets/:agentId/withdraw", "", fields["once"], 1
        )
        page = await tenant.visitor.http.post(path, data=fields)
    assert page.status_code == 409
    assert "Still on its way" in page.text
    await _send_again(tenant, tenant.visitor, page, fields, path)


async def test_a_form_whose_outcome_is_open_keeps_its_key(tenant: Tenant):
    """Goal: the database was out of reach within the withdrawal; the same form finds out what
    became of it, or does it."""
    fields, path = await _withdrawal(tenant)
    service = tenant.service
    api = await Api.start(replace(service.config, database_timeout_seconds=1), SystemClock())
    impatient = replace(service, url=f"http://127.0.0.1:{api.port}")
    key = tenant.api.headers["Authorization"].removeprefix("Bearer ")
    try:
        async with browser_of(impatient) as http:
            visitor = await sign_in(http, key)
            fields["form_token"] = token_of(await visitor.get("/console"))
            async with service.db.transaction() as tx:
                await tx.execute(
                    "SELECT 1 FROM wallet WHERE agent_id = $1 FOR UPDATE", path.split("/")[3]
                )
                page = await http.post(path, data=fields)
            assert page.status_code == 503
            assert 'href=""' not in page.text, "there is nothing to GET at a form's address"
            await _send_again(tenant, visitor, page, fields, path)
    finally:
        await api.stop()


async def _withdrawal(tenant: Tenant) -> tuple[dict[str, str], str]:
    """What a form of withdrawing sends, and where to."""
    agent = await new_agent(tenant.api)
    await tenant.service.fund(agent["id"], "20")
    page = await tenant.visitor.get(f"/console/agents/{agent['id']}")
    fields = {
        "form_token": token_of(page),
        "once": "only once",
        "amount": "3",
        "destination": ON_CURVE,
        "memo": HOSTILE,
    }
    return fields, f"/console/agents/{agent['id']}/withdraw"


async def _send_again(
    tenant: Tenant, visitor: Visitor, page: httpx.Response, fields: dict[str, str], path: str
) -> None:
    """By the one form of the page, three times; it must be the form that was sent."""
    main = page.text.partition("<main")[2]
    assert f'action="{path}"' in main
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', main)
    again = {name: html.unescape(value) for name, value in found}
    assert again == fields
    for _ in range(3):
        answer = await visitor.http.post(path, data=again)
        assert answer.status_code == 303, answer.text
    agent_id = path.split("/")[3]
    made = (await tenant.api.get(f"/v1/wallets/{agent_id}/withdrawals")).json()["data"]
    assert [one["memo"] for one in made] == [HOSTILE]


async def test_only_the_form_that_comes_back_keeps_its_key(tenant: Tenant):
    """Goal: an earlier try may still be on its way; a key that did something else is let go."""
    fields, path = await _withdrawal(tenant)

    def once_of(page: httpx.Response, form: str) -> str:
        found = re.search(rf'/{form}">.*?name="once" value="([^"]+)"', page.text, re.DOTALL)
        assert found is not None
        return found[1]

    http = tenant.visitor.http
    page = await http.post(path, data={**fields, "amount": "nonsense"})
    assert page.status_code == 400
    assert once_of(page, "withdraw") == "only once"
    assert once_of(page, "fund") != "only once"
    assert (await http.post(path, data=fields)).status_code == 303
    page = await http.post(path, data={**fields, "amount": "4"})
    assert page.status_code == 422
    assert once_of(page, "withdraw") != "only once"


async def test_odd_bodies(tenant: Tenant):
    page = await tenant.visitor.get("/console/agents/new")
    http = tenant.visitor.http
    token = token_of(page)
    for body, status in (
        (b"%ff", 400),
        (f"form_token={token}&name=%00".encode(), 400),
        (b"&".join(b"a=b" for _ in range(300)), 400),
        (b"x" * 600_000, 413),
    ):
        answer = await http.post("/console/agents/new", content=body)
        assert answer.status_code == status, body[:40]
        assert "<h1>" in answer.text
    assert (await http.put("/console/agents/new")).status_code == 405
    assert (await http.get("/console/nothing")).status_code == 404
    assert (await http.head("/console")).status_code == 200


# Headers ------------------------------------------------------------------------------------------


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


# What each key may reach --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["admin", "approver", "read", "agent"])
async def test_screens_need_the_scope_of_their_route(tenant: Tenant, scope: str):
    """Goal: whatever a page shows, no form of it does more than the key may."""
    agent = await new_agent(tenant.api)
    body = {"name": "x", "scope": scope, **({"agentId": agent["id"]} if scope == "agent" else {})}
    key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]
    routes = {f"{route.method} {route.path}": route for route in ROUTES}
    async with browser_of(tenant.service) as http:
        visitor = await sign_in(http, key)
        token = token_of(await visitor.get(f"/console/agents/{agent['id']}"))
        for screen in SCREENS:
            allowed = scope in {scope.value for scope in routes[screen.stands_for].scopes}
            path = screen.path.replace(":id", agent["id"])
            answer = await http.request(
                screen.method,
                path,
                data={"form_token": token} if screen.method == "POST" else None,
            )
            # The route of a policy's change also looks at what an approver sends.
            editing = path.endswith(("/policy", "/preview"))
            refused = not allowed or (scope == "approver" and editing)
            assert (answer.status_code == 403) == refused, (path, answer.status_code)


async def test_an_approver_cannot_terminate(tenant: Tenant):
    agent = await new_agent(tenant.api)
    made = await tenant.api.post("/v1/keys", json={"name": "x", "scope": "approver"})
    async with browser_of(tenant.service) as http:
        visitor = await sign_in(http, made.json()["data"]["key"])
        here = f"/console/agents/{agent['id']}"
        for doing in ("terminate", "unfreeze", "resume"):
            await visitor.post(here, here, 403, doing=doing)
        await visitor.post(here, here, 400, doing="dance")
        await visitor.post(here, here, doing="freeze")
    shown = (await tenant.api.get(f"/v1/agents/{agent['id']}")).json()["data"]
    assert (shown["status"], shown["policy"]["frozen"]) == ("active", True)


async def test_an_agents_key_sees_its_agent_alone(tenant: Tenant):
    """Goal: nothing of another agent, not even that it waits or how much all of them have."""
    mine = await new_agent(tenant.api, name="mine")
    other = await new_agent(tenant.api, name="other", policy={"approvalThreshold": "1.00"})
    for agent in (mine, other):
        await tenant.service.fund(agent["id"], "33.33")
    waiting = await spend(tenant.api, other["id"], "2.22")
    body = {"name": "x", "scope": "agent", "agentId": mine["id"]}
    key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]
    async with browser_of(tenant.service) as http:
        visitor = await sign_in(http, key)
        answer = await visitor.get("/console", 303)
        assert answer.headers["location"] == f"/console/agents/{mine['id']}"
        for path in (
            f"/console/agents/{mine['id']}",
            "/console/agents",
            "/console/agents?q=other",
            f"/console/agents?q={other['id']}",
            "/console/approvals",
            "/console/transactions",
            f"/console/transactions?agentId={other['id']}",
            "/console/transactions.csv",
        ):
            page = (await visitor.get(path)).text
            for secret in (other["id"], waiting["id"], "2.22", "66.66", "1 waiting"):
                assert secret not in page.replace(f'value="{other["id"]}"', "").replace(
                    f"agentId={other['id']}", ""
                ), (path, secret)
        for path in (f"/console/agents/{other['id']}", f"/console/transactions/{waiting['id']}"):
            await visitor.get(path, 404)


class _RollBack(Exception):
    pass


async def test_payments_in_doubt_are_the_tenants_own(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    """Goal: however many others have, one's own are counted."""
    monkeypatch.setattr(store, "MOST_COUNTED", 2)
    mine = await new_agent(tenant.api)
    async with await tenant.service.admin() as other:
        others = await new_agent(other)
    with suppress(_RollBack):
        async with tenant.service.db.transaction() as tx:
            for number, agent in enumerate([others, others, others, mine]):
                await tx.execute(
                    "INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination,"
                    " state, attempts, leased_until, created_at) SELECT $1, 'test', realm_id, id,"
                    " 1, 'x', 'live', 1, moment(), moment() FROM agent WHERE id = $2",
                    f"txn_doubt{number}",
                    agent["id"],
                )
                await tx.execute(
                    "INSERT INTO submission (payment_id, attempt, mode, state, raw, signature,"
                    " blockhash, last_valid_height, signed_slot, next_check_at, in_doubt) VALUES"
                    " ($1::text, 1, 'test', 'live', '', $1::text, 'x', 1, 1,"
                    " moment() - interval '1 hour' + $2 * interval '1 second', true)",
                    f"txn_doubt{number}",
                    number,
                )
            realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", mine["id"])
            assert await store.payments_in_doubt(tx, realm_id, "test") == 1
            raise _RollBack


async def test_a_search_keeps_to_its_filters(tenant: Tenant):
    """Goal: whoever is found by id or address fits the state and the metadata too."""
    agent = await new_agent(tenant.api, name="crawler", metadata={"team": "search"})
    for said in (agent["id"], agent["wallet"]["address"], "crawler"):
        for narrowed, found in (
            ("", True),
            ("&status=active&metadata=team%3Dsearch", True),
            ("&status=terminated", False),
            ("&metadata=team%3Dother", False),
        ):
            page = (await tenant.visitor.get(f"/console/agents?q={said}{narrowed}")).text
            assert (f'href="/console/agents/{agent["id"]}"' in page) == found, (said, narrowed)


async def test_tenants_do_not_meet(tenant: Tenant, service: Service):
    """Goal: another account's objects are not there, not in lists, sums or searches either."""
    async with await service.admin() as other:
        agent = await new_agent(other, name="somebody else's")
        await service.fund(agent["id"], "77.77")
        made = await spend(other, agent["id"], "1.11")
        hook = await other.post(
            "/v1/webhooks", json={"url": "https://example.com/x", "events": ["*"]}
        )
        for path in (
            f"/console/agents/{agent['id']}",
            f"/console/agents/{agent['id']}/policy",
            f"/console/transactions/{made['id']}",
            f"/console/webhooks/{hook.json()['data']['id']}",
        ):
            await tenant.visitor.get(path, 404)
        for path in (
            "/console",
            "/console/agents",
            "/console/agents?q=somebody",
            f"/console/agents?q={agent['id']}",
            f"/console/agents?q={agent['wallet']['address']}",
            "/console/transactions",
            "/console/approvals",
            "/console/webhooks",
            f"/console/transactions?agentId={agent['id']}",
        ):
            page = (await tenant.visitor.get(path)).text
            assert "77.77" not in page
            assert "1.11" not in page
            assert "somebody else" not in page


async def test_hostile_text_is_escaped(tenant: Tenant):
    """Goal: names, memos, metadata, reasons and searches are text in every page."""
    agent = await new_agent(
        tenant.api,
        name=HOSTILE,
        metadata={HOSTILE[:40]: HOSTILE},
        policy={"approvalThreshold": "1.00"},
    )
    await tenant.service.fund(agent["id"], "20")
    made = await spend(tenant.api, agent["id"], "2", memo=HOSTILE, metadata={HOSTILE[:40]: HOSTILE})
    await tenant.api.post("/v1/keys", json={"name": HOSTILE, "scope": "read"})
    paths = [
        "/console", "/console/agents", "/console/approvals", "/console/transactions",
        "/console/keys", f"/console/agents/{agent['id']}", f"/console/agents/{agent['id']}/policy",
        f"/console/transactions/{made['id']}",
    ]  # fmt: skip
    for path in paths:
        page = (await tenant.visitor.get(path)).text
        assert "<script>alert" not in page
        assert "{{ 7*7 }}" in page, "the template took no order from the text"
    await tenant.visitor.post(f"/console/transactions/{made['id']}/deny", paths[2], reason=HOSTILE)
    for path, status in (
        (f"/console/transactions/{made['id']}", 200),
        ("/console/agents?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", 200),
        ("/console/agents?metadata=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", 400),
        ("/console/transactions?recipient=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", 400),
        ("/console/transactions/%3Cscript%3Ealert(1)", 404),
        ("/console/agents?said=%3Cscript%3Ealert(1)", 200),
    ):
        assert "<script>alert" not in (await tenant.visitor.get(path, status)).text
