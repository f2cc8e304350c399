"""Sessions: what is kept of them, and everything that ends one."""

import re
from dataclasses import replace
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from bursar.clock import SystemClock
from bursar.config import Config
from bursar.service.api import Api
from bursar.service.postgres import EmbeddedPostgres
from tests.console.support import HOSTILE, Tenant, Visitor, browser_of, cookie_of, sign_in, token_of
from tests.databases import own_database
from tests.support import Service, new_account


async def test_a_session_is_a_hash_and_a_key_id(service: Service, tenant: Tenant):
    """Goal: nothing in the database lets anybody in, and the cookie is out of reach."""
    answer = await tenant.visitor.http.get("/console/sign-in")
    assert answer.status_code == 303, "whoever is signed in need not sign in"
    (cookie,) = tenant.visitor.http.cookies.jar
    assert (cookie.name, cookie.path) == (cookie_of(service), "/console")
    async with service.db.connection() as tx:
        rows = await tx.fetch("SELECT * FROM console_session")
        trail = await tx.fetchval(
            "SELECT count(*) FROM audit_log WHERE action = 'console.signed_in'"
        )
    assert trail >= 1
    assert cookie.value is not None
    for row in rows:
        assert cookie.value not in str(dict(row))
        assert tenant.key not in str(dict(row))


async def test_the_cookie_is_this_services_own(service: Service):
    """Goal: browsers do not tell the ports of a host apart, so the name does; under TLS the browser
    itself sees to it that nobody else sets it."""
    port = urlsplit(service.url).port
    plain = f"bursar_console_{port}=", "Path=/console;", ""
    bound = f"__Host-bursar_console_{port}=", "Path=/;", "; Secure"
    behind = await Api.start(replace(service.config, tls_in_front=True), SystemClock())
    try:
        for url, headers, (name, path, end) in (
            (service.url, {}, plain),
            (service.url, {"X-Forwarded-Proto": "https"}, bound),
            (service.url, {"Host": "pay.example.com"}, ("bursar_console=", "Path=/console;", "")),
            (f"http://127.0.0.1:{behind.port}", {"Host": f"pay.example.com:{port}"}, bound),
        ):
            async with httpx.AsyncClient(base_url=url, headers=headers) as http:
                kept = (await http.get("/console/sign-in")).headers["set-cookie"]
                assert kept.startswith(name)
                assert kept.endswith(f"; HttpOnly; SameSite=Strict{end}")
                assert path in kept
    finally:
        await behind.stop()


async def test_only_its_own_cookie_signs_in(tenant: Tenant, service: Service):
    """Goal: a token under another name is none, and under TLS neither is one that a page without
    TLS could have set."""
    token = tenant.visitor.http.cookies[cookie_of(service)]
    port = urlsplit(service.url).port
    for name, headers, status in (
        (f"bursar_console_{port}", {}, 200),
        ("bursar_console", {}, 303),
        ("bursar_console_1", {}, 303),
        (f"bursar_console_{port}", {"X-Forwarded-Proto": "https"}, 303),
        (f"__Host-bursar_console_{port}", {"X-Forwarded-Proto": "https"}, 200),
    ):
        async with browser_of(service) as http:
            answer = await http.get("/console", headers={"Cookie": f"{name}={token}", **headers})
            assert answer.status_code == status, name


async def test_signing_in_changes_the_token(service: Service):
    """Goal: a token that somebody planted before is worth nothing after."""
    async with await service.admin() as api, browser_of(service) as http:
        page = await http.get("/console/sign-in")
        before = http.cookies[cookie_of(service)]
        key = api.headers["Authorization"].removeprefix("Bearer ")
        await http.post("/console/sign-in", data={"form_token": token_of(page), "key": key})
        assert http.cookies[cookie_of(service)] != before
        async with browser_of(service) as planted:
            planted.cookies.set(cookie_of(service), before, path="/console")
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
        await tenant.visitor.post(
            f"/console/keys/{made['id']}/revoke", "/console/keys", key=tenant.key
        )
        answer = await guest.get("/console/agents", 303)
        assert answer.headers["location"].startswith("/console/sign-in?ended=1&next=")
        await guest.get("/console/agents", 401, **{"Bursar-Mark": "x"})


async def test_a_session_ends(tenant: Tenant, service: Service):
    """Goal: after its time, and by signing out, it is gone from the database too."""
    await tenant.visitor.get("/console")
    await tenant.visitor.post("/console/sign-out", "/console")
    await tenant.visitor.get("/console", 303)
    async with service.db.connection() as tx:
        assert await tx.fetchval(
            "SELECT count(*) FROM console_session s JOIN api_key k ON k.id = s.key_id"
            " JOIN realm r ON r.id = k.realm_id JOIN account a ON a.id = r.account_id"
            " WHERE a.name = $1",
            tenant.account,
        ) == 0  # fmt: skip


async def test_a_key_has_a_bounded_number_of_sessions(tenant: Tenant, service: Service):
    for _ in range(20):
        async with browser_of(service) as http:
            await sign_in(http, tenant.key)
    await tenant.visitor.get("/console", 303)


# Who is signed in, and how to end that ------------------------------------------------------------


async def test_sessions_are_listed(tenant: Tenant, service: Service):
    """Goal: whoever looks sees since when, when last, from where and with which key each browser is
    signed in, and which is theirs; nobody sees another account's."""
    async with browser_of(service) as http, await service.admin() as stranger:
        http.headers["User-Agent"] = f"Lynx/2.9 {HOSTILE}"
        guest = await sign_in(http, tenant.key)
        page = (await tenant.visitor.get("/console/sessions")).text
        assert page.count("data-key=") == 2
        assert page.count("this one") == 1
        assert "127.0.0.1" in page
        assert "Lynx/2.9 &#34;&gt;&lt;script" in page
        assert HOSTILE not in page
        assert page.count(await _key_id(tenant)) == 2
        async with browser_of(service) as elsewhere:
            other = await sign_in(elsewhere, stranger.headers["Authorization"].split()[1])
            assert (await other.get("/console/sessions")).text.count("data-key=") == 1
            (theirs,) = _sessions(await other.get("/console/sessions"))
            await tenant.visitor.post(f"/console/sessions/{theirs}/end", "/console/sessions", 404)
            await tenant.visitor.post("/console/sessions", "/console/sessions")
            await other.get("/console")
        await guest.get("/console", 303)


async def test_where_a_session_is_used_from(tenant: Tenant, service: Service):
    """Goal: the address is the browser's when a proxy that is trusted says so, and nobody else's
    word is taken for it."""
    proxied = replace(service.config, trusted_proxies=("127.0.0.1/32",))
    api = await Api.start(proxied, SystemClock())
    try:
        for url, said in (
            (service.url, "127.0.0.1"),
            (f"http://127.0.0.1:{api.port}", "192.0.2.7"),
        ):
            async with httpx.AsyncClient(base_url=url) as http:
                http.headers["X-Forwarded-For"] = "203.0.113.9, 192.0.2.7"
                guest = await sign_in(http, tenant.key)
                page = (await guest.get("/console/sessions")).text
                row = page.partition("this one")[0].rpartition("<tr")[2]
                assert said in page.partition("this one")[2].partition("</tr>")[0] + row
                assert "203.0.113.9" not in page
    finally:
        await api.stop()


async def test_a_session_is_ended_from_another(tenant: Tenant, service: Service):
    """Goal: with the answer it is over, in every process; the one that asked goes on."""
    other_process = await Api.start(service.config, SystemClock())
    try:
        async with browser_of(service) as http:
            guest = await sign_in(http, tenant.key)
            http.cookies.set(
                f"bursar_console_{other_process.port}",
                http.cookies[cookie_of(service)],
                domain="127.0.0.1",
                path="/console",
            )
            there = f"http://127.0.0.1:{other_process.port}/console"
            assert (await http.get(there)).status_code == 200
            mine, theirs = await _mine_and_theirs(tenant, guest)
            await tenant.visitor.post(f"/console/sessions/{theirs}/end", "/console/sessions")
            assert (await http.get(there)).status_code == 303
            await guest.get("/console", 303)
            assert _sessions(await tenant.visitor.get("/console/sessions")) == {mine}
            await tenant.visitor.post(f"/console/sessions/{theirs}/end", "/console/sessions", 404)
    finally:
        await other_process.stop()
    log = (await tenant.api.get("/v1/audit-log?action=console.session_ended")).json()["data"]
    assert [line["subject"] for line in log] == [theirs]


async def test_all_other_sessions_are_ended_at_once(tenant: Tenant, service: Service):
    """Goal: after one button nobody but oneself is signed in with any key of the account."""
    made = (await tenant.api.post("/v1/keys", json={"name": "x", "scope": "read"})).json()["data"]
    async with browser_of(service) as one, browser_of(service) as two:
        others = [await sign_in(one, tenant.key), await sign_in(two, made["key"])]
        await tenant.visitor.post("/console/sessions", "/console/sessions")
        for other in others:
            await other.get("/console", 303)
    await tenant.visitor.get("/console")


async def test_a_lesser_key_sees_and_ends_its_own_sessions_alone(tenant: Tenant, service: Service):
    """Goal: a read key cannot throw out an admin."""
    made = (await tenant.api.post("/v1/keys", json={"name": "x", "scope": "read"})).json()["data"]
    (admins,) = _sessions(await tenant.visitor.get("/console/sessions"))
    async with browser_of(service) as one, browser_of(service) as two:
        reader, again = await sign_in(one, made["key"]), await sign_in(two, made["key"])
        assert len(_sessions(await reader.get("/console/sessions"))) == 2
        await reader.post(f"/console/sessions/{admins}/end", "/console/sessions", 404)
        await reader.post("/console/sessions", "/console/sessions")
        await again.get("/console", 303)
    await tenant.visitor.get("/console")


def _sessions(page: httpx.Response) -> set[str]:
    return set(re.findall(r'data-key="(ses_[0-9a-z]{26})"', page.text))


async def _mine_and_theirs(tenant: Tenant, guest: Visitor) -> tuple[str, str]:
    page = (await guest.get("/console/sessions")).text
    (theirs,) = re.findall(r'data-key="(ses_\w+)"[^>]* aria-current', page)
    (mine,) = _sessions(await tenant.visitor.get("/console/sessions")) - {theirs}
    return mine, theirs


async def _key_id(tenant: Tenant) -> str:
    (key,) = (await tenant.api.get("/v1/keys")).json()["data"]
    return key["id"]


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
