"""The worker process: everything that happens without a request. Run as many as you like."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from bursar.config import Config
from bursar.db import OUT_OF_REACH, Database
from bursar.errors import check
from bursar.ledger.seal import seal_journal
from bursar.metrics import UP
from bursar.service.retention import forget_old
from bursar.spend.approve import expire_spends

_CONNECTIONS: Final = 4
# How often each duty looks for work. Short enough that nobody waits, long enough to cost nothing.
_EXPIRE_SECONDS: Final = 0.5
_SEAL_SECONDS: Final = 5.0
_FORGET_SECONDS: Final = 600.0

_log = structlog.get_logger()

Duty = Callable[[Database], Awaitable[int]]


async def run_worker(config: Config) -> None:
    """Works until SIGTERM or SIGINT; what is half done is undone by the database."""
    check(config.database_url is not None, "the worker is told its database")
    assert config.database_url is not None
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    db = await Database.open_or_fail(
        config.database_url, _CONNECTIONS, config.database_timeout_seconds
    )
    duties = [
        asyncio.create_task(_repeat(db, expire_spends, _EXPIRE_SECONDS)),
        asyncio.create_task(_repeat(db, seal_journal, _SEAL_SECONDS)),
        asyncio.create_task(_repeat(db, forget_old, _FORGET_SECONDS)),
    ]
    UP.labels("worker").set(1)
    _log.info("worker_started")
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({stopped, *duties}, return_when=asyncio.FIRST_COMPLETED)
    failed = not stopped.done()
    for task in (stopped, *duties):
        task.cancel()
    for task in duties:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await db.close()
    _log.info("worker_stopped")
    check(not failed, "a duty ended by itself")


async def _repeat(db: Database, duty: Duty, seconds: float) -> None:
    """Again at once while there is work, else after a rest. A database that is away comes back."""
    while True:
        try:
            done = await duty(db)
        except OUT_OF_REACH as problem:
            _log.warning("duty_put_off", duty=duty.__name__, problem=type(problem).__name__)
            done = 0
        if not done:
            await asyncio.sleep(seconds)
