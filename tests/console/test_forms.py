"""Forms: no token, no effect; sent twice, done once."""

import asyncio
import html
import json
import re
import sys
from dataclasses import replace
from typing import Any

import httpx
import pytest

from bursar.access.store import lock_idempotency_key
from bursar.clock import SystemClock
from bursar.console.screens import SCREENS
from bursar.service.api import Api
from tests.console.support import (
    HOSTILE,
    Tenant,
    Visitor,
    browser_of,
    cookie_of,
    sign_in,
    token_of,
)
from tests.support import ON_CURVE, Service, new_agent, spend


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
    async with browser_of(service) as http:
        assert (await http.post("/console/sign-in", data={"key": tenant.key})).status_code == 403
        assert cookie_of(service) in http.cookies
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
        "key": tenant.key,
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
    api = await Api.start(replace(service.config, database_timeout_seconds=3), SystemClock())
    impatient = replace(service, url=f"http://127.0.0.1:{api.port}")
    try:
        async with browser_of(impatient) as http:
            visitor = await sign_in(http, tenant.key)
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
        "key": tenant.key,
        "amount": "3",
        "destination": ON_CURVE,
        "memo": HOSTILE,
    }
    return fields, f"/console/agents/{agent['id']}/withdraw"


async def _send_again(
    tenant: Tenant, visitor: Visitor, page: httpx.Response, fields: dict[str, str], path: str
) -> None:
    """By the one form of the page, three times; it must be the form that was sent, but for the key,
    which no page shows."""
    main = page.text.partition("<main")[2]
    assert f'action="{path}"' in main
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', main)
    again = {name: html.unescape(value) for name, value in found}
    assert 'name="key" type="password"' in main
    assert {**again, "key": tenant.key} == fields
    again = fields
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
    review = await http.post(f"{path}/review", data={**fields, "once": "looked over"})
    assert review.status_code == 200
    assert once_of(review, "withdraw") != "looked over"
    assert fields["destination"] in review.text
    page = await http.post(path, data={**fields, "key": "wrong"})
    assert page.status_code == 401
    assert once_of(page, "withdraw") == "only once"
    assert (await http.post(path, data=fields)).status_code == 303
    page = await http.post(path, data={**fields, "amount": "4"})
    assert page.status_code == 422
    assert "only once" not in page.text
    assert once_of(page, "fund") != "only once"


async def test_faults_are_told_in_the_words_of_the_form(tenant: Tenant):
    """Goal: at the field, and never as the API calls it."""
    page = await tenant.visitor.post(
        "/console/agents/new",
        "/console/agents/new",
        400,
        name="",
        dailyCap="much",
        allowlist="fine.example.com\nhttp://x y",
        payees="directory",
    )
    text = html.unescape(page.text)
    at_field = re.findall(r'<p id="h-(\w+)" class="hint">\s*(.*?)\s*</p>', text)
    told = dict(at_field)
    assert told["name"].startswith("The name must")
    assert told["dailyCap"].startswith("The daily cap must")
    assert told["allowlist"].startswith("Line 2 of the allowlist")
    assert "policy." not in text
    assert "see details" not in text


async def test_agents_are_picked_by_name(tenant: Tenant):
    """Goal: a name, a part of one, what the field suggests or an id; never somebody else's, and
    where more than one fits, nobody is taken."""
    crawler = await new_agent(tenant.api, name="Crawler")
    await new_agent(tenant.api, name="Night crawler")
    twins = [await new_agent(tenant.api, name="Twin") for _ in range(2)]
    paid = await spend(tenant.api, crawler["id"], "1")
    async with await tenant.service.admin() as other:
        await new_agent(other, name="Stranger")
    http = tenant.visitor.http

    async def asked(said: str) -> tuple[int, str]:
        page = await http.get("/console/transactions", params={"agentId": said})
        return page.status_code, page.text

    for said in ("crawler", "Crawler", f"Crawler ({crawler['id']})", crawler["id"]):
        status, text = await asked(said)
        assert (status, paid["id"] in text) == (200, True), said
        assert f'value="Crawler ({crawler["id"]})" list=' in text
        assert f"transactions.csv?agentId={crawler['id']}" in text
    for said, told in (
        ("twin", f"Twin ({twins[1]['id']}), Twin ({twins[0]['id']}). Choose one"),
        ("craw", "More than one agent fits"),
        ("stranger", "No agent is called “stranger”."),
    ):
        status, text = await asked(said)
        assert (status, told in text) == (400, True), said
    for said, found in (("", 4), ("twin", 2), ("stranger", 0), (crawler["id"], 1)):
        answer = await http.get("/console/agents/names", params={"q": said})
        assert answer.text.count("<option ") == found, said
    fields = {"name": "x", "scope": "agent", "key": tenant.key}
    page = "/console/keys"
    refused = (await tenant.visitor.post(page, page, 400, **fields, agentId="twin")).text
    assert re.search(r'id="f-agentId"[^>]*value="twin"[^>]*aria-invalid', refused)
    await tenant.visitor.post(page, page, 200, **fields, agentId="night")
    made = (await tenant.api.get("/v1/keys")).json()["data"]
    assert made[0]["agentId"] not in (None, crawler["id"])


async def test_no_approve_button_where_it_cannot_work(tenant: Tenant):
    """Goal: paused, frozen and stopped leave Deny alone, and the page says why."""
    limits = [{"window": "day", "amount": "100.00"}]
    answer = await tenant.api.post("/v1/budgets", json={"name": "Company", "limits": limits})
    top = answer.json()["data"]["id"]
    team = {"name": "Team", "limits": limits, "parentId": top}
    budget_id = (await tenant.api.post("/v1/budgets", json=team)).json()["data"]["id"]
    policy = {"approvalThreshold": "1.00"}
    agent = await new_agent(tenant.api, policy=policy, budgetId=budget_id)
    await tenant.service.fund(agent["id"], "20")
    made = await spend(tenant.api, agent["id"], "2")
    paths = ("/console/approvals", f"/console/transactions/{made['id']}")
    here = f"/v1/agents/{agent['id']}"

    async def seen(*, why: str) -> None:
        for path in paths:
            page = (await tenant.visitor.get(path)).text.partition("<main")[2]
            assert (">Approve</button>" in page) == (not why), (path, why)
            assert ">Deny</button>" in page
            assert why in page

    await seen(why="")
    await tenant.api.patch(here, json={"status": "paused"})
    await seen(why="The agent is paused.")
    await tenant.api.patch(here, json={"status": "active", "policy": {"frozen": True}})
    await seen(why="The agent&#39;s policy is frozen.")
    await tenant.api.patch(here, json={"policy": {"frozen": False}})
    await tenant.api.patch(f"/v1/budgets/{top}", json={"frozen": True})
    await seen(why="A budget above it is frozen.")
    await tenant.api.post("/v1/stop", json={"reason": "x"})
    await seen(why="It can be approved once an admin has resumed the account.")
    async with tenant.service.db.transaction() as tx:
        late = "UPDATE spend SET expires_at = created_at + interval '1 ms' WHERE id = $1"
        await tx.execute(late, made["id"])
    await seen(why="Its time is over.")
    await tenant.visitor.post(
        f"/console/transactions/{made['id']}/deny", "/console/approvals", reason="no"
    )


# The key once more --------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["", "bur_test_wrong", "another"])
async def test_a_withdrawal_asks_for_the_key_again(tenant: Tenant, given: str):
    """Goal: whoever has only the cookie moves nothing; the form comes back as it was typed, with
    its idempotency key, and does it once when the key is there."""
    fields, path = await _withdrawal(tenant)
    if given == "another":
        made = await tenant.api.post("/v1/keys", json={"name": "x", "scope": "admin"})
        given = made.json()["data"]["key"]
    http = tenant.visitor.http
    page = await http.post(path, data={**fields, "key": given, "doing": "withdraw"})
    assert page.status_code == 401
    assert "the key you are signed in with" in page.text
    assert given == "" or given not in page.text
    withdrawals = f"/v1/wallets/{path.split('/')[3]}/withdrawals"
    assert (await tenant.api.get(withdrawals)).json()["data"] == []
    form = page.text.partition(f'action="{path}"')[2].partition("</form>")[0]
    for kept in ('name="once" value="only once"', 'value="3"', f'value="{ON_CURVE}"', HOSTILE):
        assert kept in html.unescape(form)
    for _ in range(2):
        assert (await http.post(path, data=fields)).status_code == 303
    assert len((await tenant.api.get(withdrawals)).json()["data"]) == 1


async def test_a_review_says_how_far_it_looked_back(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    """Goal: "never" is said only where every withdrawal was looked at."""
    fields, path = await _withdrawal(tenant)
    monkeypatch.setattr("bursar.console.agents._LOOKED_BACK", 1)
    http = tenant.visitor.http
    for once, told in (
        ("first", "never from this wallet"),
        ("second", "never from this wallet"),
        ("third", "not among the last 1 withdrawals"),
    ):
        review = await http.post(f"{path}/review", data={**fields, "once": once})
        assert told in review.text
        sent = await http.post(path, data={**fields, "once": once})
        assert sent.status_code == 303


async def test_a_new_agent_is_ready_to_connect(tenant: Tenant):
    """Goal: what the page says to paste works as it stands, with a key that is shown once."""
    fields = {"name": "Reader", "dailyCap": "5", "allowlist": "*.example.org\nocr.example.org"}
    new = "/console/agents/new"
    answer = await tenant.visitor.post(new, new, 303, **fields, payees="directory")
    here, said = answer.headers["location"].split("?")
    assert (here.endswith("/connect"), said) == (True, "said=created")
    await tenant.visitor.post(here, here, 401)
    sent = {"key": tenant.key, "once": "its key"}
    page = (await tenant.visitor.post(here, here, 200, **sent)).text
    lines = re.findall(r"<code>(.*?)</code></pre>", page, re.DOTALL)
    # There is no worker here to wait for.
    curl, mcp, python, _ = (html.unescape(text).replace("wait=10", "wait=0") for text in lines)
    agent_id = here.split("/")[3]
    await tenant.service.fund(agent_id, "1")
    for command in (("sh", "-c", curl), (sys.executable, "-c", python)):
        run = await asyncio.create_subprocess_exec(*command)
        assert await run.wait() == 0
    made = (await tenant.api.get("/v1/transactions")).json()["data"]
    assert [row["recipient"] for row in made] == ["ocr.example.org"] * 2
    server = json.loads(mcp)["mcpServers"]["bursar"]
    assert server["url"] == f"{tenant.service.url}/mcp"
    key = server["headers"]["Authorization"].removeprefix("Bearer ")
    again = (await tenant.visitor.post(here, here, 200, **sent)).text
    assert key not in again
    assert "cannot be shown again" in again


async def test_keys_ask_for_the_key_again(tenant: Tenant):
    """Goal: a cookie alone neither makes a key nor revokes one."""
    wanted = {"name": "night shift", "scope": "read"}
    page = await tenant.visitor.post("/console/keys", "/console/keys", 401, **wanted)
    assert 'value="night shift"' in page.text
    (mine,) = (await tenant.api.get("/v1/keys")).json()["data"]
    revoke = f"/console/keys/{mine['id']}/revoke"
    await tenant.visitor.post(revoke, "/console/keys", 401)
    (mine,) = (await tenant.api.get("/v1/keys")).json()["data"]
    assert mine["revokedAt"] is None
    made = await tenant.visitor.post(
        "/console/keys", "/console/keys", 200, **wanted, key=tenant.key
    )
    assert "bur_test_" in made.text
    assert tenant.key not in made.text
    await tenant.visitor.post(revoke, "/console/keys", key=tenant.key)
    assert (await tenant.api.get("/v1/keys")).status_code == 401


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
