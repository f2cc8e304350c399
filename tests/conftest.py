"""One PostgreSQL and one service for the whole run; every test brings its own tenant."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

from bursar.clock import SystemClock
from bursar.config import Config, load_config
from bursar.db import Database
from bursar.logs import set_up_logs
from bursar.migrations.migrate import migrate
from bursar.service.api import Api
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.postgres import EmbeddedPostgres, running_postgres
from bursar.service.supervisor import Supervisor
from tests.processes import running_service
from tests.support import Service

# A busy machine is no failure, and a failure prints what repeats it. `make fuzz` asks for more.
settings.register_profile(
    "bursar",
    deadline=None,
    print_blob=True,
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "100")),
)
settings.load_profile("bursar")
set_up_logs("error", "test")
# A run in the background is told to ignore Ctrl-C, and so would be every process it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Each kills what it started, under load: side by side they would starve each other. They run one
# after the other in one worker.
ONE_AFTER_THE_OTHER = (
    "prove/test_campaign.py",
    "purchases/test_hostile.py",
    "nodes/test_topology.py",
    "service/test_backup.py",
    "property/test_model.py",
    "nodes/test_backup.py",
    "purchases/test_crash.py",
    "settlement/test_under_fire.py",
)
# Begun last, one of these would be all that still runs at the end.
LONGEST = (
    *ONE_AFTER_THE_OTHER,
    "integration/test_schemathesis.py",
    "cli/test_commands.py",
    "nodes/test_limits_of_nodes.py",
    "documents/test_run.py",
    "nodes/test_shared_limits.py",
    "fuzz/test_parsers.py",
    "integration/test_limits.py",
    "integration/test_rate_limits.py",
    "integration/test_transactions.py",
)


class _ByFile(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        alone = file.removeprefix("tests/") in ONE_AFTER_THE_OTHER
        return "one after the other" if alone else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    return _ByFile(config, log)


# Thousands of times through lines that other tests cover, as does every test of Hypothesis: to
# count them takes as long again.
UNCOUNTED = (
    "fuzz/test_parsers.py",
    "integration/test_schemathesis.py",
    "nodes/test_shared_limits.py",
    "property/test_model.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    uncounted = {here / name for name in UNCOUNTED}
    for item in items:
        if item.path in uncounted or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[EmbeddedPostgres]:
    folder = tmp_path_factory.mktemp("postgres")
    async with running_postgres(folder, durable=False, max_connections=200) as server:
        yield server


@pytest.fixture(scope="session")
async def config(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Config:
    await migrate(postgres.dsn)
    folder: Path = tmp_path_factory.mktemp("data")
    made = load_config(
        {},
        data_dir=folder,
        port=0,
        live_network="localnet",
        localnet_port=0,
        live_localnet_port=0,
        log_level="error",
    )
    return choose_ports(replace(made, database_url=postgres.dsn))


@pytest.fixture(scope="session")
async def localnets(config: Config) -> AsyncGenerator[None]:
    """The chains of both modes, as `bursar serve` runs them."""
    async with Supervisor(config.data_dir) as supervisor:
        for child in localnet_children(config):
            await supervisor.start(child)
        yield


@pytest.fixture(scope="session")
async def db(config: Config) -> AsyncGenerator[Database]:
    assert config.database_url is not None
    database = await Database.open(config.database_url, 10, 10)
    yield database
    await database.close()


@pytest.fixture(scope="session")
async def service(config: Config, db: Database, localnets: None) -> AsyncGenerator[Service]:
    api = await Api.start(config, SystemClock())
    try:
        yield Service(f"http://127.0.0.1:{api.port}", config, db)
    finally:
        await api.stop()
        await asyncio.sleep(0)


@pytest.fixture(scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Service]:
    """A whole `bursar serve` of its own, worker and chain included, for those who only call it."""
    folder = tmp_path_factory.mktemp("served")
    local = "127.0.0.0/8,localhost"
    settings = {"live_network": "localnet", "webhooks_allow": local, "purchases_allow": local}
    with (folder / "log").open("wb") as log:
        async with running_service(folder / "data", log, **settings) as config:
            database = await Database.open(EmbeddedPostgres(config.data_dir).dsn, 2, 10)
            yield Service(f"http://127.0.0.1:{config.port}", config, database)
            await database.close()
