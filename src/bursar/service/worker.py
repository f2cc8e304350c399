"""The worker process: everything that happens without a request. Any number may run."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from bursar.backtest.follow import DraftFollower
from bursar.backtest.job import Backtester
from bursar.chain.networks import usdc_mint
from bursar.chain.pin import check_network
from bursar.clock import SystemClock
from bursar.config import MODES, Config, Mode
from bursar.custody.setup import ensure_fee_payer, open_vault
from bursar.custody.vault import Vault
from bursar.db import OUT_OF_REACH, Database
from bursar.errors import check, present
from bursar.heartbeat.lease import Lease
from bursar.heartbeat.model import START
from bursar.ledger.seal import seal_journal
from bursar.metrics import UP
from bursar.policy.cache import PolicyCache
from bursar.purchase.compare import OutflowCheck
from bursar.purchase.follow import Follower
from bursar.purchase.unsigned import end_unsigned
from bursar.service.collector import spare_the_collector
from bursar.service.duty import Duties, Duty
from bursar.service.networks import ensure_fee_payer_funded, open_chain, report_network_cost
from bursar.service.retention import FORGETTING, forget
from bursar.settlement.deposits import DepositWatcher
from bursar.settlement.outside import Outside
from bursar.settlement.reconcile import Reconciler
from bursar.settlement.worker import Settler
from bursar.spend import totals
from bursar.spend.approve import expire_spends
from bursar.spend.model import bounds_of
from bursar.wallet import quarantine
from bursar.webhook.deliver import Deliverer
from bursar.webhook.send import Sender, webhook_targets

_CONNECTIONS: Final = 8
# How often each duty looks for work. Short enough that nobody waits, long enough to cost nothing.
_EXPIRE_SECONDS: Final = 0.5
_SEAL_SECONDS: Final = 5.0
_FOLD_SECONDS: Final = 1.0
_FORGET_SECONDS: Final = 600.0
_BACKTEST_SECONDS: Final = 0.5
_DRAFTS_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 0.1
_FOLLOW_SECONDS: Final = 0.2
_END_SECONDS: Final = 2.0
_COMPARE_SECONDS: Final = 1.0
# Two rounds at once settle a quarter more than one; more would only wait for each other.
_ROUNDS_AT_ONCE: Final = 2
_WATCH_SECONDS: Final = 2.0
_REPORT_SECONDS: Final = 5.0
_FEE_PAYER_SECONDS: Final = 60.0
_START_SECONDS: Final = 1.0
_BLOCK_TIME_SECONDS: Final = 60.0

_log = structlog.get_logger()


async def run_worker(config: Config) -> None:
    """Works until SIGTERM or SIGINT; the database rolls back what is half done. Raises
    CommandFailed when every configured mode leads to a wrong network."""
    dsn = present(config.database_url, "the worker is told its database")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    db = await Database.open_or_fail(dsn, _CONNECTIONS, config.database_timeout_seconds)
    vault = await open_vault(db, config)
    sender = Sender(webhook_targets(config), config.webhooks_timeout_seconds)
    deliverer = Deliverer(
        db,
        vault,
        sender,
        SystemClock(),
        retry_seconds=config.webhooks_retry_seconds,
        timeout_seconds=config.webhooks_timeout_seconds,
        drain_seconds=config.drain_seconds,
    )
    backtester = Backtester(db, bounds_of(config), SystemClock())
    duties = Duties(db, SystemClock())
    modes: list[Mode] = [mode for mode in MODES if config.network(mode) is not None]
    shared = [
        asyncio.create_task(duties.keep(duty))
        for duty in _shared(config, db, deliverer, backtester, modes)
    ]
    shared.append(asyncio.create_task(duties.keep(duties.beating())))
    chains = [asyncio.create_task(_settle(config, db, vault, mode, duties)) for mode in modes]
    spare_the_collector()
    UP.labels("worker").set(1)
    _log.info("worker_started")
    stopped = asyncio.create_task(stop.wait())
    ended = await _until_one_is_vital(stopped, shared, chains)
    for task in (stopped, *shared, *chains):
        task.cancel()
    await asyncio.gather(stopped, *shared, *chains, return_exceptions=True)
    with suppress(*OUT_OF_REACH):
        await backtester.give_back()
    await deliverer.drain()
    await sender.close()
    await db.close()
    _log.info("worker_stopped")
    if ended is not stopped:
        await ended  # raises what went wrong
        check(False, "a duty ended by itself")


def _shared(
    config: Config,
    db: Database,
    deliverer: Deliverer,
    backtester: Backtester,
    modes: Sequence[Mode],
) -> list[Duty]:
    """The duties that concern no chain."""
    following = Lease(db, "drafts", _DRAFTS_SECONDS)
    follower = DraftFollower(db, bounds_of(config))
    return [
        Duty("deliver", deliverer.work, 0),
        Duty("expire", lambda: expire_spends(db), _EXPIRE_SECONDS),
        Duty(
            "end purchases",
            lambda: end_unsigned(db, config.purchases_continue_seconds),
            _END_SECONDS,
        ),
        Duty("seal", lambda: seal_journal(db), _SEAL_SECONDS),
        Duty("backtest", backtester.work, _BACKTEST_SECONDS),
        Duty(
            "follow drafts",
            lambda: following.run(follower.follow, otherwise=follower.forget),
            _DRAFTS_SECONDS,
        ),
        Duty("fold totals", lambda: totals.fold(db), _FOLD_SECONDS),
        *(
            Duty(f"forget {what}", partial(forget, config, db, what), _FORGET_SECONDS)
            for what in FORGETTING
        ),
        Duty("report deliveries", deliverer.report, _REPORT_SECONDS),
        Duty("report set aside", lambda: quarantine.report(db, modes), _REPORT_SECONDS),
    ]


async def _until_one_is_vital(
    stopped: "asyncio.Task[Any]",
    shared: Sequence["asyncio.Task[Any]"],
    chains: Sequence["asyncio.Task[Any]"],
) -> "asyncio.Task[Any]":
    """Waits for a task whose end must end the worker, and returns it. A mode with a wrong network
    does not end the worker as long as another mode runs."""
    running = {stopped, *shared, *chains}
    while True:
        ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            if task not in chains or running.isdisjoint(chains):
                return task
            _log.error("mode_given_up", problem=str(task.exception()))


async def _settle(config: Config, db: Database, vault: Vault, mode: Mode, duties: Duties) -> None:
    """Runs the duties of one mode's chain. Raises CommandFailed on the wrong network."""
    chain = open_chain(config, mode)
    sweeping = Lease(db, f"sweep {mode}", config.sweep_seconds)
    try:
        mint = usdc_mint(config, mode)
        decimals, fee_payer = 0, ""

        async def start() -> int:
            nonlocal decimals, fee_payer
            decimals = (await check_network(db, chain, mode, mint)).decimals
            fee_payer = (await ensure_fee_payer(db, vault, mode)).address
            return 1

        async def watch_fee_payer() -> int:
            await ensure_fee_payer_funded(config, chain, mode, fee_payer)
            await report_network_cost(db, chain, mode, fee_payer)
            return 0

        await duties.achieve(Duty(START, start, _START_SECONDS, mode))
        policies = PolicyCache()
        outside = Outside(config.data_dir / f"signed-{mode}")
        settler = Settler(
            db, chain, vault, policies, mode, decimals, bounds_of(config), outside=outside
        )

        async def watch() -> int:
            """Purchases are signed elsewhere, and not before a failover was noticed."""
            await settler.note_history()
            return 0

        follower = Follower(db, chain, policies, mode, outside)
        comparing = OutflowCheck(db, chain, mode)
        watcher = DepositWatcher(db, chain, policies, mode, mint, config.cold_sweep_seconds)
        reconciler = Reconciler(db, watcher)
        kept = [
            *settling(settler),
            Duty("watch", watch, _WATCH_SECONDS, mode),
            Duty("report payments", settler.report, _REPORT_SECONDS, mode),
            Duty("fee payer", watch_fee_payer, _FEE_PAYER_SECONDS, mode),
            Duty(
                "sweep",
                lambda: sweeping.run(reconciler.sweep, otherwise=reconciler.forget),
                config.sweep_seconds,
                mode,
            ),
            Duty("buy", follower.follow, _FOLLOW_SECONDS, mode, at_once=_ROUNDS_AT_ONCE),
            Duty("report purchases", follower.report, _REPORT_SECONDS, mode),
            Duty("compare outflows", comparing.compare, _COMPARE_SECONDS, mode),
            Duty("block times", reconciler.fill_block_times, _BLOCK_TIME_SECONDS, mode),
        ]
        await asyncio.gather(*(duties.keep(duty) for duty in kept))
    finally:
        with suppress(*OUT_OF_REACH):
            await sweeping.give_up()
        await chain.close()


def settling(settler: Settler) -> list[Duty]:
    """Signing and following are duties of their own, so that neither waits for the other. Each runs
    several rounds at once, so that one can commit while another waits for the chain."""
    return [
        Duty(name, work, _SETTLE_SECONDS, settler.mode, at_once=_ROUNDS_AT_ONCE)
        for name, work in (("sign", settler.sign), ("follow", settler.follow))
    ]
