"""`bursar serve`: runs the whole service on one machine until it is told to stop."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil

from bursar.access.limits import ProcessLimiter
from bursar.clock import SystemClock
from bursar.config import Config, variable
from bursar.db import Database
from bursar.errors import ConfigError, present
from bursar.migrations.migrate import migrate
from bursar.service.backup import backup_folder, stop_holding_log
from bursar.service.datadir import locked_data_dir
from bursar.service.environment import bare_python_environment
from bursar.service.first_key import RUNNING, hand_over, make_first_key
from bursar.service.health import healthy
from bursar.service.limits import counting_limits
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.ports import free_port
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.supervisor import Child, Supervisor

Echo = Callable[[str], None]

_API_READY_SECONDS: Final = 30.0
# What the HTTP server may need after its drain to close connections and processes.
_CLOSE_SECONDS: Final = 5.0
# Connections to the embedded database besides the pools: for commands, backups and psql.
_SPARE_CONNECTIONS: Final = 20
PROCESS: Final = (sys.executable, "-m", "bursar.service.process")
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
                first_key: list[str] = []

                def hand(key: str) -> None:
                    first_key.append(hand_over(key, None if on_terminal else config.data_dir))

                start = asyncio.create_task(_start(supervisor, config, limits, hand))
                try:
                    started = await _finished(start, unless=stop)
                    if started:
                        echo(banner(await start))  # raises what went wrong
                        echo("".join(first_key) or _make_one())
                        first_key.clear()
                finally:
                    # A start that failed may have made one all the same, and it is told only once.
                    for message in first_key:
                        echo(message)
                if started:
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
    supervisor: Supervisor, config: Config, limits: Path | None, hand: Callable[[str], None]
) -> Config:
    """The settings with the ports in use. `hand` is given the first key, at the very first start,
    before anything answers."""
    # Ports are chosen after leftovers are gone, because one of them may hold a port; and before the
    # database starts, so that a taken port is reported at once.
    config = choose_ports(replace(config, port=free_port(config.host, config.port)))
    _clear_metrics(config)
    # Parts that do not need each other start at the same time. The API and the worker import their
    # modules while the database starts; it is started before them, so that it is stopped after.
    embedded = _embedded(config)
    prepared = asyncio.create_task(_prepare(embedded))
    database = asyncio.create_task(_start_database(supervisor, config, embedded, prepared, hand))

    async def chains() -> None:
        await _together(*(supervisor.start(child) for child in localnet_children(config)))
        dsn = await database
        # Imported here because a chain's client takes longer to import than the database to start.
        from bursar.service.networks import refuse_wrong_networks

        db = await Database.open_or_fail(dsn, 1, config.database_timeout_seconds)
        try:
            await refuse_wrong_networks(config, db)
        finally:
            await db.close()

    async def service() -> None:
        await prepared
        dsn = config.database_url if embedded is None else embedded.dsn
        serving = replace(config, database_url=dsn)
        clients = [*_apis(serving, limits), _worker(serving)]
        await _together(*(supervisor.start(replace(one, needs=database)) for one in clients))
        if config.backup_dir is not None:
            await supervisor.start(_backups(config))

    await _together(prepared, database, chains(), service())
    return config


async def _together(*works: Awaitable[Any]) -> None:
    """All at once. When one fails, or this is cancelled, none of the others goes on."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _embedded(config: Config) -> EmbeddedPostgres | None:
    if config.database_url is not None:
        return None
    connections = config.workers * config.database_connections + _SPARE_CONNECTIONS
    return EmbeddedPostgres(config.data_dir, max_connections=connections)


async def _prepare(embedded: EmbeddedPostgres | None) -> None:
    if embedded is not None:
        await embedded.clear()
        await embedded.prepare()


async def _start_database(
    supervisor: Supervisor,
    config: Config,
    embedded: EmbeddedPostgres | None,
    prepared: asyncio.Task[None],
    hand: Callable[[str], None],
) -> str:
    """The database's address, once it is up to date."""
    await prepared
    if embedded is None:
        dsn = present(config.database_url, "without a database of its own it is told one")
        # Waits for one that is starting, and says plainly that one is out of reach.
        db = await Database.open_or_fail(dsn, 1, config.database_timeout_seconds)
        await db.close()
        # Nodes of an older version may still use it: see `bursar database migrate`.
        await migrate(dsn, after_deploy=False)
    else:
        dsn = embedded.dsn
        await supervisor.start(embedded.child())
        await migrate(dsn)
        if config.backup_dir is None:
            await stop_holding_log(config, embedded)
    key = await make_first_key(replace(config, database_url=dsn))
    if key is not None:
        hand(key)
    return dsn


def _apis(config: Config, limits: Path | None) -> list[Child]:
    """One HTTP process, or several that share the port and one count of their requests."""
    if config.workers == 1:
        return [_api(config)]
    options = ["--share-port", *(() if limits is None else ("--limits-socket", str(limits)))]
    return [_api(config, f"api-{number + 1}", options) for number in range(config.workers)]


def _api(config: Config, name: str = "api", options: Sequence[str] = ()) -> Child:
    return Child(
        name=name,
        argv=[*PROCESS, "api", *options],
        env=_environment(config),
        ready=lambda: healthy(_reachable(config.host), config.port, "/healthz"),
        ready_seconds=_API_READY_SECONDS,
        stop_seconds=config.drain_seconds + _CLOSE_SECONDS,
        clear=lambda: _forget_dead_gauges(config),
    )


def _worker(config: Config) -> Child:
    return Child(
        name="worker",
        argv=[*PROCESS, "worker"],
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
    argv = [sys.executable, "-m", "bursar.cli.main", "backup", "keep"]
    return Child(name="backup", argv=argv, env=env)


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
        f"{RUNNING} Press Ctrl-C to stop it.",
        "",
        f"  API      {url}/v1",
        f"  Docs     {url}/docs",
        f"  Console  {url}/console",
        f"  Data     {config.data_dir}",
    ]
    return "\n".join(lines)


def _make_one() -> str:
    return f"\nMake a key:  {_typed()} keys create --mode test --scope admin"


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
