"""Goal: a person sees what agents bought and what came back, and decides where sellers are paid."""

from collections.abc import Mapping
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.support import DESKTOP, PHONE, Console, Guest
from tests.sellers.served import selling


async def _buy(console: Console, agent: dict[str, Any], url: str, **fields: Any) -> dict[str, Any]:
    body = {"agentId": agent["id"], "url": url, **fields}
    answer = await console.client.post("/v1/purchases", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


async def test_what_was_bought(console: Console, admin: Guest):
    """Goal: URL, price and answer on one page; the goods are text, and can be asked for again."""
    agent = await console.agent(name="Forecaster", policy={"allowlist": ["127.0.0.1"]})
    async with selling(console.hooks.service, "503 once") as seller:
        bought = await _buy(console, agent, f"{seller.url}?city=Lisbon", memo="the <b>weather</b>")
        await admin.open("/console/purchases")
        await admin.sees("Forecaster", "127.0.0.1", "?city=Lisbon", "0.001")
        await admin.open(f"/console/purchases/{bought['id']}")
        await admin.sees("503", "the <b>weather</b>", "x402", seller.payees[0])
        await admin.press("Ask the seller again")
        await admin.sees("shown the same payment again", '"weather": "fair"')
        assert len(set(seller.presented)) == 1
    await expect(admin.page.locator("#head .state")).to_have_text("paid")
    await admin.open(f"/console/transactions/{bought['transactionId']}")
    await admin.page.get_by_role("link", name="a purchase").click()
    await admin.sees("GET http://127.0.0.1")
    await admin.open(f"/console/agents/{agent['id']}")
    await expect(admin.page.locator("#purchases")).to_contain_text("?city=Lisbon")


async def test_an_approved_purchase_goes_on(console: Console, admin: Guest):
    policy = {"allowlist": ["127.0.0.1"], "approvalThreshold": "0.00"}
    agent = await console.agent(name="Careful", policy=policy)
    async with selling(console.hooks.service, "honest") as seller:
        waits = await _buy(console, agent, seller.url)
        await admin.open(f"/console/purchases/{waits['id']}")
        await admin.sees("Waits for a person")
        await admin.page.get_by_role("button", name="Approve").click()
        await admin.open(f"/console/purchases/{waits['id']}")
        await admin.sees("A person approved it")
        await admin.press("Go on and buy it")
        await admin.sees('"weather": "fair"')


@pytest.mark.parametrize(
    ("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"]
)
async def test_a_seller_that_moved(console: Console, viewport: Mapping[str, int], scheme: str):
    """Goal: the change is seen at once, is accepted with the key alone, and every page on the way
    reads well for everybody."""
    admin = await console.sign_in(viewport=viewport, scheme=scheme)
    await admin.open("/console/purchases")
    await admin.sees("No agent has bought anything yet.")
    await admin.open("/console/pins")
    await admin.sees("No seller is remembered.")
    agent = await console.agent(name="Loyal", policy={"allowlist": ["127.0.0.1"]})
    async with selling(console.hooks.service, "other payee") as seller:
        first = await _buy(console, agent, seller.url)
        moved = await _buy(console, agent, seller.url)
        lost = await _buy(console, agent, "http://127.0.0.1:1/closed")
        assert moved["rejectCode"] == "payee_changed"
        for page in ("", f"/{first['id']}", f"/{moved['id']}", f"/{lost['id']}"):
            await admin.open(f"/console/purchases{page}")
            await admin.page.evaluate(
                "document.querySelectorAll('details').forEach((d) => d.open = true)"
            )
            await admin.accessible()
            await admin.fits()
        await admin.open("/console/purchases")
        await admin.sees("wants to be paid at another address")
        await admin.open("/console/pins")
        await admin.sees(seller.payees[1])
        await admin.accessible()
        await admin.fits()
        await admin.press("Accept the new address")
        dialog = admin.page.locator("dialog[open]")
        await dialog.get_by_role("checkbox").check()
        await dialog.get_by_label("Your API key").fill(console.key)
        await admin.accessible()
        await dialog.get_by_role("button", name="Accept", exact=True).click()
        await admin.sees("The new address is accepted.")
        await admin.confirm("Forget")
        await admin.sees("The pin is forgotten.", "No seller is remembered.")
