"""The worker process: everything that happens without a request. Run as many as you like."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from bursar.chain.networks import usdc_mint
from bursar.chain.port import ChainOutOfReach
from bursar.clock import SystemClock
from bursar.config import MODES, Config, Mode
from bursar.custody.setup import ensure_fee_payer, open_vault
from bursar.custody.vault import Vault
from bursar.db import OUT_OF_REACH, ROLLED_BACK, Database
from bursar.errors import check, present
from bursar.ledger.seal import seal_journal
from bursar.metrics import UP
from bursar.policy.cache import PolicyCache
from bursar.service.networks import ensure_fee_payer_funded, open_chain, wait_for_network
from bursar.service.retention import forget_old
from bursar.settlement.deposits import DepositWatcher
from bursar.settlement.outside import Outside
from bursar.settlement.reconcile import Reconciler
from bursar.settlement.worker import Settler
from bursar.spend.approve import expire_spends
from bursar.webhook.send import Sender
from bursar.webhook.target import Allowed
from bursar.webhook.worker import Deliverer

_CONNECTIONS: Final = 8
# How often each duty looks for work. Short enough that nobody waits, long enough to cost nothing.
_EXPIRE_SECONDS: Final = 0.5
_SEAL_SECONDS: Final = 5.0
_FORGET_SECONDS: Final = 600.0
_SETTLE_SECONDS: Final = 0.1
# Two settle a quarter more than one; more only wait for each other.
_ROUNDS_AT_ONCE: Final = 2
_REPORT_SECONDS: Final = 5.0
_FEE_PAYER_SECONDS: Final = 60.0

_log = structlog.get_logger()

Duty = Callable[[], Awaitable[int]]


async def run_worker(config: Config) -> None:
    """Works until SIGTERM or SIGINT; what is half done is undone by the database."""
    dsn = present(config.database_url, "the worker is told its database")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    db = await Database.open_or_fail(dsn, _CONNECTIONS, config.database_timeout_seconds)
    vault = await open_vault(db, config)
    sender = Sender(Allowed(config.webhooks_allow), config.webhooks_timeout_seconds)
    deliverer = Deliverer(
        db,
        vault,
        sender,
        SystemClock(),
        retry_seconds=config.webhooks_retry_seconds,
        timeout_seconds=config.webhooks_timeout_seconds,
        drain_seconds=config.drain_seconds,
    )
    duties = [
        asyncio.create_task(deliverer.run()),
        asyncio.create_task(repeat(deliverer.report, _REPORT_SECONDS)),
        asyncio.create_task(repeat(lambda: expire_spends(db), _EXPIRE_SECONDS)),
        asyncio.create_task(repeat(lambda: seal_journal(db), _SEAL_SECONDS)),
        asyncio.create_task(repeat(lambda: forget_old(db), _FORGET_SECONDS)),
        *(
            asyncio.create_task(_settle(config, db, vault, mode))
            for mode in MODES
            if config.network(mode) is not None
        ),
    ]
    UP.labels("worker").set(1)
    _log.info("worker_started")
    stopped = asyncio.create_task(stop.wait())
    ended, _ = await asyncio.wait({stopped, *duties}, return_when=asyncio.FIRST_COMPLETED)
    for task in (stopped, *duties):
        task.cancel()
    for task in duties:
        with contextlib.suppress(asyncio.CancelledError):
            if task not in ended:
                await task
    await sender.close()
    await db.close()
    _log.info("worker_stopped")
    for task in ended - {stopped}:
        await task  # a duty that ended by itself raises what went wrong
    check(stopped in ended, "a duty ended by itself")


async def _settle(config: Config, db: Database, vault: Vault, mode: Mode) -> None:
    """All that concerns the chain of one mode."""
    chain = open_chain(config, mode)
    try:
        decimals = await wait_for_network(config, db, chain, mode)
        fee_payer = await ensure_fee_payer(db, vault, mode)
        policies = PolicyCache()
        outside = Outside(config.data_dir / f"signed-{mode}")
        settler = Settler(db, chain, vault, policies, mode, decimals, outside=outside)
        mint = usdc_mint(config, mode)

        async def watch_fee_payer() -> int:
            await ensure_fee_payer_funded(config, chain, mode, fee_payer.address)
            return 0

        reconciler = Reconciler(db, DepositWatcher(db, chain, policies, mode, mint))
        await asyncio.gather(
            settle_forever(settler),
            repeat(settler.report, _REPORT_SECONDS),
            repeat(watch_fee_payer, _FEE_PAYER_SECONDS),
            repeat(reconciler.sweep, config.sweep_seconds),
        )
    finally:
        await chain.close()


async def settle_forever(settler: Settler) -> None:
    """Signing never waits for what is on its way, nor the other way round; and while one round of
    either waits for the chain, another is signed or committed."""
    await asyncio.gather(
        *(
            repeat(duty, _SETTLE_SECONDS)
            for duty in (settler.sign, settler.follow)
            for _ in range(_ROUNDS_AT_ONCE)
        )
    )


async def repeat(duty: Duty, seconds: float) -> None:
    """Again at once while there is work, else after a rest. What is out of reach comes back, and
    what was rolled back is done then."""
    while True:
        try:
            done = await duty()
        except (*OUT_OF_REACH, *ROLLED_BACK, ChainOutOfReach) as problem:
            _log.warning(
                "duty_put_off", duty=getattr(duty, "__qualname__", "?"), problem=repr(problem)
            )
            done = 0
        if not done:
            await asyncio.sleep(seconds)
