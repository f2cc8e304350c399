"""`bursar serve` as a whole: one process that brings up, watches and takes down the rest."""

import asyncio
import base64
import os
import pty
import re
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import httpx
import psutil
import pytest

from bursar.config import load_config
from bursar.errors import CommandFailed
from bursar.migrations.migrate import latest
from bursar.service.ports import free_port
from bursar.service.postgres import EmbeddedPostgres, running_postgres
from bursar.service.serve import banner, base_url
from tests.service.waiting import LONG_SECONDS, eventually, runs

FIRST_KEY = "A test key to begin with"


class Serve:
    """A `serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, data_dir: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        self.output = ""

    async def says(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.output:
            async with asyncio.timeout(LONG_SECONDS):
                line = await self.process.stdout.readline()
            assert line, f"ended without saying {text!r}: {self.output}"
            self.output += line.decode()

    async def ends(self) -> int:
        assert self.process.stdout is not None
        async with asyncio.timeout(LONG_SECONDS):
            self.output += (await self.process.stdout.read()).decode()
            return await self.process.wait()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, name: str) -> psutil.Process | None:
        """The API by the command it was started with, PostgreSQL by the name of its program."""
        for process in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                if process.name() == name or process.cmdline()[-1:] == [name]:
                    return process
        return None


@asynccontextmanager
async def serving(
    data_dir: Path,
    port: int,
    *,
    stdout: int = asyncio.subprocess.PIPE,
    settings: Mapping[str, str] | None = None,
) -> AsyncGenerator[Serve]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bursar.cli.main", "serve"),
        env={
            **os.environ,
            "BURSAR_DATA_DIR": str(data_dir),
            "BURSAR_PORT": str(port),
            "BURSAR_LOCALNET_PORT": "0",
            **(settings or {}),
        },
        stdout=stdout,
        stderr=asyncio.subprocess.STDOUT,
    )
    serve = Serve(process, data_dir)
    try:
        yield serve
    finally:
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.communicate(), LONG_SECONDS)
        if process.returncode is None:
            process.kill()
            await process.communicate()


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def test_a_day_in_the_life(tmp_path: Path) -> None:
    """First start, a second owner, every child killed, the supervisor killed, and a clean end."""
    data_dir = tmp_path / "data"
    database = EmbeddedPostgres(data_dir)
    port = free_port("127.0.0.1", 0)
    async with serving(data_dir, port) as serve:
        await serve.says(FIRST_KEY)
        assert f"http://127.0.0.1:{port}/docs" in serve.output
        connection = await asyncpg.connect(database.dsn)
        assert await connection.fetchval("SELECT max(number) FROM migration") == latest()
        await connection.close()

        async with serving(data_dir, port) as second:
            assert await second.ends() == 1
            assert f"(process {serve.process.pid})" in second.output

        for name in ("api", "postgres"):
            child = serve.child(name)
            assert child is not None
            child.kill()
            await serve.says(f'"child":"{name}"')
            await serve.says("child_restarted")
            serve.output = ""
            assert listens(port)
        await asyncio.wait_for(database.wait_ready(), LONG_SECONDS)

        left = serve.family()
        serve.process.kill()
        await eventually(lambda: not runs(serve.process.pid))

    async with serving(data_dir, port) as serve:
        await serve.says("bursar keys create")
        assert not any(runs(process.pid) for process in left)
        family = serve.family()
        serve.process.terminate()
        assert await serve.ends() == 0
        assert FIRST_KEY not in serve.output
        assert not any(runs(process.pid) for process in family)
        assert list(database.processes()) == []
        assert not listens(port)


async def test_without_a_terminal_no_secret_is_left_about(tmp_path: Path) -> None:
    """Goal: the first key is in a private file and not in what becomes a log, and ends; the chain
    for tests, which others may reach, has nothing of the service's environment."""
    data_dir, port = tmp_path / "data", free_port("127.0.0.1", 0)
    secrets = {"BURSAR_MASTER_KEY": base64.b64encode(os.urandom(32)).decode(), "A_TOKEN": "abc"}
    async with serving(data_dir, port, settings=secrets) as serve:
        await serve.says(FIRST_KEY)
        file = data_dir / "first-test.key"
        await serve.says(str(file))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "bur_test_" not in serve.output
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            key = {"Authorization": f"Bearer {file.read_text().strip()}"}
            me = (await client.get("/v1/me", headers=key)).json()["data"]
        lasts = datetime.fromisoformat(me["expiresAt"]) - datetime.fromisoformat(me["createdAt"])
        assert timedelta(days=30) - lasts < timedelta(minutes=1)
        (localnet,) = [p for p in serve.family() if "localnet" in p.cmdline()]
        assert not {*secrets, "BURSAR_DATABASE_URL"} & set(localnet.environ())


async def test_on_a_terminal_the_first_key_is_shown(tmp_path: Path) -> None:
    """Goal: who starts it by hand reads the key, and it is written nowhere."""
    ours, theirs = pty.openpty()
    data_dir = tmp_path / "data"
    async with serving(data_dir, free_port("127.0.0.1", 0), stdout=theirs) as serve:
        os.close(theirs)
        seen = b""
        async with asyncio.timeout(3 * LONG_SECONDS):
            while re.search(rb"bur_test_\w{38}\r\n", seen) is None:
                seen += await asyncio.to_thread(os.read, ours, 4096)
        assert FIRST_KEY.encode() in seen
        assert not (data_dir / "first-test.key").exists()
        serve.process.terminate()
        await serve.process.wait()
    os.close(ours)


async def test_with_a_database_of_ones_own_none_is_started(tmp_path: Path) -> None:
    async with (
        running_postgres(tmp_path / "own", durable=False) as own,
        serving(
            tmp_path / "data", free_port("127.0.0.1", 0), settings={"BURSAR_DATABASE_URL": own.dsn}
        ) as serve,
    ):
        await serve.says(FIRST_KEY)
        assert not (tmp_path / "data" / "postgres").exists()


async def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", free_port("127.0.0.1", 0)) as serve:
        await eventually(lambda: (tmp_path / "data" / "children.json").exists())
        family = serve.family()
        serve.process.send_signal(signal.SIGINT)
        assert await serve.ends() == 0
        assert "is running" not in serve.output
        assert not any(runs(process.pid) for process in family)


async def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving(tmp_path / "data", port) as serve:
            assert await serve.ends() == 1
    assert f"Port {port} on 127.0.0.1 is already in use" in serve.output
    assert not (tmp_path / "data" / "postgres").exists()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(CommandFailed, match="--host"):
        free_port(host, 8420)


def test_the_banner_says_where_everything_is(tmp_path: Path) -> None:
    config = load_config({"BURSAR_DATA_DIR": str(tmp_path), "BURSAR_HOST": "0.0.0.0"})
    text = banner(config)
    assert "http://127.0.0.1:8420/v1" in text
    assert "http://127.0.0.1:8420/console" in text
    assert base_url(replace(config, host="::")) == "http://[::1]:8420"
