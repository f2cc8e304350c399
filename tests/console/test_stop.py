"""The stop button of every page, the banner while it stands, and the way back."""

import asyncio
import re

import httpx

from tests.console.support import HOSTILE, Tenant, browser_of, seen_in, sign_in
from tests.databases import until_waited_for
from tests.support import error_of, new_agent, spend

BUTTON = 'action="/console/stop"'
BANNER = "Every agent is stopped"


async def _key(tenant: Tenant, scope: str, agent_id: str | None = None) -> str:
    body = {"name": "x", "scope": scope, **({"agentId": agent_id} if agent_id else {})}
    return (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]


async def _stop(tenant: Tenant) -> dict[str, object] | None:
    return (await tenant.api.get("/v1/me")).json()["data"]["stop"]


async def test_one_click_from_every_page(tenant: Tenant):
    """Goal: the button is on every page, a stop replaces it by a banner with who, when and why, and
    an admin resumes from there."""
    agent = await new_agent(tenant.api)
    pages = (
        "/console", "/console/agents", f"/console/agents/{agent['id']}", "/console/agents/new",
        "/console/budgets", "/console/budgets/new", "/console/approvals", "/console/transactions",
        "/console/webhooks", "/console/keys", "/console/sessions",
    )  # fmt: skip
    for path in pages:
        page = (await tenant.visitor.get(path)).text
        assert BUTTON in page
        assert BANNER not in page
    said = await tenant.visitor.post("/console/stop", "/console/keys", reason=HOSTILE)
    stop = await _stop(tenant)
    assert stop is not None
    assert (stop["reason"], stop["alsoUnsigned"]) == (HOSTILE, False)
    assert "Stopped." in (await tenant.visitor.get(said.headers["location"])).text
    for path in pages:
        page = (await tenant.visitor.get(path)).text
        assert BUTTON not in page
        assert BANNER in page
        assert str(stop["stoppedBy"]) in page
        assert "<script>alert" not in page
    await tenant.visitor.post("/console/resume", "/console/agents", unsigned="pay")
    assert await _stop(tenant) is None
    assert BANNER not in (await tenant.visitor.get("/console")).text


async def test_what_is_held_is_asked_for(tenant: Tenant):
    """Goal: after a stop that holds the unsigned, resuming asks what becomes of them."""
    await tenant.visitor.post("/console/stop", "/console", reason="a look", alsoUnsigned="yes")
    page = (await tenant.visitor.get("/console")).text
    assert 'name="unsigned" value="cancel"' in page
    again = await tenant.visitor.post("/console/resume", "/console", 400)
    assert "unsigned" in again.text
    assert await _stop(tenant) is not None
    await tenant.visitor.post("/console/resume", "/console", unsigned="cancel")
    assert await _stop(tenant) is None


async def test_only_the_stop_that_was_seen_is_lifted(tenant: Tenant):
    """Goal: somebody stops again, holding what is unsigned, while another reads of the first stop:
    that page's button neither lifts the second stop nor pays what it holds."""
    await tenant.visitor.post("/console/stop", "/console", reason="a look")
    seen = seen_in(await tenant.visitor.get("/console"))
    await tenant.api.post("/v1/stop", json={"reason": "theft", "alsoUnsigned": True})
    refused = await tenant.visitor.post(
        "/console/resume", "/console", 409, unsigned="pay", seen=seen
    )
    assert "another stop" in refused.text
    assert await _stop(tenant) is not None


async def test_a_stop_that_is_being_made_is_not_lifted(tenant: Tenant):
    """Goal: a resume that came while another stop held the lock is judged by what that left."""
    await tenant.visitor.post("/console/stop", "/console", reason="a look")
    async with tenant.service.db.transaction() as tx:
        realm_id = await tx.fetchval(
            "SELECT r.id FROM realm r JOIN account a ON a.id = r.account_id"
            " WHERE a.name = $1 AND r.stopped_at IS NOT NULL FOR NO KEY UPDATE OF r",
            tenant.account,
        )
        resuming = asyncio.create_task(
            tenant.visitor.post("/console/resume", "/console", 409, unsigned="pay")
        )
        await until_waited_for(tx)
        await tx.execute("UPDATE realm SET stop_holds_unsigned = true WHERE id = $1", realm_id)
    assert "another stop" in (await resuming).text
    assert await _stop(tenant) is not None


async def test_a_stop_needs_a_reason(tenant: Tenant):
    page = await tenant.visitor.post("/console/stop", "/console", 400, reason=" ")
    assert "reason" in page.text
    assert await _stop(tenant) is None


async def test_who_sees_which_button(tenant: Tenant):
    """Goal: an approver stops but cannot resume; the others see the banner and no button."""
    agent = await new_agent(tenant.api)
    for scope, may in (("approver", True), ("read", False), ("agent", False)):
        key = await _key(tenant, scope, agent["id"] if scope == "agent" else None)
        async with browser_of(tenant.service) as http:
            visitor = await sign_in(http, key)
            home = f"/console/agents/{agent['id']}"
            assert (BUTTON in (await visitor.get(home)).text) == may
            await visitor.post("/console/stop", home, 303 if may else 403, reason="a look")
            await tenant.api.post("/v1/stop", json={"reason": "a look"})
            page = (await visitor.get(home)).text
            assert BANNER in page
            assert 'action="/console/resume"' not in page
            await visitor.post("/console/resume", home, 403, unsigned="pay")
        await tenant.api.post("/v1/resume", json={"unsigned": "pay"})


async def test_a_page_that_is_refused_for_the_limit_has_the_button(tenant: Tenant):
    """Goal: whoever has used up the key's limit can still stop, from the page that says so."""
    await _exhaust(tenant.api)
    refused = await tenant.visitor.get("/console/agents", 429)
    assert BUTTON in refused.text
    token = re.search(r'name="form_token" value="(\w+)"', refused.text)
    assert token is not None
    answer = await tenant.visitor.http.post(
        "/console/stop", data={"form_token": token[1], "once": "1", "reason": "a look"}
    )
    assert answer.status_code == 303
    async with tenant.service.client(await tenant.service.key(account=tenant.account)) as other:
        assert (await other.get("/v1/me")).json()["data"]["stop"]["reason"] == "a look"


async def _exhaust(api: httpx.AsyncClient) -> None:
    while (await api.get("/v1/agents?limit=1")).status_code == 200:
        pass
    error_of(await api.get("/v1/agents?limit=1"), 429, "rate_limit_exceeded")


async def test_a_spend_that_waits_can_be_cancelled(tenant: Tenant):
    """Goal: by an admin, and by the key that asked for it; nobody else is offered it."""
    agent = await new_agent(tenant.api, policy={"approvalThreshold": "0.00"})
    await tenant.service.fund(agent["id"], "5")
    first, second = [await spend(tenant.api, agent["id"], "1") for _ in range(2)]
    for scope in ("approver", "agent"):
        key = await _key(tenant, scope, agent["id"] if scope == "agent" else None)
        async with browser_of(tenant.service) as http:
            visitor = await sign_in(http, key)
            here = f"/console/transactions/{first['id']}"
            assert "Cancel this spend" not in (await visitor.get(here)).text
            await visitor.post(f"{here}/cancel", here, 403)
    here = f"/console/transactions/{first['id']}"
    assert "Cancel this spend" in (await tenant.visitor.get(here)).text
    said = await tenant.visitor.post(f"{here}/cancel", here)
    assert said.headers["location"] == f"{here}?said=cancelled"
    shown = (await tenant.api.get(f"/v1/transactions/{first['id']}")).json()["data"]
    assert shown["rejectCode"] == "cancelled"
    there = f"/console/transactions/{second['id']}"
    await tenant.api.post(f"/v1/transactions/{second['id']}/approve")
    page = await tenant.visitor.post(f"{there}/cancel", there, 409)
    assert "approved" in page.text
