"""The HTTP process: granian inside our own event loop, so that stopping is ours to bound."""

import asyncio
import contextlib
import signal
from typing import Final

import structlog
from granian.constants import Interfaces
from granian.server.embed import Server

from bursar.access.guard import Guard
from bursar.access.limits import Limiter, ProcessLimiter, Unlimited
from bursar.clock import Clock
from bursar.config import Config
from bursar.custody.vault import Vault, load_master_key
from bursar.db import Database
from bursar.errors import check
from bursar.http.app import App
from bursar.http.call import Services
from bursar.logs import AccessLog
from bursar.metrics import UP

# Connections that wait to be accepted while all processes are busy.
_BACKLOG: Final = 1024
# Requests that one process works on at once; the others wait in their connections.
_BACKPRESSURE: Final = 1024

_log = structlog.get_logger()


async def run_api(config: Config, clock: Clock) -> None:
    """Serves until SIGTERM or SIGINT, then lets running requests end within `drain_seconds`."""
    check(config.database_url is not None, "the api process is told its database")
    assert config.database_url is not None
    db = await Database.open(
        config.database_url, config.database_connections, config.database_timeout_seconds
    )
    guard = Guard(db, clock)
    access_log = AccessLog(clock, enabled=config.log_level in ("debug", "info"))
    app = App(
        Services(
            config=config,
            clock=clock,
            db=db,
            guard=guard,
            limiter=_limiter(config, clock),
            vault=Vault(load_master_key(config.master_key, config.data_dir)),
        ),
        access_log,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(
        app,
        address=config.host,
        port=config.port,
        interface=Interfaces.ASGINL,
        backlog=_BACKLOG,
        backpressure=_BACKPRESSURE,
        websockets=False,
        log_enabled=False,
    )
    serving = asyncio.create_task(server.serve())
    rechecking = asyncio.create_task(guard.recheck_forever())
    UP.labels("api").set(1)
    _log.info("api_started", host=config.host, port=config.port)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped, rechecking}, return_when=asyncio.FIRST_COMPLETED)
    # Whichever ended by itself is a fault: the supervisor starts a fresh process.
    failed = not stopped.done()
    server.stop()
    if not await app.drained(config.drain_seconds):
        _log.warning("requests_cut", after_seconds=config.drain_seconds)
    rechecking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await rechecking
    access_log.flush()
    await db.close()
    _log.info("api_stopped", failed=failed)
    check(not failed, "the HTTP server ended by itself")


def _limiter(config: Config, clock: Clock) -> Limiter:
    if config.rate_limits:
        return ProcessLimiter(clock)
    _log.warning("rate_limits_off", advice="for benchmarks only; unset BURSAR_RATE_LIMITS")
    return Unlimited()
