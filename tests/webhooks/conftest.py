"""A database, an HTTP service and a receiver process for webhooks alone, so that a worker that runs
here delivers and settles nothing of other tests."""

import asyncio
import base64
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import asyncpg
import httpx
import pytest

from bursar.clock import SystemClock
from bursar.config import Config
from bursar.db import Database
from bursar.migrations.migrate import migrate
from bursar.service.api import Api
from bursar.service.postgres import ROLE, EmbeddedPostgres
from tests.processes import clean_environment, until
from tests.support import Service

LONG = os.environ.get("BURSAR_LONG") == "1"
ALLOW = ("127.0.0.0/8", "localhost")


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    status: int | None


class Receiver:
    """The receiver process, from outside."""

    def __init__(self, port: int, client: httpx.AsyncClient) -> None:
        self.port = port
        self._client = client

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    async def received(self, path: str | None = None) -> list[Received]:
        answer = (await self._client.get("/_received")).json()["received"]
        return [
            Received(r["path"], r["headers"], base64.b64decode(r["body"]), r["at"], r["status"])
            for r in answer
            if path is None or r["path"] == f"/{path}"
        ]

    async def most_at_once(self, path: str) -> int:
        return (await self._client.get("/_received")).json()["most_at_once"].get(f"/{path}", 0)

    async def forget(self) -> None:
        await self._client.post("/_forget")

    async def leave(self) -> None:
        await self._client.post("/_leave")

    async def wait_for(
        self,
        path: str,
        count: int = 1,
        seconds: float = 20,
        which: Callable[[Received], bool] = lambda _: True,
    ) -> list[Received]:
        found: list[Received] = []

        async def there() -> bool:
            found[:] = [r for r in await self.received(path) if which(r)]
            return len(found) >= count

        await until(there, seconds=seconds, every=0.05)
        return found


@dataclass
class Hooks:
    service: Service
    receiver: Receiver
    config: Config

    async def register(self, client: httpx.AsyncClient, path: str, *events: str) -> dict[str, Any]:
        answer = await client.post(
            "/v1/webhooks",
            json={"url": self.receiver.url(path), "events": list(events or ("*",))},
        )
        assert answer.status_code == 201, answer.text
        return answer.json()["data"]


@asynccontextmanager
async def running_receiver() -> AsyncGenerator[Receiver]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.webhooks.receiver",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    port = int(await asyncio.wait_for(process.stdout.readline(), 30))
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base, verify=False, timeout=60) as client:
        yield Receiver(port, client)
    process.stdin.close()
    process.kill()
    await process.wait()


@asynccontextmanager
async def running_worker(
    config: Config, log: IO[bytes] | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await start_worker(config, log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0


async def start_worker(config: Config, log: IO[bytes] | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bursar.cli.main", "worker"),
        env=clean_environment() | config.child_environment(),
        stdout=log,
        stderr=log,
    )


@asynccontextmanager
async def own_hooks(
    postgres: EmbeddedPostgres, base: Config, name: str, data_dir: Path, **settings: Any
) -> AsyncGenerator[Hooks]:
    """A database with a service on it, and a master key of its own. Its name begins with `name`;
    the rest is new each time, because fixtures of a folder may be made more than once."""
    name = f"{name}_{secrets.token_hex(4)}"
    admin = await asyncpg.connect(postgres.admin_dsn)
    await admin.execute(f"CREATE DATABASE {name} OWNER {ROLE}")
    await admin.close()
    dsn = postgres.dsn_for(name)
    await migrate(dsn)
    config = replace(
        base,
        database_url=dsn,
        data_dir=data_dir,
        webhooks_allow=ALLOW,
        rate_limits=False,
        **settings,
    )
    async with AsyncExitStack() as stack:
        database = await Database.open(dsn, 5, 10)
        stack.push_async_callback(database.close)
        api = await Api.start(config, SystemClock())
        stack.push_async_callback(api.stop)
        receiver = await stack.enter_async_context(running_receiver())
        service = Service(f"http://127.0.0.1:{api.port}", config, database)
        yield Hooks(service, receiver, config)


@pytest.fixture(scope="package")
async def hooks(
    postgres: EmbeddedPostgres,
    config: Config,
    localnets: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Hooks]:
    """With a worker whose retries come fast."""
    settings = {
        "webhooks_retry_seconds": (1, 1, 1, 1, 1, 1, 1),
        "webhooks_timeout_seconds": 2,
        "drain_seconds": 3,
    }
    async with (
        own_hooks(
            postgres, config, "webhooks", tmp_path_factory.mktemp("webhooks"), **settings
        ) as made,
        running_worker(made.config),
    ):
        yield made


@pytest.fixture
async def client(hooks: Hooks) -> AsyncGenerator[httpx.AsyncClient]:
    """An admin of an account of its own."""
    async with await hooks.service.admin() as made:
        yield made
