"""Somebody at a browser: signs in, looks, and notices whatever a page should not do."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

import httpx
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from tests.support import new_agent
from tests.webhooks.conftest import Hooks

DESKTOP: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 390, "height": 844}
ZONE: Final = "Asia/Tokyo"
expect.set_options(timeout=15_000)
# Notices what the page's own policy forbids, whether or not the console tells.
_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
"""


@dataclass
class Guest:
    """One browser context with one page."""

    page: Page
    context: BrowserContext
    url: str
    complaints: list[str] = field(default_factory=list[str])
    # Statuses that this test means to provoke; browsers log a line for each.
    meant: set[int] = field(default_factory=set[int])

    async def open(self, path: str, status: int = 200) -> None:
        if status != 200:
            self.meant.add(status)
        answer = await self.page.goto(f"{self.url}{path}")
        assert answer is not None
        assert answer.status == status, (path, answer.status, await self.page.inner_text("main"))

    async def sees(self, *texts: str) -> None:
        for text in texts:
            await expect(self.page.locator("main")).to_contain_text(text)

    async def misses(self, *texts: str) -> None:
        for text in texts:
            await expect(self.page.locator("main")).not_to_contain_text(text)

    async def press(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).locator("visible=true").click()

    async def confirm(self, name: str, confirmed: str | None = None) -> None:
        """Presses a button that asks, and then the one in its dialog."""
        await self.press(name)
        dialog = self.page.locator("dialog[open]")
        for box in await dialog.get_by_role("checkbox").all():
            await box.check()
        await dialog.get_by_role("button", name=confirmed or name, exact=True).click()

    async def accessible(self) -> None:
        """No serious fault on the page as it is now, in the eyes of axe."""
        await self.page.evaluate(_axe())
        found: list[dict[str, Any]] = await self.page.evaluate(
            "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
        )
        serious = [
            f"{self.page.url}: {fault['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]
        assert serious == []

    async def fits(self) -> None:
        """Nothing makes the page wider than the screen."""
        wide: int = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"{self.page.url} is {wide} px too wide"


class Console:
    """An account, and the browsers that look at it."""

    def __init__(
        self, hooks: Hooks, client: httpx.AsyncClient, browser: Browser, stack: AsyncExitStack
    ) -> None:
        self.hooks = hooks
        self.client = client
        self.url = hooks.service.url
        self._browser = browser
        self._stack = stack
        self._guests: list[Guest] = []

    async def guest(
        self, *, viewport: Mapping[str, int] = DESKTOP, scheme: str = "light", script: bool = True
    ) -> Guest:
        """A browser in Japan that nobody has signed in with."""
        context = await self._browser.new_context(
            viewport=dict(viewport),  # pyright: ignore[reportArgumentType]
            color_scheme=scheme,  # pyright: ignore[reportArgumentType]
            java_script_enabled=script,
            timezone_id=ZONE,
            locale="en-GB",
            permissions=["clipboard-read", "clipboard-write"],
        )
        self._stack.push_async_callback(context.close)
        await context.add_init_script(_VIOLATIONS)
        page = await context.new_page()
        made = Guest(page, context, self.url)
        self._guests.append(made)

        def hears(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                made.complaints.append(message.text)

        def asks(request: Request) -> None:
            if not request.url.startswith((self.url, "blob:")):
                made.complaints.append(f"a request to {request.url}")

        page.on("console", hears)
        page.on("pageerror", lambda problem: made.complaints.append(str(problem)))
        page.on("dialog", lambda dialog: made.complaints.append(f"a dialog: {dialog.message}"))
        context.on("request", asks)
        return made

    async def sign_in(self, key: str | None = None, **how: Any) -> Guest:
        guest = await self.guest(**how)
        await guest.page.goto(f"{self.url}/console")
        await guest.page.get_by_label("API key").fill(key or self.key)
        await guest.press("Sign in")
        await guest.page.wait_for_selector("main h1")
        assert "/sign-in" not in guest.page.url
        return guest

    @property
    def key(self) -> str:
        return self.client.headers["Authorization"].removeprefix("Bearer ")

    async def new_key(self, scope: str, agent_id: str | None = None) -> tuple[str, str]:
        """(id, key)."""
        body: dict[str, str] = {"name": f"{scope} key", "scope": scope}
        if agent_id is not None:
            body["agentId"] = agent_id
        answer = await self.client.post("/v1/keys", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["data"]["id"], answer.json()["data"]["key"]

    async def agent(self, funds: str = "50", **fields: Any) -> dict[str, Any]:
        """An agent with money that is really on the chain."""
        made = await new_agent(self.client, **fields)
        answer = await self.client.post(
            f"/v1/test/wallets/{made['id']}/fund", json={"amount": funds}
        )
        assert answer.json()["data"]["status"] == "credited", answer.text
        return made

    def check_quiet(self) -> None:
        """No error in any console, no policy violated, no request to anywhere else."""
        for guest in self._guests:
            meant = [f"status of {status} " for status in guest.meant]
            left = [
                text
                for text in guest.complaints
                if not any(f"{part}" in f"{text} " for part in meant)
            ]
            assert left == []


@cache
def _axe() -> str:
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
