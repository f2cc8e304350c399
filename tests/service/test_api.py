"""The HTTP process alone: how it ends."""

import asyncio
from dataclasses import replace
from pathlib import Path

from bursar.config import Config
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
