"""`make screenshots`: draws docs/img/console-*.png from a service that has lived for a month.

Everything shown went through the API and the chain of this machine. Only the calendar is bent: some
spends are moved into the hours before, and the totals of past days are written by hand.
"""

import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
from playwright.async_api import Browser, async_playwright

from bursar.clock import SystemClock
from bursar.config import load_config
from bursar.db import Database
from bursar.logs import set_up_logs
from bursar.migrations.migrate import migrate
from bursar.service.api import Api
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.postgres import ADMIN_ROLE, DATABASE, running_postgres
from bursar.service.supervisor import Supervisor
from tests.parts import BROWSERS
from tests.processes import until
from tests.support import Service
from tests.webhooks.conftest import ALLOW, Receiver, running_receiver, running_worker

IMAGES: Final = Path(__file__).parents[2] / "docs/img"
SIZES: Final = {"desktop": (1360, 900, 1), "phone": (390, 844, 2)}
ACCOUNT: Final = "Acme Robotics"

# Name, the one above, window, amount, number of spends.
BUDGETS: Final = (
    ("Acme", None, "month", "25000.00", None),
    ("Engineering", "Acme", "week", "1200.00", None),
    ("Crawling", "Engineering", "day", "25.00", 40),
    ("Data", "Engineering", "day", "60.00", None),
    ("Operations", "Acme", "week", "2500.00", None),
    ("Travel", "Operations", "day", "250.00", None),
    ("Finance", "Operations", "day", "120.00", None),
    ("Growth", "Acme", "day", "400.00", None),
)
# The budget of each team that has one.
TEAMS: Final = {
    "search": "Crawling",
    "data": "Data",
    "travel": "Travel",
    "finance": "Finance",
    "growth": "Growth",
    "support": "Operations",
}
# Name, team, daily cap, approval threshold, funds.
AGENTS: Final = (
    ("Research crawler", "search", "25.00", None, "60"),
    ("Invoice reader", "finance", "120.00", "40.00", "150"),
    ("Travel desk", "travel", "900.00", "150.00", "1400"),
    ("Nightly backfill", "data", "60.00", None, "45"),
    ("Support triage", "support", "15.00", None, "30"),
    ("Ad buyer", "growth", "400.00", "100.00", "650"),
    ("Parts scout", "hardware", "80.00", None, "3.40"),
)
# Agent, amount, recipient, memo.
SPENDS: Final = (
    (0, "3.5", "api.example.com", "1,400 result pages"),
    (1, "12.25", "ocr.example.org", "Scans of October"),
    (5, "64", "ads.example.net", "Campaign 18"),
    (3, "8.4", "storage.example.org", None),
    (0, "9.75", "data.example.org", "Company register, bulk"),
    (2, "139", "flights.example.net", "ZRH to LHR, one seat"),
    (4, "2.2", "api.example.com", None),
    (1, "31.8", "ocr.example.org", "Backlog of the Berlin office"),
    (3, "11", "storage.example.org", None),
    (5, "88.2", "ads.example.net", "Campaign 19"),
    (4, "9.9", "llm.example.com", "Long threads"),
    (0, "6.4", "api.example.com", None),
    (2, "77.5", "rail.example.com", "Airport transfer, two people"),
    (6, "1.2", "parts.example.org", "Datasheet"),
    (0, "3.1", "casino.example.com", "win it back"),
    (4, "3.5", "llm.example.com", "Retry"),
    (3, "4.6", "storage.example.org", None),
)
WAITING: Final = (
    (
        2,
        "412.8",
        "hotels.example.net",
        "Three nights for the offsite, four rooms",
        {"trip": "ZRH-11"},
    ),
    (1, "58", "translate.example.org", "Contract with the Lyon supplier, 42 pages", {}),
    (5, "180", "ads.example.net", "Campaign 20, weekend push", {"brief": "growth/20"}),
)


async def main() -> None:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"No browser is installed; on Debian: apt-get install {BROWSERS[0]}")
    set_up_logs("error", "screenshots")
    async with _service() as (service, receiver, admin_dsn):
        key = await service.key(account=ACCOUNT)
        async with service.client(key) as client:
            agents = await _fill(client, receiver, admin_dsn)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            paths = {
                "overview": "/console",
                "agents": "/console/agents",
                "agent": f"/console/agents/{agents[2]}",
                "budgets": "/console/budgets",
                "approvals": "/console/approvals",
            }
            for scheme in ("light", "dark"):
                for size in SIZES:
                    await _shoot(browser, service.url, key, paths, scheme, size)
            await browser.close()


async def _shoot(
    browser: Browser, url: str, key: str, paths: dict[str, str], scheme: Any, size: str
) -> None:
    width, height, scale = SIZES[size]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        color_scheme=scheme,
        locale="en-GB",
        timezone_id="Europe/Zurich",
    )
    page = await context.new_page()
    await page.goto(f"{url}/console")
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_selector("main h1")
    for name, path in paths.items():
        await page.goto(f"{url}{path}")
        await page.screenshot(path=IMAGES / f"console-{name}-{scheme}-{size}.png")
    await context.close()


async def _fill(client: httpx.AsyncClient, receiver: Receiver, admin_dsn: str) -> list[str]:
    agents: list[str] = []
    budgets = await _budgets(client)
    for name, team, cap, threshold, funds in AGENTS:
        policy = {
            "dailyCap": cap,
            "approvalThreshold": threshold,
            "allowlist": ["api.example.com", "llm.example.com", "*.example.org", "*.example.net",
                          "rail.example.com"],
            "blocklist": ["casino.example.com"],
        }  # fmt: skip
        made = await client.post(
            "/v1/agents",
            json={
                "name": name,
                "policy": policy,
                "metadata": {"team": team},
                "budgetId": budgets.get(TEAMS.get(team, "")),
            },
        )
        agents.append(made.json()["data"]["id"])
        await client.post(f"/v1/test/wallets/{agents[-1]}/fund", json={"amount": funds})
    await client.patch(f"/v1/agents/{agents[2]}", json={"policy": {"dailyCap": "1000.00"}})
    await client.post("/v1/webhooks", json={"url": receiver.url("ok/bursar"), "events": ["*"]})
    for agent, amount, recipient, memo in SPENDS:
        body = {"agentId": agents[agent], "amount": amount, "recipient": recipient, "memo": memo}
        answer = await client.post("/v1/spend/authorise", json=body)
        assert answer.status_code == 201, answer.text

    async def settled() -> bool:
        return not (await client.get("/v1/transactions?status=approved")).json()["data"]

    await until(settled, seconds=60, every=0.2)
    await _bend_the_calendar(admin_dsn)
    for agent, amount, recipient, memo, metadata in WAITING:
        body = {
            "agentId": agents[agent],
            "amount": amount,
            "recipient": recipient,
            "memo": memo,
            "metadata": metadata,
        }
        assert (await client.post("/v1/spend/authorise", json=body)).status_code == 201
    return agents


async def _budgets(client: httpx.AsyncClient) -> dict[str, str]:
    made: dict[str, str] = {}
    for name, above, window, amount, count in BUDGETS:
        body = {
            "name": name,
            "parentId": made.get(above or ""),
            "limits": [{"window": window, "amount": amount, **({"count": count} if count else {})}],
        }
        made[name] = (await client.post("/v1/budgets", json=body)).json()["data"]["id"]
    return made


async def _bend_the_calendar(admin_dsn: str) -> None:
    """Spends lie some hours apart, and there were thirty days before."""
    chance = random.Random(7)
    connection = await asyncpg.connect(admin_dsn)
    try:
        # The books do not allow it, and rightly so.
        await connection.execute("SET session_replication_role = replica")
        rows = await connection.fetch("SELECT id, agent_id FROM spend ORDER BY created_at DESC")
        for place, row in enumerate(rows):
            minutes = place * 75 + chance.randrange(60)
            await connection.execute(
                "UPDATE spend SET created_at = created_at - make_interval(mins => $2),"
                " settled_at = settled_at - make_interval(mins => $2) WHERE id = $1",
                row["id"],
                minutes,
            )
        realm_id = await connection.fetchval("SELECT realm_id FROM agent LIMIT 1")
        for whose in ("", *{row["agent_id"] for row in rows}):
            for day in range(1, 30):
                busy = 1 if whose else 6
                await connection.execute(
                    "INSERT INTO day_total (realm_id, agent_id, day, spend_count, rejected_count,"
                    " settled_micros)"
                    " SELECT $1, $2, (moment() AT TIME ZONE 'UTC')::date - $3::int, $4, $5, $6"
                    " ON CONFLICT DO NOTHING",
                    realm_id,
                    whose,
                    day,
                    12 * busy,
                    chance.choice((0, 0, 0, 1, 2)),
                    busy * chance.randrange(20, 110) * 1_000_000 * (1 if day % 7 > 1 else 2) // 2,
                )
    finally:
        await connection.close()


@asynccontextmanager
async def _service() -> AsyncGenerator[tuple[Service, Receiver, str]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = await stack.enter_async_context(
            running_postgres(folder / "postgres", durable=False)
        )
        await migrate(server.dsn)
        config = choose_ports(
            replace(
                load_config({}, data_dir=folder, port=0, localnet_port=0, log_level="error"),
                database_url=server.dsn,
                webhooks_allow=ALLOW,
            )
        )
        supervisor = await stack.enter_async_context(Supervisor(config.data_dir))
        for child in localnet_children(config):
            await supervisor.start(child)
        api = await Api.start(config, SystemClock())
        stack.push_async_callback(api.stop)
        await stack.enter_async_context(running_worker(config))
        receiver = await stack.enter_async_context(running_receiver())
        database = await Database.open(server.dsn, 3, 10)
        stack.push_async_callback(database.close)
        service = Service(f"http://127.0.0.1:{api.port}", config, database)
        yield service, receiver, server.dsn_for(DATABASE, ADMIN_ROLE)


if __name__ == "__main__":
    asyncio.run(main())
