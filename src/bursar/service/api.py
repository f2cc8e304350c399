"""The HTTP process: what it is made of, and how it starts and stops."""

import asyncio
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

import structlog

from bursar.access.guard import Guard
from bursar.access.limits import Limiter, ProcessLimiter, Unlimited
from bursar.api.call import Services
from bursar.api.once import Once
from bursar.chain.solana import Solana
from bursar.clock import Clock
from bursar.config import LOCALNET, MODES, Config, Mode
from bursar.custody.setup import open_vault
from bursar.db import Database
from bursar.errors import check, present
from bursar.http.peer import Proxies
from bursar.http.server import Server
from bursar.http.unfinished import Unfinished
from bursar.metrics import UP
from bursar.policy.cache import PolicyCache
from bursar.purchase import store as purchase_store
from bursar.purchase.buy import Buyer
from bursar.purchase.seller import Seller
from bursar.recipient.resolve import Directory
from bursar.service.app import App
from bursar.service.collector import spare_the_collector
from bursar.service.disk import DiskRoom
from bursar.service.funds import TestFunds
from bursar.service.limits import SocketLimiter
from bursar.service.networks import open_chain
from bursar.service.ports import bound_socket
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend import store as spend_store
from bursar.spend.authorise import Authoriser
from bursar.spend.model import bounds_of
from bursar.spend.wait import Waiter

# Connections open at once; an idle one makes room for a new one. Far more than the spends that may
# wait (`MAX_WAITING`), so that spends beyond that are answered 503 at once.
_CONNECTIONS: Final = 4096
# Open files that are not connections.
_OTHER_FILES: Final = 256
# How long closing may take after the drain.
_CLOSE_SECONDS: Final = 5

_log = structlog.get_logger()


async def run_api(
    config: Config, clock: Clock, *, share_port: bool = False, limits_socket: Path | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, then lets running requests end within `drain_seconds`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    warn_if_in_the_open(config)
    api = await Api.start(config, clock, share_port=share_port, limits_socket=limits_socket)
    spare_the_collector()
    stopped = asyncio.create_task(stop.wait())
    ended, _ = await asyncio.wait({stopped, *api.tasks}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    await api.stop()
    # A task that ended by itself is a fault: this process ends, and the supervisor starts a new
    # one.
    for task in ended - {stopped}:
        await task  # raises what went wrong
    check(stopped in ended, "a task of the HTTP process ended by itself")


def warn_if_in_the_open(config: Config) -> None:
    if config.in_the_open:
        _log.warning(
            "listening_without_tls",
            host=config.host,
            advice="keys cross the network as plain text: put a proxy that ends TLS in front and"
            " set BURSAR_TLS_IN_FRONT=on, or listen on 127.0.0.1",
        )


class Api:
    """A running HTTP service: its server, its database pool and its background tasks."""

    def __init__(
        self,
        port: int,
        config: Config,
        db: Database,
        app: App,
        server: Server,
        limiter: Limiter,
        chains: Sequence[Solana],
        buyer: Buyer,
    ) -> None:
        self.port = port
        self.tasks: list[asyncio.Task[None]] = []
        self._config = config
        self._db = db
        self._app = app
        self._server = server
        self._limiter = limiter
        self._chains = chains
        self._buyer = buyer

    @classmethod
    async def start(
        cls,
        config: Config,
        clock: Clock,
        *,
        share_port: bool = False,
        limits_socket: Path | None = None,
    ) -> Self:
        """`limits_socket`: the socket of the process that counts the rate limits, if this one does
        not."""
        db = await Database.open_or_fail(
            present(config.database_url, "the api process is told its database"),
            config.database_connections,
            config.database_timeout_seconds,
        )
        guard = Guard(db, clock)
        limiter = _limiter(config, clock, limits_socket)
        policies, directory = PolicyCache(), Directory()
        chains: dict[Mode, Solana] = {
            mode: open_chain(config, mode) for mode in MODES if config.network(mode) is not None
        }
        funds = None
        if config.network("test") == LOCALNET:
            funds = TestFunds(config, db, policies, chains["test"])
        vault = await open_vault(db, config)
        buyer = Buyer(config, clock, db, vault, policies, directory, chains, Seller(config))
        services = Services(
            config=config,
            clock=clock,
            db=db,
            guard=guard,
            limiter=limiter,
            vault=vault,
            policies=policies,
            directory=directory,
            authoriser=Authoriser(
                db,
                policies,
                directory,
                bounds_of(config),
                approval_seconds=config.approval_seconds,
            ),
            waiter=Waiter(db, spend_store.finished),
            purchase_waiter=Waiter(db, purchase_store.no_longer_open),
            buyer=buyer,
            chains=chains,
            test_funds=funds,
            once=Once(db),
            has_room=_disk_room(config, clock),
        )
        proxies = Proxies(config.trusted_proxies)
        unfinished = Unfinished(config.unfinished_requests, proxies, clock)
        app = App(services, proxies, unfinished)
        server = Server(app, unfinished, clock, _most_connections())
        bound = bound_socket(config.host, config.port, shared=share_port)
        port = bound.getsockname()[1]
        await server.listen(bound)
        api = cls(port, config, db, app, server, limiter, list(chains.values()), buyer)
        api.tasks = [
            asyncio.create_task(server.look_after()),
            asyncio.create_task(guard.recheck_forever()),
        ]
        UP.labels("api").set(1)
        _log.info("api_started", host=config.host, port=port)
        return api

    async def stop(self) -> None:
        """Accepts no new connections, lets running requests end within the drain, then closes
        everything."""
        self._server.stop()
        if not await self._server.drained(self._config.drain_seconds):
            _log.warning("requests_cut", after_seconds=self._config.drain_seconds)
        await self._app.close()
        await self._server.close(_CLOSE_SECONDS)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self._app.flush()
        await self._buyer.close()
        for chain in self._chains:
            await chain.close()
        await self._limiter.close()
        await self._db.close()
        _log.info("api_stopped")


def _most_connections() -> int:
    """The number of connections that the limit on open files allows; raises that limit as far as
    possible."""
    wanted = _CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if most > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        if soft < wanted:
            _log.warning("few_open_files", limit=soft, advice=f"allow {wanted} with ulimit -n")
            return max(soft - _OTHER_FILES, soft // 2)
    return _CONNECTIONS


def _disk_room(config: Config, clock: Clock) -> Callable[[], bool]:
    """Only the embedded database's disk is known; for any other database there is always room."""
    embedded = EmbeddedPostgres(config.data_dir)
    if embedded.cluster_dir.is_dir() and config.database_url == embedded.dsn:
        return DiskRoom(config.data_dir, config.disk_reserve_mib, clock)
    return lambda: True


def _limiter(config: Config, clock: Clock, limits_socket: Path | None) -> Limiter:
    if not config.rate_limits:
        _log.warning("rate_limits_off", advice="for benchmarks only; unset BURSAR_RATE_LIMITS")
        return Unlimited()
    if config.redis_url is not None:
        # Imported only if it is used: it takes a tenth of this process's start.
        from bursar.access.shared_limits import SharedLimiter

        return SharedLimiter.open(config.redis_url)
    if limits_socket is not None:
        return SocketLimiter(limits_socket)
    return ProcessLimiter(clock)
