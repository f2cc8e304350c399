"""Goal: every page of the console is quick with 10,000 agents, whatever the transactions.

`BURSAR_LONG=1` loads a million of them, which takes minutes; so does `make bench`.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from bench import console
from bench.books import MANY, make_books

from bursar.config import load_config
from bursar.service.postgres import running_postgres

SIZE = MANY if os.environ.get("BURSAR_LONG") == "1" else 50_000


@pytest.mark.timeout(900)
async def test_every_page_is_quick(tmp_path: Path):
    """Goal: under 300 ms at the server. A page that a busy machine made slow is asked again."""
    async with running_postgres(tmp_path / "postgres", durable=False) as server:
        config = replace(load_config({}, data_dir=tmp_path), database_url=server.dsn)
        books = await make_books(server, config, SIZE, console.AGENTS)
        taken = await console.milliseconds(server, config, tmp_path, books, tries=3)
    assert set(taken) == set(console.PAGES)
    slow = {name: round(ms) for name, ms in taken.items() if ms >= console.MOST_MS}
    assert slow == {}
