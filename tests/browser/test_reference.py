"""Goal: the API reference can be searched, speaks one's language, and tries what it shows."""

from playwright.async_api import expect

from tests.browser.support import PHONE, Console


async def test_the_reference_is_searched_read_and_tried(console: Console):
    guest = await console.guest()
    await guest.open("/docs")
    await guest.page.keyboard.press("/")
    await guest.page.keyboard.type("approve pending")
    await expect(guest.page.locator("#found")).to_contain_text("found")
    await expect(guest.page.locator("section#approveTransaction")).to_be_visible()
    await expect(guest.page.locator("section#createAgent")).to_be_hidden()
    await guest.page.keyboard.press("Escape")

    create = guest.page.locator("section#createAgent")
    await expect(create).to_be_visible()
    await expect(create.locator("figure:visible")).to_have_count(1)
    await guest.page.get_by_label("Samples in").select_option("Python")
    await expect(create).to_contain_text("client.agents.create(")
    await expect(create.locator("[data-language=curl]")).to_be_hidden()
    await guest.accessible()

    await create.get_by_role("button", name="Try Create an agent").click()
    await create.get_by_role("button", name="Send").click()
    await expect(create.get_by_role("status")).to_contain_text("Enter a test key first")
    await guest.page.get_by_label("Test key").fill(console.key)
    await create.get_by_role("button", name="Send").click()
    await expect(create.get_by_role("status")).to_contain_text("201")
    (made,) = (await console.client.get("/v1/agents")).json()["data"]
    await expect(create.get_by_role("status")).to_contain_text(made["id"])

    get = guest.page.locator("section#getAgent")
    await get.get_by_role("button", name="Try Get an agent").click()
    await get.get_by_role("button", name="Send").click()
    await expect(get.get_by_role("status")).to_contain_text("id is part of the address")
    await get.get_by_label("id").fill(made["id"])
    await get.get_by_role("button", name="Send").click()
    await expect(get.get_by_role("status")).to_contain_text('"researcher"')
    assert console.key not in str(await guest.context.storage_state())
    await guest.accessible()


async def test_the_reference_on_a_phone_and_without_scripts(console: Console):
    """Goal: nothing is hidden from those who run no scripts: every sample is there."""
    guest = await console.guest(viewport=PHONE, scheme="dark")
    await guest.open("/docs")
    await guest.fits()
    await guest.accessible()
    reader = await console.guest(script=False)
    await reader.open("/docs")
    create = reader.page.locator("section#createAgent")
    await expect(create.locator("figure:visible")).to_have_count(3)
    await expect(create.get_by_role("button")).to_have_count(0)
