"""A browser, and a service of its own for it: database, HTTP, worker, a receiver of webhooks.

Chromium is Debian's, driven by Playwright.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, async_playwright

from bursar.config import Config
from bursar.service.postgres import EmbeddedPostgres
from tests.browser.support import Console, Guest
from tests.parts import chromium
from tests.webhooks.conftest import Hooks, own_hooks, running_worker


@pytest.fixture(scope="package")
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        # Its sandbox does not run for root, and everything it visits is ours.
        started = await playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        await started.close()


@pytest.fixture(scope="package")
async def hooks(
    postgres: EmbeddedPostgres,
    config: Config,
    localnets: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Hooks]:
    settings: dict[str, Any] = {
        "webhooks_retry_seconds": (60, 60),
        "drain_seconds": 3,
        "purchases_allow": ("127.0.0.0/8",),
    }
    folder: Path = tmp_path_factory.mktemp("console")
    async with (
        own_hooks(postgres, config, "console", folder, **settings) as made,
        running_worker(made.config),
    ):
        yield made


@pytest.fixture
async def console(hooks: Hooks, browser: Browser) -> AsyncGenerator[Console]:
    """The console of an account of its own. At the end every page must have been quiet."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await hooks.service.admin())
        made = Console(hooks, client, browser, stack)
        yield made
        made.check_quiet()


@pytest.fixture
async def admin(console: Console) -> Guest:
    return await console.sign_in()
