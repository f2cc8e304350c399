"""Budgets in the console: the tree, who is near, stopping a team, and filters that stay."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

from bursar.console import budget_tree
from bursar.policy.limits import WINDOWS
from tests.console.support import HOSTILE, Tenant, browser_of, seen_in, sign_in
from tests.databases import until_waited_for
from tests.support import new_agent, spend

NOW = datetime(2026, 11, 16, 15, tzinfo=UTC)
DAY = [{"window": "day", "amount": "10.00"}]


async def _budget(tenant: Tenant, name: str, limits: Any = DAY, **fields: Any) -> str:
    answer = await tenant.api.post("/v1/budgets", json={"name": name, "limits": limits, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]["id"]


def _shown(name: str, parent: str | None, limits: list[dict[str, Any]], **use: Any) -> Any:
    nothing = {window: {"amount": "0.000000", "count": 0} for window in WINDOWS}
    return {
        "id": name, "name": name, "parentId": parent, "frozen": False, "agentCount": 1,
        "limits": [{"amount": None, "count": None, **limit} for limit in limits],
        "use": {**nothing, **use},
    }  # fmt: skip


def test_the_tree_and_who_is_near():
    """Goal: by name, four deep, agents added up; the fullest first, whatever its level."""
    budgets = [
        _shown("d", "c", [{"window": "day", "count": 10}], day={"amount": "1.000000", "count": 9}),
        _shown("c", "b", []),
        _shown("b", "a", [{"window": "lifetime", "amount": "0.00"}]),
        _shown("a", None, [{"window": "week", "amount": "5.00"}],
               week={"amount": "3.999999", "count": 3}),
        _shown("A first", None, []),
    ]  # fmt: skip
    roots = budget_tree.forest(budgets, NOW)
    nodes = {node.name: node for node in budget_tree.walk(roots)}
    assert list(nodes) == ["a", "b", "c", "d", "A first"]
    assert [(node.level, node.agents) for node in nodes.values()] == [
        (1, 4), (2, 3), (3, 2), (4, 1), (1, 1),
    ]  # fmt: skip
    assert [node.name for node in budget_tree.nearest(roots)] == ["b", "d"]
    (week,) = nodes["a"].gauges
    assert (week.share, week.opens_at) == (79, datetime(2026, 11, 23, tzinfo=UTC))
    (life,) = nodes["b"].gauges
    assert (life.share, life.opens_at) == (100, None)
    budgets[2]["frozen"] = True
    roots = budget_tree.forest(budgets, NOW)
    assert budget_tree.nearest(roots) == [], "what is stopped, and all below it, needs nobody"


async def test_a_team_near_its_budget_is_stopped(tenant: Tenant):
    """Goal: both first pages name it with what was used; one form stops all below it."""
    top = await _budget(tenant, "Company", [{"window": "month", "amount": "1000.00"}])
    team = await _budget(tenant, HOSTILE, parentId=top)
    other = await _budget(tenant, "Quiet", parentId=top)
    agent = await new_agent(tenant.api, budgetId=team)
    await new_agent(tenant.api, budgetId=other)
    await tenant.service.fund(agent["id"], "20")
    for page in ("/console", "/console/budgets"):
        assert "ear their limit" not in (await tenant.visitor.get(page)).text
    await spend(tenant.api, agent["id"], "8.5")
    for page in ("/console", "/console/budgets"):
        shown = (await tenant.visitor.get(page)).text
        near = shown[shown.index("ear their limit") :].partition("</section>")[0]
        assert f"/console/budgets/{team}" in near
        assert f"/console/budgets/{other}" not in near
        assert "<b>8.50</b>" in near
        assert "of 10.00 a day" in near
        assert "<script>alert" not in shown
    done = await tenant.visitor.post(f"/console/budgets/{team}", "/console", doing="stop")
    assert "Stopped." in (await tenant.visitor.get(done.headers["location"])).text
    assert (await spend(tenant.api, agent["id"], "1"))["rejectCode"] == "budget_frozen"
    assert "ear their limit" not in (await tenant.visitor.get("/console/budgets")).text
    await tenant.visitor.post(f"/console/budgets/{team}", "/console/budgets", doing="resume")
    assert (await spend(tenant.api, agent["id"], "1"))["status"] == "approved"
    await tenant.visitor.post(f"/console/budgets/{team}", "/console/budgets", 400, doing="dance")


async def test_a_budgets_life(tenant: Tenant):
    """Goal: made below another, renamed, its limits changed by id, emptied and deleted; what is
    wrong is shown again with what was typed."""
    visitor = tenant.visitor
    top = await _budget(tenant, "Company")
    new = f"/console/budgets/new?parentId={top}"
    assert f'value="{top}" selected' in (await visitor.get(new)).text
    wrong = await visitor.post(
        "/console/budgets/new", new, 400, name="Crew", parentId=top, limitId="", window="week",
        amount="ten", count="",
    )  # fmt: skip
    assert 'value="ten"' in wrong.text
    assert 'value="Crew"' in wrong.text
    made = await visitor.post(
        "/console/budgets/new", new, name="Crew", parentId=top, limitId="", window="week",
        amount="10", count="",
    )  # fmt: skip
    here = made.headers["location"].partition("?")[0]
    shown = (await tenant.api.get(f"/v1{here.removeprefix('/console')}")).json()["data"]
    (limit,) = shown["limits"]
    assert (shown["parentId"], limit["amount"], limit["window"]) == (top, "10.00", "week")
    page = (await visitor.get(f"{here}/edit")).text
    assert f'name="limitId" value="{limit["id"]}"' in page
    await visitor.post(
        f"{here}/edit", f"{here}/edit", name="Crew 2", limitId=limit["id"], window="week",
        amount="", count="7",
    )  # fmt: skip
    shown = (await tenant.api.get(f"/v1{here.removeprefix('/console')}")).json()["data"]
    assert (shown["name"], shown["limits"][0]["id"]) == ("Crew 2", limit["id"])
    assert (shown["limits"][0]["amount"], shown["limits"][0]["count"]) == (None, 7)
    await visitor.post(
        f"{here}/edit", f"{here}/edit", name="Crew 2", limitId=limit["id"], window="week",
        amount="", count="",
    )  # fmt: skip
    assert "no limit of its own" in (await visitor.get(here)).text
    await visitor.post(f"/console/budgets/{top}", here, 409, doing="delete")
    await visitor.post(here, here, doing="delete")
    await visitor.get(here, 404)


async def _read(tenant: Tenant, budget_id: str) -> Any:
    return (await tenant.api.get(f"/v1/budgets/{budget_id}")).json()["data"]


async def test_what_another_changed_meanwhile_is_not_overwritten(tenant: Tenant):
    """Goal: who is late reads how it is now and keeps what was typed; saved once more, it counts. A
    form that was shown again for another fault is late all the same."""
    visitor, budget = tenant.visitor, await _budget(tenant, "Crew")
    form = f"/console/budgets/{budget}/edit"
    (limit,) = (await _read(tenant, budget))["limits"]
    typed: dict[str, Any] = {
        "name": "Mine", "limitId": limit["id"], "window": "day", "amount": "99", "count": "",
    }  # fmt: skip
    opened = seen_in(await visitor.get(form))
    lower = {"limits": [{"id": limit["id"], "window": "day", "amount": "2.50"}]}
    assert (await tenant.api.patch(f"/v1/budgets/{budget}", json=lower)).status_code == 200
    wrong = await visitor.post(form, form, 400, **typed | {"amount": "ten"}, seen=opened)
    late = await visitor.post(form, form, 409, **typed, seen=seen_in(wrong))
    assert "somebody else changed this budget" in late.text
    assert "2.50 USDC a day" in late.text
    assert 'value="Mine"' in late.text
    assert 'value="99"' in late.text
    assert (await _read(tenant, budget))["limits"][0]["amount"] == "2.50"
    await visitor.post(form, form, **typed, seen=seen_in(late))
    # A second click changes nothing, so nobody was overtaken.
    await visitor.post(form, form, **typed, seen=seen_in(late))
    shown = await _read(tenant, budget)
    assert (shown["name"], shown["limits"][0]["amount"]) == ("Mine", "99.00")


async def test_a_change_that_is_being_made_is_not_overwritten_either(tenant: Tenant):
    """Goal: a form that came while another change held the lock is judged by what that left."""
    budget = await _budget(tenant, "Crew")
    form = f"/console/budgets/{budget}/edit"
    async with tenant.service.db.transaction() as tx:
        await tx.execute("SELECT FROM meter WHERE id = $1 FOR NO KEY UPDATE", budget)
        late = asyncio.create_task(tenant.visitor.post(form, form, 409, name="Mine"))
        await until_waited_for(tx)
        await tx.execute(
            "UPDATE budget SET name = 'Theirs', updated_at = moment() WHERE id = $1", budget
        )
    assert "Theirs" in (await late).text
    assert (await _read(tenant, budget))["name"] == "Theirs"


async def test_an_agent_that_another_moved_meanwhile_stays_there(tenant: Tenant):
    mine, theirs = await _budget(tenant, "Mine"), await _budget(tenant, "Theirs")
    agent = await new_agent(tenant.api)
    form = f"/console/agents/{agent['id']}/budget"
    opened = seen_in(await tenant.visitor.get(form))
    await tenant.api.patch(f"/v1/agents/{agent['id']}", json={"budgetId": theirs})
    late = await tenant.visitor.post(form, form, 409, budgetId=mine, seen=opened)
    assert f'Now it is under <a href="/console/budgets/{theirs}">' in late.text
    shown = (await tenant.api.get(f"/v1/agents/{agent['id']}")).json()["data"]
    assert shown["budgetId"] == theirs
    await tenant.visitor.post(form, form, budgetId=mine, seen=seen_in(late))
    shown = (await tenant.api.get(f"/v1/agents/{agent['id']}")).json()["data"]
    assert shown["budgetId"] == mine


async def test_agents_are_moved(tenant: Tenant):
    """Goal: one on its own page, many by their metadata; the list is by budget."""
    team = await _budget(tenant, "Search")
    agent = await new_agent(tenant.api, name="one")
    for _ in range(2):
        await new_agent(tenant.api, name="many", metadata={"team": "search"})
    here = f"/console/agents/{agent['id']}"
    assert "Under no budget" in (await tenant.visitor.get(here)).text
    await tenant.visitor.post(f"{here}/budget", f"{here}/budget", budgetId=team)
    assert f'Under <a href="/console/budgets/{team}">' in (await tenant.visitor.get(here)).text
    there = f"/console/budgets/{team}"
    await tenant.visitor.post(f"{there}/agents", there, 400, metadata="team")
    await tenant.visitor.post(f"{there}/agents", there, 400, metadata="")
    await tenant.visitor.post(f"{there}/agents", there, metadata="team=search")
    page = (await tenant.visitor.get(f"/console/agents?budgetId={team}")).text
    assert len(re.findall(r'<tr data-key="ag_', page)) == 3
    found = await tenant.visitor.get(f"/console/agents?budgetId={team}&q=one")
    assert re.findall(r'<tr data-key="(ag_\w+)', found.text) == [agent["id"]]
    await tenant.visitor.post(f"{here}/budget", f"{here}/budget", budgetId="")
    page = (await tenant.visitor.get(f"/console/agents?budgetId={team}")).text
    assert agent["id"] not in page
    await tenant.visitor.post(f"{here}/budget", f"{here}/budget", 400, budgetId="bud_other")


async def test_all_that_a_filter_finds_are_stopped(tenant: Tenant):
    """Goal: an approver stops a label's agents, and only those; resuming is for admins."""
    search, other = [
        await new_agent(tenant.api, metadata={"team": team}) for team in ("search", "ads")
    ]
    many = "/console/agents/many"
    for plain in ("/console/agents", "/console/agents?q=agent&metadata=team%3Dsearch"):
        assert many not in (await tenant.visitor.get(plain)).text
    made = await tenant.api.post("/v1/keys", json={"name": "x", "scope": "approver"})
    labelled = "/console/agents?metadata=team%3Dsearch"
    async with browser_of(tenant.service) as http:
        visitor = await sign_in(http, made.json()["data"]["key"])
        page = (await visitor.get(labelled)).text
        assert "Stop all of these" in page
        assert "Resume all of these" not in page
        done = await visitor.post(many, labelled, doing="pause", metadata="team=search")
        assert done.headers["location"] == f"{labelled}&said=many_paused"
        await visitor.post(many, labelled, 403, doing="resume", metadata="team=search")
        await visitor.post(many, labelled, 400, doing="pause", metadata="")
    states = [
        (await tenant.api.get(f"/v1/agents/{agent['id']}")).json()["data"]["status"]
        for agent in (search, other)
    ]
    assert states == ["paused", "active"]
    await tenant.visitor.post(many, labelled, doing="resume", metadata="team=search")
    shown = (await tenant.api.get(f"/v1/agents/{search['id']}")).json()["data"]
    assert shown["status"] == "active"


async def test_filters_stay_in_the_address(tenant: Tenant):
    """Goal: whoever pages on, goes back to the newest or sends the form again keeps them."""
    agent = await new_agent(tenant.api, metadata={"team": "search"})
    team = await _budget(tenant, "Search")
    await tenant.api.patch(f"/v1/agents/{agent['id']}", json={"budgetId": team})
    for _ in range(26):
        await new_agent(tenant.api, budgetId=team, metadata={"team": "search"})
    start = f"/console/agents?status=active&budgetId={team}&metadata=team%3Dsearch"
    page = (await tenant.visitor.get(start)).text
    assert f'name="budgetId" value="{team}"' in page
    older = re.search(r'href="(\?[^"]+)" rel="next"', page)
    assert older is not None
    last = (await tenant.visitor.get(f"/console/agents{older[1].replace('&amp;', '&')}")).text
    assert len(re.findall(r'<tr data-key="ag_', last)) == 2
    newest = f"?status=active&amp;budgetId={team}&amp;metadata=team%3Dsearch"
    assert f'href="{newest}">Newest' in last
    await tenant.service.fund(agent["id"], "100")
    for _ in range(51):
        await spend(tenant.api, agent["id"], "200")
    page = (await tenant.visitor.get("/console/transactions?status=rejected")).text
    older = re.search(r'href="(\?[^"]+)" rel="next"', page)
    assert older is not None
    last = await tenant.visitor.get(f"/console/transactions{older[1].replace('&amp;', '&')}")
    assert 'href="?status=rejected">Newest' in last.text


async def test_many_budgets_have_pages(tenant: Tenant):
    """Goal: the tree goes on where the page ended, and says below what; a search finds by name."""
    top = await _budget(tenant, "All")
    for number in range(50):
        await _budget(tenant, f"Team {number:02d}", parentId=top)
    page = (await tenant.visitor.get("/console/budgets")).text
    assert len(re.findall(r'<tr data-key="bud_', page)) == 50
    assert 'href="?from=50" rel="next"' in page
    last = (await tenant.visitor.get("/console/budgets?from=50")).text
    (name,) = re.findall(r'<td data-label="Budget" class="clip name">(.+?)</td>', last, re.DOTALL)
    assert "All" in name
    assert "Team 49" in name
    found = (await tenant.visitor.get("/console/budgets?q=team+4")).text
    assert len(re.findall(r'<tr data-key="bud_', found)) == 10
    assert "No budget is called so." in (await tenant.visitor.get("/console/budgets?q=x")).text


async def test_an_agents_key_learns_no_budgets_name(tenant: Tenant):
    """Goal: it sees what stands over it, as decisions tell it, and nothing else of a budget."""
    team = await _budget(tenant, "Secret plan")
    agent = await new_agent(tenant.api, budgetId=team)
    body = {"name": "x", "scope": "agent", "agentId": agent["id"]}
    key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]
    async with browser_of(tenant.service) as http:
        visitor = await sign_in(http, key)
        for path in (f"/console/agents/{agent['id']}", "/console/agents"):
            page = (await visitor.get(path)).text
            assert "Secret plan" not in page
            assert "/console/budgets" not in page
        assert "a shared budget" in (await visitor.get(f"/console/agents/{agent['id']}")).text
        await visitor.get("/console/budgets", 403)
        await visitor.get(f"/console/budgets/{team}", 403)


async def test_a_sparkline_is_what_was_paid(tenant: Tenant):
    """Goal: a bar for each day with settled money, also of totals not yet folded in."""
    agent, other = [await new_agent(tenant.api) for _ in range(2)]
    async with tenant.service.db.connection() as tx:
        for table, days, micros in (("day_total", 1, 4_000_000), ("total_delta", 13, 1_000_000),
                                    ("day_total", 14, 9_000_000)):  # fmt: skip
            recipient = ", recipient" if table == "total_delta" else ""
            await tx.execute(
                f"INSERT INTO {table} (realm_id, agent_id, day, spend_count, rejected_count,"
                f" settled_micros{recipient}) SELECT realm_id, id,"
                " (moment() AT TIME ZONE 'UTC')::date - $2::int, 1, 0, $3"
                f"{', $$x.example.com$$' if recipient else ''} FROM agent WHERE id = $1",
                agent["id"],
                days,
                micros,
            )
    page = (await tenant.visitor.get("/console/agents")).text
    (label,) = re.findall(r'class="spark"[^>]+aria-label="([^"]+)"', page)
    assert label == "5.00 USDC in 14 days, at most 4.00 a day"
    (path,) = re.findall(r'<path d="([^"]+)"', page)
    assert path == "M0 24v-6h6v6zM96 24v-24h6v24z"
    assert other["id"] in page
