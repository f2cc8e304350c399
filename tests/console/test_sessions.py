"""Sessions: what is kept of them, and everything that ends one."""

from dataclasses import replace
from urllib.parse import urlsplit

import asyncpg
import pytest

from bursar.clock import SystemClock
from bursar.config import Config
from bursar.service.api import Api
from bursar.service.postgres import EmbeddedPostgres
from tests.console.support import Tenant, Visitor, browser_of, sign_in, token_of
from tests.databases import own_database
from tests.support import Service, new_account


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
    async with service.db.connection() as tx:
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
    async with service.db.connection() as tx:
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
