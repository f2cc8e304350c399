"""What each key may reach, and that hostile text stays text."""

import re
from contextlib import suppress

import pytest
from solders.keypair import Keypair

from bursar.api.routes import ROUTES
from bursar.console import store
from bursar.console.screens import SCREENS
from tests.console.support import HOSTILE, Tenant, Visitor, browser_of, sign_in, token_of
from tests.support import Service, new_agent, spend


@pytest.mark.parametrize("scope", ["admin", "approver", "read", "agent"])
async def test_screens_need_the_scope_of_their_route(tenant: Tenant, scope: str):
    """Goal: whatever a page shows, no form of it does more than the key may."""
    agent = await new_agent(tenant.api)
    made = await tenant.api.post("/v1/budgets", json={"name": "x", "limits": []})
    budget = made.json()["data"]["id"]
    body = {"name": "x", "scope": scope, **({"agentId": agent["id"]} if scope == "agent" else {})}
    key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]
    routes = {f"{route.method} {route.path}": route for route in ROUTES}
    async with browser_of(tenant.service) as http:
        visitor = await sign_in(http, key)
        token = token_of(await visitor.get(f"/console/agents/{agent['id']}"))
        for screen in SCREENS:
            allowed = scope in {scope.value for scope in routes[screen.stands_for].scopes}
            of = budget if screen.path.startswith("/console/budgets/") else agent["id"]
            path = screen.path.replace(":id", of)
            answer = await http.request(
                screen.method,
                path,
                data={"form_token": token} if screen.method == "POST" else None,
            )
            # The route of an agent's change also looks at what an approver sends.
            editing = path.endswith(("/policy", "/preview", "/budget", "/agents")) and (
                "PATCH /v1/agents" in screen.stands_for
            )
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
    waiting = await spend(tenant.api, other["id"], "2.220022")
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
            "/console/deposits.csv",
            "/console/withdrawals.csv",
        ):
            page = (await visitor.get(path)).text
            for secret in (other["id"], waiting["id"], "2.220022", "66.66", "1 waiting"):
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


async def test_one_box_finds_everything(tenant: Tenant):
    """Goal: ids, names, hosts, addresses and signatures lead where they belong, and a key finds
    what it may see alone."""
    mine = await new_agent(tenant.api, name="Crawler one")
    other = await new_agent(tenant.api, name="Crawler two")
    await tenant.service.fund(mine["id"], "5")
    paid = await spend(tenant.api, mine["id"], "1", recipient="api.example.com")
    made = await tenant.api.post("/v1/budgets", json={"name": "Crawling", "limits": []})
    budget = made.json()["data"]["id"]
    address = str(Keypair().pubkey())
    await tenant.api.put("/v1/recipients/crawl.example.com", json={"address": address})
    hook = {"url": "https://crawl.example.com/x", "events": ["*"]}
    webhook = (await tenant.api.post("/v1/webhooks", json=hook)).json()["data"]["id"]
    body = {"name": "Crawler's own", "scope": "agent", "agentId": mine["id"]}
    key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]

    async def found(visitor: Visitor, words: str) -> set[str]:
        """The pages that a search leads to or lists."""
        answer = await visitor.http.get("/console/search", params={"q": words})
        if answer.status_code == 303:
            return {answer.headers["location"].removeprefix("/console/")}
        assert answer.status_code == 200
        lists = re.findall(r'<ul class="list">(.*?)</ul>', answer.text, re.DOTALL)
        return set(re.findall(r'href="/console/([^"]+)"', "".join(lists)))

    agents = {f"agents/{mine['id']}", f"agents/{other['id']}"}
    directory = "recipients?hostname=crawl.example.com"
    one = {
        mine["id"]: f"agents/{mine['id']}",
        paid["id"]: f"transactions/{paid['id']}",
        mine["wallet"]["address"]: f"agents/{mine['id']}",
    }
    for words, to in one.items():
        assert await found(tenant.visitor, words) == {to}
    assert await found(tenant.visitor, budget) == {f"budgets/{budget}"}
    assert await found(tenant.visitor, webhook) == {f"webhooks/{webhook}"}
    assert await found(tenant.visitor, "CRAWL") == {
        *agents,
        f"budgets/{budget}",
        directory,
        f"webhooks/{webhook}",
        f"audit-log?actor={key['id']}",
    }
    assert await found(tenant.visitor, "api.example.com") == {f"transactions/{paid['id']}"}
    assert await found(tenant.visitor, address) == {directory}
    for nothing in ("", "%", "nobody", "ag_00000000000000000000000000", HOSTILE):
        assert await found(tenant.visitor, nothing) == set()
    async with browser_of(tenant.service) as http:
        visitor = await sign_in(http, key["key"])
        for words, to in one.items():
            assert await found(visitor, words) == {to}
        assert await found(visitor, "api.example.com") == {f"transactions/{paid['id']}"}
        for words in ("crawl", other["id"], other["wallet"]["address"], budget, webhook, address):
            assert await found(visitor, words) == set()
    async with await tenant.service.admin() as stranger, browser_of(tenant.service) as http:
        visitor = await sign_in(http, stranger.headers["Authorization"].removeprefix("Bearer "))
        for words in (*one, budget, webhook, address, "crawl", "api.example.com"):
            assert await found(visitor, words) == set()


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
