"""Bursar's commands as processes of their own, for tests that need a second one."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

import httpx

from bursar.config import PREFIX, Config, load_config, variable
from bursar.service.ports import free_port
from tests.machine import Watch

# Generous, because how long a busy machine takes to start a process is not what is tested.
_START_SECONDS: Final = 180
_COMMAND = (sys.executable, "-m", "bursar.cli.main")


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


async def bursar(*arguments: str, **variables: str) -> Finished:
    """Runs a command to its end. `variables` are settings by name: `data_dir` and so on."""
    return await bursar_within({}, *arguments, **variables)


async def bursar_within(
    environment: Mapping[str, str], /, *arguments: str, **variables: str
) -> Finished:
    """The same, with further variables of the environment."""
    settings = {f"{PREFIX}{name.upper()}": value for name, value in variables.items()}
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        *arguments,
        env=clean_environment() | settings | dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return Finished(process.returncode, out.decode(), err.decode())


@dataclass(frozen=True)
class ApiProcess:
    process: asyncio.subprocess.Process
    url: str


@asynccontextmanager
async def running_api(config: Config, log: IO[bytes] | None = None) -> AsyncGenerator[str]:
    """`bursar api` on the database and the data folder of `config`; gives its address."""
    api = await spawn_api(config, log)
    try:
        yield api.url
    finally:
        if api.process.returncode is None:
            api.process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(api.process.wait(), 30)
    assert code == 0, "bursar api did not stop in order"


async def spawn_api(
    config: Config,
    log: IO[bytes] | None = None,
    *,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> ApiProcess:
    """The same, for whoever ends it by other means. Takes the port of `config`, or a free one."""
    port = config.port or free_port("127.0.0.1", 0)
    config = replace(config, host="127.0.0.1", port=port)
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        "api",
        *options,
        env=clean_environment() | config.child_environment() | dict(environment or {}),
        stdout=log,
        stderr=log,
    )
    url = f"http://127.0.0.1:{port}"

    async def answers() -> bool:
        assert process.returncode is None, "bursar api ended early"
        try:
            async with httpx.AsyncClient() as client:
                return (await client.get(f"{url}/healthz")).status_code == 200
        except httpx.TransportError:
            return False

    try:
        await until(answers, seconds=_START_SECONDS)
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    return ApiProcess(process, url)


@asynccontextmanager
async def running_service(
    data_dir: Path, log: IO[bytes] | None = None, **settings: str
) -> AsyncGenerator[Config]:
    """`bursar serve`, all of it, as a user runs it; `settings` by name. Gives its configuration."""
    variables = {
        variable(name): value
        for name, value in {
            "data_dir": str(data_dir),
            "port": str(free_port("127.0.0.1", 0)),
            "localnet_port": str(free_port("127.0.0.1", 0)),
            "live_localnet_port": str(free_port("127.0.0.1", 0)),
            "log_level": "error",
            **settings,
        }.items()
    }
    config = load_config(variables)
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, "serve", env=clean_environment() | variables, stdout=log, stderr=log
    )

    async def ready() -> bool:
        assert process.returncode is None, "bursar serve ended early"
        try:
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{config.port}/readyz")
                return answer.status_code == 200
        except httpx.TransportError:
            return False

    try:
        await until(ready, seconds=_START_SECONDS, every=0.1)
        yield config
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 60)
    assert code == 0, "bursar serve did not stop in order"


def clean_environment() -> dict[str, str]:
    """Ours without any setting of Bursar, so that a developer's own do not change a test, without
    the size of a terminal that is not the test's, and without what `make test` was told: a `make`
    of the test's own would take it as told to itself."""
    not_ours = {"COLUMNS", "LINES", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "ARGS"}
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) and name not in not_ours
    }


async def until(
    condition: Callable[[], Awaitable[bool]], *, seconds: float, every: float = 0.02
) -> float:
    """Waits for a condition; returns how long that took, or fails."""
    watch = Watch()
    while not await condition():
        assert watch.seconds < seconds, f"still not so after {seconds} s"
        await asyncio.sleep(every)
    return watch.seconds
