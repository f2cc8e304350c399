"""`bursar serve`: runs the whole service on one machine until it is told to stop."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil

from bursar.access.limits import ProcessLimiter
from bursar.clock import SystemClock
from bursar.config import Config, variable
from bursar.db import Database
from bursar.errors import ConfigError
from bursar.migrations.migrate import migrate
from bursar.service.backup import backup_folder, stop_holding_log
from bursar.service.datadir import locked_data_dir
from bursar.service.environment import bare_python_environment
from bursar.service.first_key import hand_over, make_first_key
from bursar.service.limits import counting_limits
from bursar.service.networks import choose_ports, localnet_children, refuse_wrong_networks
from bursar.service.ports import free_port
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.supervisor import Child, Supervisor

Echo = Callable[[str], None]

_API_READY_SECONDS: Final = 30.0
# What the HTTP server may need after its drain to close connections and processes.
_CLOSE_SECONDS: Final = 5.0
_HEALTH_SECONDS: Final = 2.0
_HEALTH_POLL_SECONDS: Final = 0.02
# Connections to the embedded database besides the pools: for commands, backups and psql.
_SPARE_CONNECTIONS: Final = 20
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def serve(config: Config, *, echo: Echo, on_terminal: bool) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP; returns the exit code. `on_terminal`: the output goes to
    a terminal and is kept nowhere, so the first key may be shown in it.

    Raises CommandFailed, with nothing left running, when the service cannot start.
    """
    if config.backup_dir is not None:
        backup_folder(config)  # raises before anything starts
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        with (
            locked_data_dir(config.data_dir),
            EmbeddedPostgres(config.data_dir).leaving_no_socket_dir(),
        ):
            async with (
                _counted_here(config) as limits,
                Supervisor(config.data_dir) as supervisor,
            ):
                start = asyncio.create_task(_start(supervisor, config, limits))
                if await _finished(start, unless=stop):
                    running, key = await start  # raises what went wrong
                    echo(banner(running))
                    if key is not None:
                        echo(hand_over(key, None if on_terminal else config.data_dir))
                    await stop.wait()
                echo("Stopping ...")
        return 0
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _counted_here(config: Config) -> AsyncGenerator[Path | None]:
    """With several HTTP processes and no Redis, this process counts their requests, so that the
    rate limits stay exact. Yields the socket at which it is asked; None when it is not needed."""
    if config.workers > 1 and sys.platform != "linux":
        raise ConfigError("BURSAR_WORKERS", "several HTTP processes share a port on Linux only")
    if config.workers == 1 or config.redis_url is not None or not config.rate_limits:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="bursar-") as folder:
        socket = Path(folder) / "limits"
        async with counting_limits(socket, ProcessLimiter(SystemClock())):
            yield socket


async def _start(
    supervisor: Supervisor, config: Config, limits: Path | None
) -> tuple[Config, str | None]:
    """(settings with the ports in use, the first key if this is the first start)."""
    # Ports are chosen after leftovers are gone, because one of them may hold a port; and before the
    # database starts, so that a taken port is reported at once.
    config = choose_ports(replace(config, port=free_port(config.host, config.port)))
    _clear_metrics(config)
    # Parts that do not need each other start at the same time.
    database = asyncio.create_task(_start_database(supervisor, config))

    async def chains() -> None:
        await _start_all(supervisor, localnet_children(config))
        db = await Database.open_or_fail(await database, 1, config.database_timeout_seconds)
        try:
            await refuse_wrong_networks(config, db)
        finally:
            await db.close()

    async def service() -> str | None:
        serving = replace(config, database_url=await database)
        key = await make_first_key(serving)
        await _start_all(supervisor, [*_apis(serving, limits), _worker(serving)])
        if config.backup_dir is not None:
            await supervisor.start(_backups(config))
        return key

    _, key = await asyncio.gather(chains(), service())
    return config, key


async def _start_all(supervisor: Supervisor, children: Sequence[Child]) -> None:
    await asyncio.gather(*(supervisor.start(child) for child in children))


async def _start_database(supervisor: Supervisor, config: Config) -> str:
    """The database's address, once it is up to date."""
    if config.database_url is not None:
        # Nodes of an older version may still use it: see `bursar database migrate`.
        await migrate(config.database_url, after_deploy=False)
        return config.database_url
    database = EmbeddedPostgres(
        config.data_dir,
        max_connections=config.workers * config.database_connections + _SPARE_CONNECTIONS,
    )
    await database.clear()
    await database.prepare()
    await supervisor.start(database.child())
    await migrate(database.dsn)
    if config.backup_dir is None:
        await stop_holding_log(config, database)
    return database.dsn


def _apis(config: Config, limits: Path | None) -> list[Child]:
    """One HTTP process, or several that share the port and one count of their requests."""
    if config.workers == 1:
        return [_api(config)]
    options = ["--share-port", *(() if limits is None else ("--limits-socket", str(limits)))]
    return [_api(config, f"api-{number + 1}", options) for number in range(config.workers)]


def _api(config: Config, name: str = "api", options: Sequence[str] = ()) -> Child:
    return Child(
        name=name,
        argv=[*_command("api"), *options],
        env=_environment(config),
        ready=lambda: _healthy(config.host, config.port),
        ready_seconds=_API_READY_SECONDS,
        stop_seconds=config.drain_seconds + _CLOSE_SECONDS,
        clear=lambda: _forget_dead_gauges(config),
    )


def _worker(config: Config) -> Child:
    return Child(
        name="worker",
        argv=_command("worker"),
        env=_environment(config),
        # Longer than the drain, so that running deliveries can end too.
        stop_seconds=config.drain_seconds + _CLOSE_SECONDS,
        clear=lambda: _forget_dead_gauges(config),
    )


def _backups(config: Config) -> Child:
    # Backups copy sealed keys without opening them, so no master key is needed.
    settings = config.child_environment()
    told = (variable(name) for name in ("backup_dir", "backup_keep", "log_level"))
    env = bare_python_environment() | {name: settings[name] for name in told}
    return Child(name="backup", argv=_command("backup", "keep"), env=env)


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "bursar.cli.main", *words]


def _environment(config: Config) -> dict[str, str]:
    return {
        **os.environ,
        # Standard error is unbuffered, because the last lines of a killed child matter most.
        "PYTHONUNBUFFERED": "1",
        # Every process writes its metrics here, so that one page can show them all.
        "PROMETHEUS_MULTIPROC_DIR": str(_metrics_dir(config)),
        **config.child_environment(),
    }


def _metrics_dir(config: Config) -> Path:
    return config.data_dir / "metrics"


def _clear_metrics(config: Config) -> None:
    """Counts start at zero with the service, as Prometheus expects of a restart."""
    shutil.rmtree(_metrics_dir(config), ignore_errors=True)
    _metrics_dir(config).mkdir(mode=0o700)


async def _forget_dead_gauges(config: Config) -> None:
    """Removes the gauges of a process that died; its counters stay."""
    for file in _metrics_dir(config).glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            file.unlink(missing_ok=True)


def base_url(config: Config) -> str:
    """Where a client on this machine finds the service."""
    host = _reachable(config.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{config.port}"


def _typed() -> str:
    """The command `bursar` as it has to be typed in this folder."""
    here = Path(sys.argv[0])
    return str(here) if here.name == "bursar" and shutil.which("bursar") is None else "bursar"


def banner(config: Config) -> str:
    url = base_url(config)
    lines = [
        "Bursar is running. Press Ctrl-C to stop it.",
        "",
        f"  API      {url}/v1",
        f"  Docs     {url}/docs",
        f"  Console  {url}/console",
        f"  Data     {config.data_dir}",
        "",
        f"Make a key:  {_typed()} keys create --mode test --scope admin",
    ]
    return "\n".join(lines)


async def _healthy(host: str, port: int) -> None:
    """Return once `GET /healthz` answers 200; the caller bounds the wait."""
    while True:
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                if await _health_status(_reachable(host), port) == 200:
                    return
        except (OSError, TimeoutError):
            pass  # not listening yet
        await asyncio.sleep(_HEALTH_POLL_SECONDS)


async def _health_status(host: str, port: int) -> int | None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        parts = (await reader.readline()).split()
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None
    finally:
        writer.close()


def _reachable(host: str) -> str:
    """An address to connect to, for one to listen on: `0.0.0.0` means every address."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not listened on here
    return everywhere.get(host, host)


async def _finished(task: asyncio.Task[Any], *, unless: asyncio.Event) -> bool:
    """Wait for the task; False, with the task cancelled, when the event comes first."""
    told = asyncio.create_task(unless.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        told.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, told})
