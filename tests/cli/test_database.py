"""Commands that work on the database: what went wrong is told as what it is."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bursar.cli.database import on_database
from bursar.config import Config
from bursar.db import Database
from bursar.errors import CommandFailed
from tests.processes import bursar


async def told(config: Config, work: Callable[[], object]) -> str:
    """What an operator reads of a command that does this beside the database."""

    async def working(_: Database) -> None:
        work()

    with pytest.raises(CommandFailed) as failed:
        await asyncio.to_thread(on_database, config, working)
    return str(failed.value)


async def test_a_file_that_fails_is_not_the_database(config: Config, tmp_path: Path):
    """Goal: whoever has a full disk does not look for a database that is down."""
    full = await told(config, lambda: Path("/dev/full").write_text("x"))
    assert full == "A file cannot be read or written: [Errno 28] No space left on device"
    missing = await told(config, lambda: (tmp_path / "none").read_text())
    assert missing.startswith("A file cannot be read or written: ")
    assert str(tmp_path / "none") in missing


async def test_a_master_key_that_cannot_be_read(config: Config, tmp_path: Path):
    """Goal: the command names the file."""
    (tmp_path / "master.key").mkdir()
    done = await bursar(
        *("keys", "rotate-master", "--data-dir", str(tmp_path)),
        database_url=str(config.database_url),
    )
    assert done.code == 1
    assert f"A file cannot be read or written: [Errno 21] Is a directory: '{tmp_path}" in done.err


@pytest.mark.parametrize("url", ["postgresql://bursar@127.0.0.1:1/bursar", None])
async def test_a_database_that_is_down(config: Config, tmp_path: Path, url: str | None):
    """Goal: it is still told as that, over a network and in a data folder alike."""
    config = replace(config, database_url=url, data_dir=tmp_path)
    assert (await told(config, lambda: None)).startswith("The database does not answer.")
