"""One node with fault switches for all tests here; every test has a database of its own."""

import itertools
from collections.abc import AsyncGenerator
from dataclasses import replace

import aiohttp
import pytest

from bursar.clock import SystemClock
from bursar.config import load_config
from bursar.db import Database
from bursar.migrations.migrate import migrate
from bursar.service.api import Api
from bursar.service.postgres import ROLE, EmbeddedPostgres
from tests.databases import administer
from tests.localnet.support import Rpc, start_node
from tests.settlement.support import Stage, staged
from tests.support import Service

_numbers = itertools.count(1)
# Fast enough that blocks pass while a test waits, slow enough that it can look in between.
SLOT_MS = "100"


@pytest.fixture(scope="session")
async def faulty_rpc(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Rpc]:
    folder = tmp_path_factory.mktemp("chain")
    node = await start_node(folder, "--faults", "--slot-ms", SLOT_MS, "--ws-port", "0")
    async with aiohttp.ClientSession() as session:
        yield Rpc(node.port, session)
    await node.stop()


@pytest.fixture(scope="session")
async def template(postgres: EmbeddedPostgres) -> str:
    """A migrated database to be copied."""
    await administer(postgres, f"CREATE DATABASE settlement_template OWNER {ROLE}")
    await migrate(postgres.dsn_for("settlement_template"))
    return "settlement_template"


@pytest.fixture
async def stage(
    postgres: EmbeddedPostgres,
    template: str,
    faulty_rpc: Rpc,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Stage]:
    name = f"settlement_{next(_numbers)}"
    await administer(postgres, f"CREATE DATABASE {name} TEMPLATE {template} OWNER {ROLE}")
    config = load_config(
        {},
        data_dir=tmp_path_factory.mktemp("data"),
        port=0,
        localnet_port=faulty_rpc.port,
        rate_limits="off",
        log_level="error",
    )
    config = replace(config, database_url=postgres.dsn_for(name), database_connections=4)
    assert config.database_url is not None
    db = await Database.open(config.database_url, 10, 10)
    api = await Api.start(config, SystemClock())
    service = Service(f"http://127.0.0.1:{api.port}", config, db)
    try:
        async with staged(config, service, faulty_rpc) as ready:
            yield ready
    finally:
        await api.stop()
        await db.close()
        await administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")
