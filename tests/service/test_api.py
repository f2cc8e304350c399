"""The HTTP process alone: how it begins and how it ends."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from bursar.config import Config, load_config
from bursar.logs import set_up_logs
from bursar.service.api import warn_if_in_the_open
from bursar.service.postgres import EmbeddedPostgres
from tests.databases import own_database
from tests.processes import spawn_api
from tests.support import Service


async def test_it_says_why_it_died(postgres: EmbeddedPostgres, config: Config, tmp_path: Path):
    """Goal: when a task of the process ends by itself, the log holds what went wrong with it."""
    async with own_database(postgres) as (dsn, database):
        config = replace(config, database_url=dsn, data_dir=tmp_path)
        with (tmp_path / "log").open("wb") as log:
            api = await spawn_api(config, log)
        try:
            service = Service(api.url, config, database)
            async with await service.admin() as client:
                assert (await client.get("/v1/me")).status_code == 200
            async with database.transaction() as tx:
                # What checks the keys in use again, once a second, finds no table.
                await tx.execute("ALTER TABLE api_key RENAME TO hidden")
            assert await asyncio.wait_for(api.process.wait(), 30) != 0
        finally:
            if api.process.returncode is None:
                api.process.kill()
                await api.process.wait()
        assert "UndefinedTableError" in (tmp_path / "log").read_text()


@pytest.fixture
def warnings_logged() -> Iterator[list[Any]]:
    set_up_logs("warning", "test")
    with capture_logs() as logged:
        yield cast("list[Any]", logged)
    set_up_logs("error", "test")


def test_a_port_in_the_open_is_warned_of(warnings_logged: list[Any]):
    """Goal: the log of a process that others reach without TLS says so."""
    warn_if_in_the_open(load_config({"BURSAR_HOST": "127.0.0.1"}))
    warn_if_in_the_open(load_config({"BURSAR_HOST": "0.0.0.0", "BURSAR_TLS_IN_FRONT": "on"}))
    assert warnings_logged == []
    warn_if_in_the_open(load_config({"BURSAR_HOST": "0.0.0.0"}))
    (line,) = warnings_logged
    assert (line["event"], line["log_level"]) == ("listening_without_tls", "warning")
