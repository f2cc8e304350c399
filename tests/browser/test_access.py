"""Goal: who may come in, for how long, and what each scope sees."""

import pytest
from playwright.async_api import expect

from tests.browser.support import Console, Guest
from tests.support import spend

THRESHOLD = {"approvalThreshold": "5.00"}


async def _buttons(guest: Guest) -> set[str]:
    found = await guest.page.locator("main button:visible").all_inner_texts()
    return {text for text in found if text not in ("Copy", "Filter")}


async def _tabs(guest: Guest) -> list[str]:
    return await guest.page.locator("nav[aria-label=Console] a").all_inner_texts()


async def test_signing_in_and_out(console: Console):
    """Goal: a wrong key is refused, a right one leads where one wanted to go, and out is out."""
    guest = await console.guest()
    guest.meant.add(401)
    await guest.page.goto(f"{guest.url}/console/keys")
    await guest.page.get_by_label("API key").fill("bur_test_wrong")
    await guest.press("Sign in")
    await expect(guest.page.get_by_role("alert")).to_contain_text("not valid")
    # With the keyboard alone.
    await guest.page.get_by_label("API key").focus()
    await guest.page.keyboard.type(console.key)
    await guest.page.keyboard.press("Enter")
    await expect(guest.page.get_by_role("heading", name="Keys")).to_be_visible()
    (cookie,) = await guest.context.cookies()
    assert cookie.get("httpOnly")
    assert cookie.get("sameSite") == "Strict"
    assert console.key not in str(await guest.context.storage_state())
    assert await guest.page.evaluate("document.cookie") == ""
    await guest.press("Sign out")
    await expect(guest.page.get_by_label("API key")).to_be_visible()
    await guest.page.goto(f"{guest.url}/console/keys")
    await expect(guest.page.get_by_label("API key")).to_be_visible()


async def test_a_session_that_ends_while_the_page_is_open(console: Console, admin: Guest):
    """Goal: the page says so by itself, and one comes back to it after signing in."""
    agent = await console.agent(name="Patient")
    admin.meant.add(401)
    await admin.open(f"/console/agents/{agent['id']}")
    async with console.hooks.service.db.connection() as tx:
        await tx.execute(
            "UPDATE console_session SET created_at = moment() - interval '2 days',"
            " expires_at = moment() - interval '1 second'"
        )
    sign = admin.page.locator("#live")
    await expect(sign).to_contain_text("Your session has ended")
    await sign.get_by_role("link", name="Sign in").click()
    await expect(admin.page.get_by_role("status")).to_contain_text("Your session has ended")
    await admin.page.get_by_label("API key").fill(console.key)
    await admin.press("Sign in")
    await expect(admin.page.get_by_role("heading", name="Patient")).to_be_visible()


async def test_a_link_from_another_site_finds_the_session(console: Console, admin: Guest):
    """Goal: the cookie is kept from other sites, yet a link in a chat leads to the page."""
    target = f"{console.url}/console/approvals"
    # Another site: the same machine by another name.
    elsewhere = console.url.replace("127.0.0.1", "localhost")
    await admin.context.route(
        f"{elsewhere}/chat",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<link rel="icon" href="data:,"><a href="{target}">decide</a>',
        ),
    )
    await admin.page.goto(f"{elsewhere}/chat")
    await admin.page.get_by_role("link", name="decide").click()
    await expect(admin.page.get_by_role("heading", name="Approvals")).to_be_visible()
    admin.complaints = [text for text in admin.complaints if "/chat" not in text]


@pytest.mark.parametrize("scope", ["admin", "approver", "read", "agent"])
async def test_a_key_of_each_scope(console: Console, scope: str):
    """Goal: a page shows what its key may do, and not a button more."""
    agent = await console.agent(name="Mine", policy=THRESHOLD)
    other = await console.agent(name="Other")
    waiting = await spend(console.client, agent["id"], "6")
    bound = agent["id"] if scope == "agent" else None
    _, key = await console.new_key(scope, bound)
    guest = await console.sign_in(key)
    tabs = ["Overview", "Agents", "Budgets", "Approvals", "Transactions", "Purchases"]
    tabs += ["Recipients", "Webhooks"]
    expected: dict[str, tuple[list[str], set[str], set[str]]] = {
        "admin": (
            [*tabs, "Keys", "Log"],
            {"Approve", "Deny", "Cancel this spend"},
            {"Freeze", "Pause", "Terminate"},
        ),
        "approver": ([*tabs, "Log"], {"Approve", "Deny"}, {"Freeze", "Pause"}),
        "read": ([*tabs, "Log"], set(), set()),
        "agent": (["Agent", "Transactions", "Purchases"], set(), set()),
    }  # fmt: skip
    shown, deciding, stopping = expected[scope]
    assert await _tabs(guest) == shown
    await guest.open(f"/console/agents/{agent['id']}")
    assert await _buttons(guest) == stopping
    edit = guest.page.get_by_role("link", name="Edit")
    await expect(edit).to_have_count(1 if scope == "admin" else 0)
    await guest.open(f"/console/transactions/{waiting['id']}")
    assert await _buttons(guest) == deciding
    refused = 200 if scope == "admin" else 403
    await guest.open("/console/keys", refused)
    await guest.open(f"/console/agents/{agent['id']}/policy", refused)
    if scope == "agent":
        await guest.open("/console", 200)
        assert guest.page.url.endswith(agent["id"])
        await guest.open(f"/console/agents/{other['id']}", 404)
        await guest.open("/console/webhooks", 403)
        await guest.sees("Not with this key")
    else:
        await guest.open("/console/webhooks")
        await guest.open("/console/agents")
        assert await _buttons(guest) == set()
        await guest.open("/console/approvals")
        assert await _buttons(guest) == deciding - {"Cancel this spend"}
    if scope == "approver":
        await guest.open(f"/console/agents/{other['id']}")
        await guest.confirm("Freeze")
        await guest.sees("Frozen.")
        assert await _buttons(guest) == {"Pause"}


async def test_without_script(console: Console):
    """Goal: everything that matters is HTML: pages, forms and one-click approval."""
    agent = await console.agent(name="Plain", policy=THRESHOLD)
    await spend(console.client, agent["id"], "9")
    guest = await console.sign_in(script=False)
    await guest.open("/console/approvals")
    await guest.sees("9.00", "UTC")
    await guest.page.get_by_role("button", name="Approve").click()
    await guest.sees("Approved.", "All decided.")
