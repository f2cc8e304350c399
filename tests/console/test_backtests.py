"""A policy is tried on the past in the console, and put in force from what was found."""

import csv
import html
import io
import re
from typing import Any

import httpx

from bursar.backtest import store
from bursar.backtest.job import Backtester
from bursar.clock import SystemClock
from bursar.spend.model import bounds_of
from tests.backtest.support import run_backtests
from tests.console.support import HOSTILE, Tenant, browser_of, sign_in
from tests.support import POLICY, new_agent, spend

FIELDS = {**POLICY, "allowlist": "api.example.com", "blocklist": "", "payees": "pinned"}
CSV = "changes.csv"


async def _spender(tenant: Tenant, *amounts: str, **fields: Any) -> dict[str, Any]:
    agent = await new_agent(tenant.api, **fields)
    await tenant.service.fund(agent["id"], "100")
    for amount in amounts:
        await spend(tenant.api, agent["id"], amount)
    return agent


async def _try(tenant: Tenant, agent: dict[str, Any], **fields: str) -> str:
    """The address of what was begun in the editor."""
    here = f"/console/agents/{agent['id']}"
    sent: dict[str, Any] = {**FIELDS, "version": "1", **fields}
    begun = await tenant.visitor.post(f"{here}/try", f"{here}/policy", **sent)
    return begun.headers["location"]


async def _tried(tenant: Tenant, agent: dict[str, Any], **fields: str) -> str:
    address = await _try(tenant, agent, **fields)
    await run_backtests(tenant.service.db, tenant.service.config)
    return address


def _sent_by(page: httpx.Response, action: str) -> dict[str, str]:
    form = page.text.partition(f'action="{action}"')[2].partition("</form>")[0]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form)
    return {name: html.unescape(value) for name, value in found}


async def test_a_stricter_cap_is_tried_and_put_in_force(tenant: Tenant):
    """Goal: from the editor to what would have been, each differing spend, and the same policy in
    force; nothing changes before that, and nothing that somebody else changed is overwritten."""
    agent = await _spender(tenant, "8", "8", "8", name=HOSTILE)
    here = f"/console/agents/{agent['id']}"
    assert "Try it on the last 30 days" in (await tenant.visitor.get(f"{here}/policy")).text
    lists = {"allowlist": "api.example.com\n*.example.org", "blocklist": "bad.example.com"}
    address = await _tried(tenant, agent, dailyCap="20", approvalThreshold="", **lists)
    page = await tenant.visitor.get(address)
    for said in (
        "1 of 3 requests would have been decided differently", "1 more refused",
        "8.00 USDC less let through", "<del>100.00</del>", "<ins>20.00</ins>",
    ):  # fmt: skip
        assert said in page.text
    assert re.search(r"Daily cap</th>\s*<td[^>]*>0</td><td[^>]*><b>1</b>", page.text)
    assert "<script>alert" not in page.text
    last = (await tenant.api.get("/v1/transactions?limit=1")).json()["data"][0]["id"]
    assert f'href="/console/transactions/{last}"' in page.text
    exported = await tenant.visitor.get(f"{address.partition('?')[0]}/{CSV}")
    assert exported.headers["content-type"].startswith("text/csv")
    assert [row["transactionId"] for row in csv.DictReader(io.StringIO(exported.text))] == [last]
    shown = (await tenant.api.get(here.replace("console", "v1"))).json()["data"]
    assert shown["policy"]["version"] == 1

    fields = _sent_by(page, f"{here}/preview")
    assert fields["version"] == "1"
    preview = await tenant.visitor.http.post(f"{here}/preview", data=fields)
    await tenant.visitor.http.post(f"{here}/policy", data=_sent_by(preview, f"{here}/policy"))
    policy = (await tenant.api.get(here.replace("console", "v1"))).json()["data"]["policy"]
    assert (policy["version"], policy["dailyCap"], policy["blocklist"]) == (
        2, "20.00", ["bad.example.com"],
    )  # fmt: skip
    # The page still speaks of the version that was looked at.
    stale = _sent_by(await tenant.visitor.get(address), f"{here}/preview")
    again = await tenant.visitor.http.post(f"{here}/preview", data=stale)
    assert "Somebody changed the policy" in again.text
    assert "Put it in force" not in again.text
    back = await tenant.visitor.http.post(f"{here}/policy", data={**stale, "back": "yes"})
    assert 'name="dailyCap" type="text" value="20.00"' in back.text


async def test_what_differs_in_nothing(tenant: Tenant):
    """Goal: the policy in force finds no difference, and an agent without a past has nothing to
    find."""
    for agent, said in (
        (await _spender(tenant, "1"), "Nothing would have been different"),
        (await _spender(tenant), "Nothing was asked for in this time."),
    ):
        page = (await tenant.visitor.get(await _tried(tenant, agent))).text
        assert said in page
        assert "What is tried" not in page
        assert CSV not in page


async def test_a_mistake_is_shown_in_the_editor(tenant: Tenant):
    """Goal: what was typed comes back with what is wrong with it, and nothing is begun."""
    agent = await _spender(tenant)
    here = f"/console/agents/{agent['id']}"
    wrong = {**FIELDS, "version": "1", "dailyCap": "ten", "allowlist": HOSTILE}
    page = await tenant.visitor.post(f"{here}/try", f"{here}/policy", 400, **wrong)
    assert 'value="ten"' in page.text
    assert 'aria-invalid="true"' in page.text
    assert "<script>alert" not in page.text
    async with tenant.service.db.connection() as tx:
        begun = "SELECT count(*) FROM backtest JOIN agent USING (realm_id) WHERE agent.id = $1"
        assert await tx.fetchval(begun, agent["id"]) == 0
    for version in (HOSTILE, "9" * 20, ""):
        address = await _try(tenant, agent, version=version)
        assert "version=" not in address
    hostile = await tenant.visitor.get(f"{address}?version=%22%3E%3Cscript%3Ealert(1)")
    assert "<script>alert" not in hostile.text


async def test_while_it_runs_and_when_it_fails(tenant: Tenant):
    """Goal: an open page follows the progress, and asks no more once there is an end."""
    service, agent = tenant.service, await _spender(tenant, "5")
    await run_backtests(service.db, service.config)
    address = await _try(tenant, agent, perTransactionCap="1")
    waiting = await tenant.visitor.get(address)
    assert "0% done" in waiting.text
    mark = re.search(r'data-mark="([^"]+)"', waiting.text)
    assert mark is not None
    header = {"Bursar-Mark": mark[1]}
    await tenant.visitor.get(address, 204, **header)
    worker = Backtester(service.db, bounds_of(service.config), SystemClock())
    assert await worker.work()
    running = await tenant.visitor.get(address, 200, **header)
    assert "Deciding the past again" in running.text
    assert "Review and put in force" not in running.text
    while await worker.work():
        pass
    done = await tenant.visitor.get(address)
    assert "data-mark" not in done.text
    assert "1 more refused" in done.text

    address = await _try(tenant, agent)
    async with service.db.transaction() as tx:
        claimed = await store.claim(tx, "a worker", 60)
        assert claimed is not None
        await store.finish(tx, claimed[0].id, "a worker", result=None, problem=HOSTILE)
    failed = (await tenant.visitor.get(address)).text
    assert "It could not be tried." in failed
    assert "<script>alert" not in failed
    assert "data-mark" not in failed
    # What has ended is forgotten after a while, and then it is not there.
    async with service.db.transaction() as tx:
        assert await store.forget_backtests(tx, 0, 1000) >= 2
    for path in (address, address.replace("?", f"/{CSV}?")):
        await tenant.visitor.get(path, 404)


async def test_who_may_try_and_who_may_look(tenant: Tenant):
    """Goal: an admin tries, people look, an agent's key does neither; another account finds
    nothing."""
    agent = await _spender(tenant, "30")
    here = f"/console/agents/{agent['id']}"
    address = await _tried(tenant, agent, dailyCap="20")
    for scope, status in (("approver", 200), ("read", 200), ("agent", 403)):
        body = {"name": "x", "scope": scope}
        if scope == "agent":
            body["agentId"] = agent["id"]
        key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]
        async with browser_of(tenant.service) as http:
            visitor = await sign_in(http, key)
            page = (await visitor.get(address, status)).text
            assert ("1 more refused" in page) == (status == 200)
            assert "Review and put in force" not in page
            await visitor.get(address.replace("?", f"/{CSV}?"), status)
            await visitor.post(f"{here}/try", here, 403, **FIELDS)
    async with await tenant.service.admin() as other, browser_of(tenant.service) as http:
        visitor = await sign_in(http, other.headers["Authorization"].removeprefix("Bearer "))
        await visitor.get(address, 404)
        await visitor.get(address, 404, **{"Bursar-Mark": "x"})
        await visitor.get(address.replace("?", f"/{CSV}?"), 404)
        await visitor.post(f"{here}/try", "/console/agents/new", 404, **FIELDS)
    # A terminated agent keeps its policy.
    await tenant.api.delete(f"/v1/agents/{agent['id']}")
    assert "Review and put in force" not in (await tenant.visitor.get(address)).text


async def test_what_was_asked_for_elsewhere_is_shown(tenant: Tenant):
    """Goal: a backtest of a team, or of some fields, by the API: what it found, and no form that
    would send something else."""
    made = await tenant.api.post("/v1/budgets", json={"name": "Team", "limits": []})
    budget = made.json()["data"]["id"]
    agent = await _spender(tenant, "30", budgetId=budget)
    for body in (
        {"budgetId": budget, "limits": [{"window": "day", "amount": "20.00"}]},
        {"agentId": agent["id"], "policy": {"dailyCap": "20.00"}},
    ):
        asked = await tenant.api.post("/v1/backtests", json=body)
        await run_backtests(tenant.service.db, tenant.service.config)
        page = await tenant.visitor.get(f"/console/backtests/{asked.json()['data']['id']}")
        assert "1 more refused" in page.text
        assert "Review and put in force" not in page.text
