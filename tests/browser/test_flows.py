"""Goal: an operator can do everything the console is for, in a real browser on a live service."""

import csv
import io
import re

from playwright.async_api import expect

from bursar.policy.engine import Rule
from tests.browser.support import Console, Guest
from tests.processes import until
from tests.support import ON_CURVE, spend

THRESHOLD = {"approvalThreshold": "5.00"}


async def test_the_overview_shows_the_money_and_renews_itself(console: Console, admin: Guest):
    """Goal: a spend appears by itself, and its settlement too, while the page is open."""
    agent = await console.agent(name="Crawler", policy={"dailyCap": "15.00"})
    await admin.open("/console")
    await admin.sees("Spent today", "Available", "Nothing waits to be paid.")
    await admin.page.evaluate("window.sameDocument = true")
    made = await spend(console.client, agent["id"], "12.50", memo="a book")
    row = admin.page.locator(f"#latest [data-key={made['id']}]")
    await expect(row).to_contain_text("settled")
    await expect(row).to_contain_text("Crawler")
    await expect(admin.page.locator("#figures")).to_contain_text("12.50 USDC")
    await expect(admin.page.locator("#charts")).to_contain_text("12.50 USDC settled")
    await expect(admin.page.locator("#news")).to_contain_text("new entr")
    assert await admin.page.evaluate("window.sameDocument"), "the page was not loaded again"
    await expect(admin.page.locator("#attention")).to_contain_text("12.50 of 15.00")
    await spend(console.client, agent["id"], "2.51")
    await admin.sees("More than was left of the day's cap.")


async def test_an_agents_life(console: Console, admin: Guest):
    """Goal: made, funded, changed with a preview, stopped, resumed, emptied and ended by hand."""
    page = admin.page
    await admin.open("/console/agents")
    await admin.sees("There is no agent yet.")
    await page.get_by_role("link", name="New agent").click()
    admin.meant.add(400)
    await page.get_by_label("Name").fill("Reader")
    await page.get_by_label("Daily cap, USDC").fill("ten")
    await page.get_by_label("Allowlist").fill("https://example.com/")
    await admin.press("Make the agent")
    await expect(page.get_by_label("Daily cap, USDC")).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Name")).to_have_value("Reader")
    await page.get_by_label("Daily cap, USDC").fill("30.00")
    await page.get_by_label("Allowlist").fill("api.example.com\n*.example.org")
    await page.get_by_label("Metadata").fill("team=search")
    await admin.press("Make the agent")
    await admin.sees("The agent is made.", "Reader", "bur_test_…")
    await page.get_by_label("Your API key").fill(console.key)
    await admin.press("Make its key")
    key = await page.locator("#secret").inner_text()
    await admin.accessible()
    await admin.fits()
    for number, words in enumerate(("curl", "mcpServers", "from bursar", 'from "bursar"')):
        lines = page.locator(".snippet pre").nth(number)
        await expect(lines).to_contain_text(words)
        await expect(lines).to_contain_text(key)
    await page.get_by_role("link", name="I have it").click()
    await admin.sees("Reader", "team=search", "provisioned")

    await page.get_by_text("Fund with test money").click()
    await page.locator("form[action$=fund]").get_by_label("Amount").fill("25")
    await page.locator("form[action$=fund]").get_by_role("button", name="Fund").click()
    await admin.sees("The test money is in the wallet.", "25.00", "+25.00")

    await page.get_by_role("link", name="Edit").click()
    await page.get_by_label("Daily cap, USDC").fill("40.00")
    await page.get_by_label("A person approves above").fill("10")
    await page.get_by_label("Allowlist").fill("api.example.com\nnew.example.com")
    await admin.press("See what changes")
    await expect(page.locator(".changes")).to_contain_text("30.00")
    await expect(page.locator("del")).to_have_text(["30.00", "none", "*.example.org"])
    await expect(page.locator("ins")).to_have_text(["40.00", "10.00", "new.example.com"])
    await admin.press("Back to the editor")
    await expect(page.get_by_label("Daily cap, USDC")).to_have_value("40.00")
    await admin.press("See what changes")
    await admin.press("Put it in force")
    await admin.sees("The new policy is in force.", "version 2")
    await page.get_by_text("History").click()
    await admin.sees("Version 2", "Version 1", "The first one.")

    for button, said in (
        ("Freeze", "Frozen."), ("Unfreeze", "Unfrozen."), ("Pause", "Paused."),
        ("Resume", "Resumed."),
    ):  # fmt: skip
        await admin.confirm(button)
        await expect(page.get_by_role("status").first).to_contain_text(said)

    await page.get_by_text("Withdraw", exact=True).first.click()
    form = page.locator("form[action$='withdraw/review']")
    await form.get_by_label("Amount").fill("26")
    await form.get_by_label("To the address").fill(ON_CURVE)
    admin.meant |= {400, 401}
    await admin.press("Look it over")
    await expect(page.get_by_role("alert")).to_contain_text("The amount is more than the 25.00")
    await admin.accessible()
    await expect(form.get_by_label("Amount")).to_have_value("26")
    await expect(form.get_by_label("To the address")).to_have_value(ON_CURVE)
    await form.get_by_label("Amount").fill("5")
    await admin.press("Look it over")
    await admin.sees("Is this right?", ON_CURVE, "never from this wallet", "20.00 of 25.00")
    await admin.accessible()
    await admin.fits()
    await page.get_by_label("Your API key").fill("bur_test_wrong")
    await admin.press("Withdraw 5.00 USDC")
    await expect(page.get_by_role("alert")).to_contain_text("the key you are signed in with")
    await expect(page.get_by_label("Your API key")).to_have_value("")
    await page.get_by_label("Your API key").fill(console.key)
    await admin.press("Withdraw 5.00 USDC")
    await admin.sees("The withdrawal is reserved", "−5.00")
    await expect(page.locator("#moves")).to_contain_text("settled")

    await admin.confirm("Terminate", "Terminate for good")
    await admin.sees("Terminated, for good.")
    await expect(page.get_by_role("button", name="Freeze")).to_have_count(0)
    await admin.open("/console/agents?status=terminated")
    await admin.sees("Reader")


async def test_everything_is_stopped_and_goes_on(console: Console, admin: Guest):
    """Goal: one click and a confirmation from any page; another person's open page shows it by
    itself; an admin resumes and says what becomes of what was held."""
    agent = await console.agent(name="Crawler")
    other = await console.sign_in()
    await other.open("/console/transactions")
    await admin.open(f"/console/agents/{agent['id']}")
    page = admin.page
    await admin.press("Stop all agents")
    dialog = page.locator("dialog[open]")
    await admin.accessible()
    await dialog.get_by_label("Why").fill("a look at the books")
    await dialog.get_by_label("Also hold").check()
    await dialog.get_by_role("button", name="Stop all agents").click()
    await admin.sees("Stopped. No spend", "Every agent is stopped", "a look at the books")
    await admin.accessible()
    await expect(page.get_by_role("button", name="Stop all agents")).to_have_count(0)
    await other.sees("Every agent is stopped", "a look at the books")
    made = await spend(console.client, agent["id"], "1")
    assert made["rejectCode"] == "account_stopped"
    await page.get_by_role("button", name="Resume", exact=True).click()
    await dialog.get_by_label("Cancel it").check()
    await admin.accessible()
    await dialog.get_by_role("button", name="Resume").click()
    await admin.sees("Resumed.")
    await admin.misses("Every agent is stopped")
    await other.misses("Every agent is stopped")
    assert (await spend(console.client, agent["id"], "1"))["status"] == "approved"


async def test_a_team_near_its_budget_is_stopped_and_kept_shorter(console: Console, admin: Guest):
    """Goal: whoever signs in sees which team is near its budget, and stops that team from there;
    the others go on. A stricter cap for its agent is tried on last month and put in force."""
    teams = {}
    top = await _budget(console, "Company", "month", "900.00")
    for name, spent in (("Search", "2"), ("Travel", "8.75")):
        teams[name] = await _budget(console, name, "day", "10.00", parentId=top)
        agent = await console.agent(name=f"{name} agent", budgetId=teams[name])
        await spend(console.client, agent["id"], spent)
    page = admin.page
    await admin.open("/console")
    near = page.locator("#near")
    await expect(near.get_by_role("listitem")).to_have_count(1)
    await expect(near).to_contain_text("Company / Travel")
    await expect(near).to_contain_text("8.75 of 10.00 a day")
    await admin.press("Stop Travel")
    dialog = page.locator("dialog[open]")
    await admin.accessible()
    await dialog.get_by_role("button", name="Stop Travel").click()
    await admin.sees(
        "Stopped. No new spend below this budget passes", "Travel agent", "budget stopped"
    )
    found = (await console.client.get("/v1/agents")).json()["data"]
    outcomes = {
        agent["name"]: (await spend(console.client, agent["id"], "1"))["rejectCode"]
        for agent in found
    }
    assert outcomes == {"Travel agent": "budget_frozen", "Search agent": None}
    await page.get_by_role("link", name="Travel agent").click()
    await page.get_by_role("link", name="Edit").click()
    for cap, said in (("9.00", "Nothing would have been different"), ("6.00", "1 more refused")):
        await page.get_by_label("Daily cap, USDC").fill(cap)
        await admin.press("Try it on the last 30 days")
        # A worker does it, and the page shows it by itself.
        await admin.sees("Tried on the past", said)
        await expect(page.locator("#live")).to_be_hidden()
        await page.get_by_text("What is assumed").click()
        await admin.accessible()
        if cap == "9.00":
            await admin.press("Back to the editor")
            await expect(page.get_by_label("Daily cap, USDC")).to_have_value(cap)
    await admin.sees("1 of 4 requests would have been decided differently", "8.75 USDC less")
    changed = page.locator("#result tr", has=page.get_by_role("link", name="Travel agent"))
    await expect(changed.get_by_role("cell")).to_have_text(
        [re.compile("^txn_"), "Travel agent", "8.75", "approved", "rejected", "Daily cap"]
    )
    await admin.press("Review and put in force")
    await expect(page.locator("ins")).to_have_text(["6.00"])
    await admin.press("Put it in force")
    await admin.sees("The new policy is in force.", "version 2")
    await page.get_by_role("link", name="Budgets", exact=True).first.click()
    rows = page.locator("#budgets tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_contain_text("Search")
    await expect(rows.nth(2)).to_contain_text("stopped")
    await admin.confirm("Resume Travel", "Resume")
    await admin.sees("Resumed.")


async def test_a_label_is_stopped_from_the_list(console: Console, admin: Guest):
    """Goal: a click on a label shows its agents, a second stops them, and the filter stays."""
    for team in ("search", "search", "ads"):
        await console.client.post(
            "/v1/agents",
            json={
                "name": f"One of {team}",
                "policy": {"dailyCap": "1.00", "allowlist": []},
                "metadata": {"team": team},
            },
        )
    await admin.open("/console/agents")
    await admin.page.get_by_role("link", name="team=search").first.click()
    await expect(admin.page.locator("#agents tbody tr")).to_have_count(2)
    await admin.confirm("Stop all of these")
    await admin.sees("Paused, all that fit.")
    await expect(admin.page.locator("#agents tbody tr")).to_have_count(2)
    await expect(admin.page.locator("#agents .state.paused")).to_have_count(2)
    await admin.open("/console/agents?metadata=team%3Dads")
    await expect(admin.page.locator("#agents .state.active")).to_have_count(1)


async def _budget(console: Console, name: str, window: str, amount: str, **fields: str) -> str:
    limits = [{"window": window, "amount": amount}]
    made = await console.client.post("/v1/budgets", json={"name": name, "limits": limits, **fields})
    assert made.status_code == 201, made.text
    return made.json()["data"]["id"]


async def test_a_policy_that_somebody_else_changed_meanwhile(console: Console, admin: Guest):
    """Goal: nobody overwrites a change that they have not seen."""
    agent = await console.agent()
    await admin.open(f"/console/agents/{agent['id']}/policy")
    await console.client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": "7.00"}})
    await admin.page.get_by_label("Daily cap, USDC").fill("99.00")
    await admin.press("See what changes")
    await expect(admin.page.get_by_role("alert")).to_contain_text("Somebody changed the policy")
    await expect(admin.page.get_by_role("button", name="Put it in force")).to_have_count(0)


async def test_the_wallet_can_be_copied_and_scanned(console: Console, admin: Guest):
    agent = await console.agent()
    await admin.open(f"/console/agents/{agent['id']}")
    await admin.page.get_by_role("button", name="Copy the wallet's address").click()
    copied = await admin.page.evaluate("navigator.clipboard.readText()")
    assert copied == agent["wallet"]["address"]
    await expect(
        admin.page.get_by_role("img", name="QR code of the wallet's address")
    ).to_be_visible()


async def test_agents_are_found(console: Console, admin: Guest):
    """Goal: by words of the name, id, address, state and metadata; and page by page."""
    for number in range(27):
        await console.client.post(
            "/v1/agents",
            json={
                "name": f"Robot {number:02d}",
                "policy": {"dailyCap": "1.00", "allowlist": []},
                "metadata": {"team": "odd" if number % 2 else "even"},
            },
        )
    rows = admin.page.locator("#agents tbody tr")
    await admin.open("/console/agents")
    await expect(rows).to_have_count(25)
    await admin.page.get_by_role("link", name="Older").click()
    await expect(rows).to_have_count(2)
    await admin.open("/console/agents")
    await admin.page.get_by_label("Search").fill("robot 0")
    await admin.press("Filter")
    await expect(rows).to_have_count(10)
    await admin.page.get_by_label("Metadata").fill("team=odd")
    await admin.press("Filter")
    await expect(rows).to_have_count(5)
    await admin.open("/console/agents?q=ROBOT")
    await expect(rows).to_have_count(25)
    await admin.page.get_by_role("link", name="Older").click()
    await expect(rows).to_have_count(2)
    some = (await console.client.get("/v1/agents?limit=1")).json()["data"][0]
    for said in (some["id"], some["wallet"]["address"]):
        await admin.open(f"/console/agents?q={said}")
        await expect(rows).to_have_count(1)
        await admin.sees(some["name"])
    await admin.open("/console/agents?q=nobody")
    await admin.sees("No agent fits.")
    await admin.open("/console/agents?metadata=team", status=400)
    await admin.sees("Write pairs as team=search")


async def test_approvals(console: Console, admin: Guest):
    """Goal: one click approves, one click denies, with a reason for the books."""
    agent = await console.agent(name="Buyer", policy=THRESHOLD)
    await admin.open("/console/approvals")
    await admin.sees("All decided.")
    first = await spend(
        console.client, agent["id"], "6", memo="two seats", metadata={"trip": "ZRH"}
    )
    second = await spend(console.client, agent["id"], "7")
    await expect(admin.page.locator("article")).to_have_count(2)
    await admin.sees("Buyer", "two seats", "trip=ZRH", "more than 5.00", "13.00 of 100.00")
    card = admin.page.locator(f"article[data-key={first['id']}]")
    await card.get_by_label("Reason").fill("ordered by Kim")
    await card.get_by_role("button", name="Approve").click()
    await admin.sees("Approved. It will be paid now.")
    await admin.page.locator("article").get_by_role("button", name="Deny").click()
    await admin.sees("Denied.", "All decided.")
    denied = (await console.client.get(f"/v1/transactions/{second['id']}")).json()["data"]
    assert (denied["status"], denied["rejectCode"]) == ("rejected", "approval_denied")
    await admin.open(f"/console/transactions/{first['id']}")
    await expect(admin.page.locator("#head")).to_contain_text("settled")
    await admin.sees("ordered by Kim", "Needs no person's approval")


async def test_the_queue_does_not_move_under_the_mouse(console: Console, admin: Guest):
    """Goal: what is on a button's place when it is pressed is what was there when it was aimed at;
    new ones come after the last, decided ones are marked where they are."""
    agent = await console.agent(policy=THRESHOLD)
    old, aimed, gone = [await spend(console.client, agent["id"], n) for n in ("6", "7", "8")]
    await admin.open("/console/approvals")
    cards = admin.page.locator("article")
    await expect(cards).to_have_count(3)
    card = admin.page.locator(f"article[data-key={aimed['id']}]")
    await card.scroll_into_view_if_needed()
    await card.get_by_role("button", name="Approve").hover()
    before = await card.bounding_box()
    fresh = await spend(console.client, agent["id"], "9")
    await expect(cards).to_have_count(4)
    await expect(cards.last).to_have_attribute("data-key", fresh["id"])
    await console.client.post(f"/v1/transactions/{gone['id']}/deny")
    decided = admin.page.locator(f"article[data-key={gone['id']}]")
    await expect(decided).to_contain_text("no longer waits")
    await expect(decided).to_have_js_property("inert", True)
    await expect(admin.page.locator("article[inert]")).to_have_count(1)
    assert await card.bounding_box() == before
    await admin.page.mouse.down()
    await admin.page.mouse.up()
    await admin.sees("Approved. It will be paid now.")
    await expect(cards).to_have_count(2)
    for waiting in (old, fresh):
        await expect(admin.page.locator(f"article[data-key={waiting['id']}]")).to_have_count(1)


async def test_two_people_at_once_do_not_collide(console: Console, admin: Guest):
    """Goal: of two who decide the same spend one does; the other is told what became of it, and
    whoever only looks sees it leave the queue."""
    agent = await console.agent(policy=THRESHOLD)
    made = await spend(console.client, agent["id"], "8")
    _, key = await console.new_key("approver")
    other, looking = await console.sign_in(key), await console.sign_in(key)
    for guest in (admin, other, looking):
        await guest.open("/console/approvals")
        await expect(guest.page.locator("article")).to_have_count(1)
    # The second one's page must still show the spend when they press the button.
    await other.page.get_by_label("Reason").fill("I think not")
    await admin.page.get_by_role("button", name="Approve").click()
    await admin.sees("Approved.")
    other.meant.add(409)
    await other.page.get_by_role("button", name="Deny").click()
    await other.sees("only a pending one can be decided", "is now")
    await expect(other.page.locator("article")).to_have_count(0)
    await looking.sees("All decided.")

    async def settled() -> bool:
        answer = await console.client.get(f"/v1/transactions/{made['id']}")
        return answer.json()["data"]["status"] == "settled"

    await until(settled, seconds=20)


async def test_transactions(console: Console, admin: Guest):
    """Goal: every filter of the API, refusals in words, each check, and the same rows as CSV."""
    agent = await console.agent(name="Spender")
    paid = await spend(console.client, agent["id"], "1.25", memo="=HYPERLINK(1)")
    refused = await spend(console.client, agent["id"], "2", recipient="other.example.net")
    rows = admin.page.locator("#spends tbody tr")
    await admin.open("/console/transactions")
    await expect(rows).to_have_count(2)
    await admin.sees("The recipient is not on the allowlist.", "settled")
    settled = (await console.client.get(f"/v1/transactions/{paid['id']}")).json()["data"]
    find = admin.page.get_by_role("searchbox", name="Find")
    await find.fill(settled["signature"])
    await find.press("Enter")
    await expect(admin.page).to_have_url(f"{admin.url}/console/transactions/{paid['id']}")
    await admin.open("/console/transactions")
    await admin.page.get_by_label("State").select_option("rejected")
    await admin.press("Filter")
    await expect(rows).to_have_count(1)
    await admin.page.get_by_label("Recipient").fill("OTHER.example.net.")
    # The field suggests what fits while one types, and takes a part of the name, too.
    await admin.page.locator("#f-agentId").press_sequentially("spen")
    named = f"Spender ({agent['id']})"
    await expect(admin.page.locator("#f-agents option")).to_have_attribute("value", named)
    today = paid["createdAt"][:10]
    await admin.page.get_by_label("Made from").fill(today)
    await admin.page.get_by_label("Made to").fill(today)
    await admin.press("Filter")
    await expect(rows).to_have_count(1)
    await expect(admin.page.locator("#f-agentId")).to_have_value(named)
    await admin.page.get_by_label("Settled from").fill(today)
    await admin.press("Filter")
    await admin.sees("No transaction fits.")
    await admin.page.get_by_role("link", name="Clear").click()
    await expect(rows).to_have_count(2)
    async with admin.page.expect_download() as waiting:
        await admin.page.get_by_role("link", name="Download CSV").click()
    content = (await (await waiting.value).path()).read_text("utf-8")
    cells = list(csv.DictReader(io.StringIO(content)))
    assert [cell["id"] for cell in cells] == [refused["id"], paid["id"]]
    assert cells[1]["memo"] == "'=HYPERLINK(1)"
    await admin.open(f"/console/transactions?recipient={'x' * 300}", status=400)
    await expect(admin.page.get_by_role("alert")).to_be_visible()

    await admin.open(f"/console/transactions/{refused['id']}")
    await admin.sees("The recipient is not on the allowlist.", "recipient_not_allowed", "not paid")
    checks = admin.page.locator("tbody tr")
    rules = [check["rule"] for check in refused["decision"]["checks"]]
    await expect(checks).to_have_count(len(rules))
    await expect(checks.nth(rules.index(Rule.ALLOWLIST))).to_contain_text("no")
    await admin.open(f"/console/transactions/{paid['id']}")
    shown = (await console.client.get(f"/v1/transactions/{paid['id']}")).json()["data"]
    await admin.sees(shown["signature"], shown["payTo"], "lamports")


async def test_webhooks(console: Console, admin: Guest):
    """Goal: registered, tested, looked at attempt by attempt, sent again, rotated and removed."""
    page = admin.page
    await admin.open("/console/webhooks")
    await admin.sees("No webhook yet.")
    await page.get_by_label("Address", exact=True).fill("https://10.0.0.1/hooks")
    admin.meant.add(400)
    await admin.press("Register")
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_label("Address", exact=True).fill(console.hooks.receiver.url("ok/console"))
    await admin.press("Register")
    await admin.sees("The webhook is registered", "Copy the secret now")
    secret = await page.locator("#secret").inner_text()
    assert secret.startswith("whsec_")
    await page.get_by_role("link", name="I have it").click()
    await admin.sees("Nothing was sent yet.")
    await admin.misses(secret)
    await admin.press("Send a test")
    await admin.sees("A test event is on its way.", "webhook.test")
    await console.hooks.receiver.wait_for("ok/console")
    await expect(page.locator("#deliveries .state").first).to_have_text("delivered")
    await page.locator("#deliveries summary").first.click()
    await admin.sees("answered 200")
    await page.get_by_role("button", name="Redeliver webhook.test").click()
    await expect(page.locator("#deliveries > ul > li")).to_have_count(2)
    await console.hooks.receiver.wait_for("ok/console", 2)
    await admin.confirm("Rotate the secret")
    await admin.sees("The webhook has a new secret")
    assert await page.locator("#secret").inner_text() != secret
    await page.get_by_role("link", name="I have it").click()
    await admin.confirm("Disable")
    await admin.sees("disabled", "somebody disabled it")
    await admin.confirm("Enable")
    await admin.sees("The webhook is enabled.")
    await admin.confirm("Delete")
    await admin.sees("The webhook is deleted.", "No webhook yet.")


async def test_keys(console: Console, admin: Guest):
    """Goal: made, shown once, and gone from every browser the moment it is revoked."""
    page = admin.page
    await admin.open("/console/keys")
    await page.get_by_text("Make a key").click()
    admin.meant.add(400)
    make = page.locator("form[action='/console/keys']")
    await page.get_by_label("Name").fill("night shift")
    await make.get_by_label("Your API key").fill(console.key)
    await page.get_by_label("Scope").select_option("agent")
    await admin.press("Make the key")
    await expect(page.get_by_role("alert")).to_contain_text("The agent is required")
    await page.get_by_label("Scope").select_option("approver")
    await make.get_by_label("Your API key").fill(console.key)
    await admin.press("Make the key")
    await admin.sees("The key is made", "shown this once")
    key = await page.locator("#secret").inner_text()
    assert key.startswith("bur_test_")
    await page.reload()
    await admin.sees("This form was sent before")
    await admin.misses(key)
    guest = await console.sign_in(key)
    await guest.open("/console/agents")
    await admin.open("/console/keys")
    row = page.locator("tr", has_text="night shift")
    await row.get_by_role("button", name="Revoke").click()
    dialog = page.locator("dialog[open]")
    await admin.accessible()
    await dialog.get_by_label("Your API key").fill(console.key)
    await dialog.get_by_role("button", name="Revoke").click()
    await admin.sees("The key is revoked.")
    guest.meant |= {401, 303}
    await guest.page.goto(f"{guest.url}/console/agents")
    await expect(guest.page.get_by_role("status")).to_contain_text("Your session has ended")
    assert re.search(r"/console/sign-in\?.*next=", guest.page.url)


async def test_sessions(console: Console, admin: Guest):
    """Goal: one sees every browser that is signed in, ends one, and then all but one's own."""
    others = [await console.sign_in() for _ in range(3)]
    page = admin.page
    await page.get_by_role("link", name="Sessions").click()
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(4)
    mine = rows.filter(has_text="this one")
    await expect(mine).to_have_count(1)
    await expect(mine).to_contain_text("127.0.0.1")
    await expect(mine).to_contain_text("Chrome")
    # The newest is on top.
    await rows.first.get_by_role("button", name="End").click()
    await page.locator("dialog[open]").get_by_role("button", name="End").click()
    await admin.sees("The session is ended.")
    await expect(rows).to_have_count(3)
    for other in others:
        other.meant.add(401)
    await expect(others[2].page.locator("#live")).to_contain_text("Your session has ended")
    await expect(others[1].page.locator("#live")).to_contain_text("Up to date")
    await admin.confirm("End all others")
    await admin.sees("All other sessions are ended.")
    await expect(rows).to_have_count(1)
    for other in others[:2]:
        await expect(other.page.locator("#live")).to_contain_text("Your session has ended")
    await rows.get_by_role("button", name="End").click()
    await page.locator("dialog[open]").get_by_role("button", name="End").click()
    await expect(page.get_by_label("API key")).to_be_visible()
