"""One service with a demo shop beside it, for everything here that buys and spends; and Node."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from bursar.db import Database
from bursar.service.postgres import EmbeddedPostgres
from bursar_shop.shop import open_shop
from tests.parts import missing
from tests.processes import clean_environment, running_service
from tests.support import Service, new_account

ROOT: Final = Path(__file__).parents[2]
STOCK: Final = ROOT / ".venv-stock"
TYPESCRIPT: Final = ROOT / "clients/typescript"
_RUN_SECONDS: Final = 120


@dataclass(frozen=True)
class Market:
    """A service that may buy on this machine, and the address of something to buy."""

    service: Service
    shop: str

    async def environment(self, key: str | None = None) -> dict[str, str]:
        """For a program that is a client: of a new account unless a key is given."""
        return clean_environment() | {
            "PATH": f"{STOCK / 'x402/bin'}{os.pathsep}{os.environ['PATH']}",
            "NO_PROXY": "*",
            "BURSAR_API_KEY": key or await self.service.key(account=new_account()),
            "BURSAR_BASE_URL": self.service.url,
            "SHOP_URL": self.shop,
        }

    async def buyer(self, daily_cap: str) -> str:
        """The key of a new agent that may buy from the shop and spend at api.example.com."""
        account = new_account()
        admin = await self.service.admin(account=account)
        host = httpx.URL(self.shop).host
        policy = {"dailyCap": daily_cap, "allowlist": [host, "api.example.com"]}
        answer = await admin.post("/v1/agents", json={"name": "buyer", "policy": policy})
        agent_id: str = answer.json()["data"]["id"]
        await admin.post(f"/v1/test/wallets/{agent_id}/fund", json={"amount": "100"})
        await admin.aclose()
        return await self.service.key(account=account, scope="agent", agent_id=agent_id)


@asynccontextmanager
async def open_market(folder: Path) -> AsyncGenerator[Market]:
    here = "127.0.0.0/8,localhost"
    settings = {"webhooks_allow": here, "purchases_allow": here}
    with (folder / "log").open("wb") as log:
        async with running_service(folder / "data", log, **settings) as config:
            database = await Database.open(EmbeddedPostgres(config.data_dir).dsn, 2, 10)
            service = Service(f"http://127.0.0.1:{config.port}", config, database)
            rpc = f"http://127.0.0.1:{config.localnet_port}"
            try:
                async with open_shop(rpc, "127.0.0.1", 0) as shop:
                    yield Market(service, shop.url)
            finally:
                await database.close()


def needs_stock() -> None:
    if not (STOCK / ".ready").exists():
        missing("the stock packages: make test-stock")


async def run(
    *arguments: str | Path, cwd: Path, environment: dict[str, str], given: str = ""
) -> str:
    """What a program said that was `given` this on its standard input. It must succeed."""
    process = await asyncio.create_subprocess_exec(
        *map(str, arguments),
        cwd=cwd,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(given.encode()), _RUN_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode(errors="replace")
    return said.decode(errors="replace")
