"""Goal: every page reads well for everybody, whatever agents write into it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect
from solders.keypair import Keypair

from tests.browser.support import DESKTOP, PHONE, Console, Guest
from tests.processes import until
from tests.support import spend

# Names, memos and metadata are text, whatever they look like.
HOSTILE = (
    '<script>document.title="taken"</script>',
    '"><img src=x onerror="document.title=\'taken\'">',
    "'; document.title='taken'; //",
    "javascript:document.title='taken'",
    "{{ 7 * 7 }}${7*7}<%= 7 * 7 %>",
    "\u202egnorw si siht\u202c",
    "</textarea></title></style><h1>taken</h1>",
    "a" * 99,
)


async def _every_page(console: Console) -> list[str]:
    """An account with something on each page, and the paths of all of them."""
    agent = await console.agent(
        name="Everything",
        metadata={"team": "search"},
        policy={"approvalThreshold": "5.00", "blocklist": ["bad.example.org"]},
    )
    await console.client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": "90.00"}})
    paid = await spend(console.client, agent["id"], "1", memo="one")
    await spend(console.client, agent["id"], "6", metadata={"order": "7"})
    refused = await spend(console.client, agent["id"], "1000")
    hook = await console.hooks.register(console.client, "fail/console")
    await console.client.post(f"/v1/webhooks/{hook['id']}/test")
    team = await _near_its_limit(console, agent)
    for _ in range(2):
        address = str(Keypair().pubkey())
        await console.client.put("/v1/recipients/api.example.com", json={"address": address})
    tried = await _tried(console, agent)
    return [
        "/console",
        "/console/agents",
        "/console/agents?q=nobody",
        "/console/agents/new",
        f"/console/agents/{agent['id']}",
        f"/console/agents/{agent['id']}/connect",
        f"/console/agents/{agent['id']}/policy",
        f"/console/agents/{agent['id']}/budget",
        f"/console/agents?budgetId={team}",
        "/console/search?q=e",
        "/console/budgets",
        "/console/budgets/new",
        f"/console/budgets/{team}",
        f"/console/budgets/{team}/edit",
        f"/console/backtests/{tried}",
        "/console/approvals",
        "/console/transactions",
        f"/console/transactions/{paid['id']}",
        f"/console/transactions/{refused['id']}",
        "/console/recipients",
        "/console/audit-log",
        "/console/webhooks",
        f"/console/webhooks/{hook['id']}",
        "/console/keys",
        "/console/sessions",
    ]


async def _tried(console: Console, agent: dict[str, Any]) -> str:
    """A backtest that found differences."""
    body = {"agentId": agent["id"], "policy": {"dailyCap": "1.00", "blocklist": ["x.example.org"]}}
    made = (await console.client.post("/v1/backtests", json=body)).json()["data"]["id"]

    async def done() -> bool:
        found = (await console.client.get(f"/v1/backtests/{made}")).json()["data"]
        return found["status"] == "done"

    await until(done, seconds=60, every=0.1)
    return made


async def _near_its_limit(console: Console, agent: dict[str, Any]) -> str:
    """A budget below another, with the agent under it and most of its hour used."""
    above: str | None = None
    for name in ("Everybody", "Search and a rather long name for a team"):
        limits = [
            {"window": "hour", "amount": "3.00", "count": 90},
            {"window": "lifetime", "count": 5},
        ]
        made = await console.client.post(
            "/v1/budgets", json={"name": name, "limits": limits, "parentId": above}
        )
        above = made.json()["data"]["id"]
    await console.client.patch(f"/v1/agents/{agent['id']}", json={"budgetId": above})
    await spend(console.client, agent["id"], "2.75")
    assert above is not None
    return above


@pytest.mark.parametrize(
    ("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
async def test_every_page_is_accessible(console: Console, viewport: Mapping[str, int], scheme: str):
    """Goal: no serious fault on any page; colours are checked in both schemes."""
    paths = await _every_page(console)
    outside = await console.guest(viewport=viewport, scheme=scheme)
    await outside.open("/console/sign-in")
    await outside.accessible()
    guest = await console.sign_in(viewport=viewport, scheme=scheme)
    for path in paths:
        await guest.open(path)
        # What is folded away is looked at too.
        await guest.page.evaluate(
            "document.querySelectorAll('details').forEach((d) => d.open = true)"
        )
        await guest.accessible()
        await guest.fits()
    await guest.open("/console/agents/ag_nobody", 404)
    await guest.accessible()
    await guest.open(paths[4])
    await guest.press("Terminate")
    await guest.accessible()


async def test_with_nothing_in_it(console: Console, admin: Guest):
    """Goal: an empty console says what to do first."""
    for path, said in (
        ("/console", "Make the first agent"),
        ("/console/agents", "There is no agent yet."),
        ("/console/budgets", "There is no budget yet."),
        ("/console/approvals", "All decided."),
        ("/console/transactions", "No agent has spent yet."),
        ("/console/webhooks", "No webhook yet."),
    ):
        await admin.open(path)
        await admin.sees(said)
        await admin.accessible()


async def test_with_the_keyboard_alone(console: Console, admin: Guest):
    """Goal: skip the navigation, open a dialog, leave it, open it again and stop the agent."""
    agent = await console.agent(name="Runaway")
    await admin.open(f"/console/agents/{agent['id']}")
    keyboard = admin.page.keyboard
    await keyboard.press("Tab")
    await expect(admin.page.get_by_text("Skip to the content")).to_be_focused()
    await keyboard.press("Enter")
    button = admin.page.get_by_role("button", name="Freeze")
    for _ in range(10):
        if await button.evaluate("(element) => element === document.activeElement"):
            break
        await keyboard.press("Tab")
    await keyboard.press("Enter")
    dialog = admin.page.locator("dialog[open]")
    await expect(dialog).to_be_visible()
    await keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(button).to_be_focused()
    await keyboard.press("Enter")
    await expect(dialog.get_by_role("button", name="Freeze")).to_be_focused()
    await keyboard.press("Enter")
    await admin.sees("Frozen.")


async def test_moments_are_the_readers(console: Console, admin: Guest):
    """Goal: local time in the text, UTC when one hovers."""
    agent = await console.agent()
    await admin.open(f"/console/agents/{agent['id']}")
    made = datetime.fromisoformat(agent["createdAt"])
    shown = admin.page.locator(f"#policy time[datetime='{agent['createdAt']}']")
    await admin.page.get_by_text("History").click()
    local = made + timedelta(hours=9)
    await expect(shown).to_contain_text(local.strftime("%H:%M"))
    await expect(shown).to_have_attribute(
        "title", f"{made:%Y-%m-%d %H:%M:%S}.{made.microsecond // 1000:03d} UTC"
    )


async def test_hostile_text_stays_text(console: Console, admin: Guest):
    """Goal: what agents say can neither break a page nor script it."""
    agents: list[dict[str, Any]] = []
    for number, text in enumerate(HOSTILE):
        agent = await console.agent(
            name=text, metadata={text[:40]: text}, policy={"approvalThreshold": "5.00"}
        )
        agents.append(agent)
        amount = "6" if number % 2 else "1"
        await spend(console.client, agent["id"], amount, memo=text, metadata={text[:40]: text})
    key, _ = await console.new_key("read")
    del key
    await console.client.post("/v1/keys", json={"name": HOSTILE[1], "scope": "read"})
    spends = (await console.client.get("/v1/transactions")).json()["data"]
    paths = [
        "/console",
        "/console/agents",
        "/console/approvals",
        "/console/transactions",
        "/console/keys",
        "/console/sessions",
    ]
    paths += [f"/console/agents/{agent['id']}" for agent in agents[:3]]
    paths += [f"/console/agents/{agents[1]['id']}/policy"]
    paths += [f"/console/transactions/{row['id']}" for row in spends[:3]]
    for path in paths:
        await admin.open(path)
        assert "taken" not in await admin.page.title() or path.startswith("/console/agents/ag_")
        assert await admin.page.locator("main script, main img, main iframe").count() == 0
        assert "taken" not in await admin.page.locator("h1").all_inner_texts()
        await admin.fits()
    await admin.open("/console/agents")
    await expect(admin.page.locator("#agents tbody tr")).to_have_count(len(HOSTILE))
    await admin.sees(*(text for text in HOSTILE if "\u202e" not in text))
    for text in HOSTILE[:3]:
        await admin.page.get_by_label("Search").fill(text)
        await admin.press("Filter")
        await expect(admin.page.locator("#agents tbody tr")).to_have_count(1)
        await expect(admin.page.get_by_label("Search")).to_have_value(text)
    admin.meant.add(400)
    await admin.page.goto(
        f"{admin.url}/console/transactions?recipient=%22%3E%3Cscript%3E1%3C/script%3E"
    )
    assert await admin.page.locator("main script").count() == 0
