"""The HTTP process alone: how it begins and how it ends."""

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import structlog
from structlog.testing import LogCapture

from bursar.config import Config, load_config
from bursar.service import api
from bursar.service.postgres import EmbeddedPostgres
from tests.databases import own_database
from tests.processes import running_api, spawn_api
from tests.support import Service


async def test_it_says_why_it_died(postgres: EmbeddedPostgres, config: Config, tmp_path: Path):
    """Goal: when a task of the process ends by itself, the log holds what went wrong with it."""
    async with own_database(postgres) as (dsn, database):
        config = replace(config, database_url=dsn, data_dir=tmp_path)
        with (tmp_path / "log").open("wb") as log:
            process = await spawn_api(config, log)
        try:
            service = Service(process.url, config, database)
            async with await service.admin() as client:
                assert (await client.get("/v1/me")).status_code == 200
            async with database.transaction() as tx:
                # What checks the keys in use again, once a second, finds no table.
                await tx.execute("ALTER TABLE api_key RENAME TO hidden")
            assert await asyncio.wait_for(process.process.wait(), 30) != 0
        finally:
            if process.process.returncode is None:
                process.process.kill()
                await process.process.wait()
        assert "UndefinedTableError" in (tmp_path / "log").read_text()


async def test_its_last_answers_are_in_the_log(config: Config, localnets: None, tmp_path: Path):
    """Goal: lines of requests are gathered, but none is lost when the process is told to stop."""
    config = replace(config, port=0, log_level="info")
    with (tmp_path / "log").open("wb") as log:
        async with running_api(config, log) as url, httpx.AsyncClient(base_url=url) as client:
            for number in range(20):
                await client.get("/v1/me", headers={"X-Request-Id": f"last-{number}"})
    text = (tmp_path / "log").read_text()
    assert [f'"request_id":"last-{number}"' in text for number in range(20)] == [True] * 20


def test_a_port_in_the_open_is_warned_of(monkeypatch: pytest.MonkeyPatch):
    """Goal: the log of a process that others reach without TLS says so."""
    told = LogCapture()
    everything = structlog.make_filtering_bound_logger(0)
    log = structlog.wrap_logger(None, processors=[told], wrapper_class=everything)
    monkeypatch.setattr(api, "_log", log)
    api.warn_if_in_the_open(load_config({"BURSAR_HOST": "127.0.0.1"}))
    api.warn_if_in_the_open(load_config({"BURSAR_HOST": "0.0.0.0", "BURSAR_TLS_IN_FRONT": "on"}))
    assert told.entries == []
    api.warn_if_in_the_open(load_config({"BURSAR_HOST": "0.0.0.0"}))
    (line,) = told.entries
    assert (line["event"], line["log_level"]) == ("listening_without_tls", "warning")
