"""The node as a server: JSON-RPC over HTTP, subscriptions over a websocket, one process.

`run` is what `bursar localnet` calls; `serve` is the same node inside a running event loop.
"""

import asyncio
import ipaddress
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import structlog
from aiohttp import web

from bursar_localnet import base58
from bursar_localnet.chain import Chain, Refused, open_chain
from bursar_localnet.clock import Clock
from bursar_localnet.envelope import (
    Body,
    Call,
    attempt,
    decode,
    no_such_method,
    read_call,
    unreadable,
)
from bursar_localnet.errors import LocalnetFailed
from bursar_localnet.faults import Dropped, Faults, HttpFault
from bursar_localnet.genesis import TEST, Network
from bursar_localnet.methods import METHODS
from bursar_localnet.params import INTERNAL_ERROR, INVALID_REQUEST, Params, RpcError, invalid
from bursar_localnet.slots import Lag
from bursar_localnet.sockets import Sockets
from bursar_localnet.subscriptions import Subscriptions
from bursar_localnet.visitors import guard
from bursar_localnet.whereabouts import note_address

log = structlog.get_logger("bursar_localnet")

# The largest request that nodes accept by default.
MAX_BODY_BYTES: Final = 50 * 1024
_STOP_SECONDS: Final = 1.0
_OF_FORMER_VERSION: Final = (
    "This chain was founded with a test USDC of its own and keeps it. New ones have devnet's, which"
    " stock sellers and clients know: `bursar localnet reset` begins a new chain."
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Websockets are served on `port` and also on `ws_port`. None: on `port` + 1 if it is free,
    where stock clients look. 0: on `port` only."""

    data_dir: Path
    network: Network = TEST
    host: str = "127.0.0.1"
    port: int = 8899
    ws_port: int | None = None
    slot_ms: int = 400
    lag: Lag = field(default_factory=Lag)
    faults: bool = False


async def run(
    settings: Settings, clock: Clock, echo: Callable[[str], None] = lambda _: None
) -> None:
    """Runs until SIGTERM or SIGINT; `echo` prints for a person that it is ready.

    Raises LocalnetFailed when the folder, the port or the disk fails.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(settings, clock) as node:
        echo(banner(settings, node))
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, node.chain.broken)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if node.chain.broken.is_set():
            raise LocalnetFailed(
                "The localnet could not write a transaction it had run, so it stops here. "
                "What it acknowledged is safe; start it again."
            )
        log.info("localnet stopping")


def banner(settings: Settings, node: "Node") -> str:
    kind, former = settings.network.name, node.chain.has_former_token
    lines = [
        "The localnet is running. Press Ctrl-C to stop it.",
        "",
        f"  RPC        http://{settings.host}:{node.port}",
        f"  Websocket  ws://{settings.host}:{node.ws_port}",
        f"  USDC mint  {node.chain.mint} ({kind}{', of a former version' if former else ''})",
        f"  Data       {settings.data_dir}",
    ]
    return "\n".join([*lines, "", _OF_FORMER_VERSION] if former else lines)


@asynccontextmanager
async def serve(settings: Settings, clock: Clock) -> "AsyncGenerator[Node]":
    chain = open_chain(settings.data_dir, settings.network, clock, settings.slot_ms, settings.lag)
    node = Node(settings, chain)
    runner = web.AppRunner(node.app, access_log=None, shutdown_timeout=_STOP_SECONDS)
    try:
        await runner.setup()
        node.port, node.ws_port = await _listen(runner, settings)
        note_address(settings.data_dir, settings.host, node.port)
        if chain.has_former_token:
            log.warning("former_token", mint=str(chain.mint), advice=_OF_FORMER_VERSION)
        ticker = asyncio.create_task(node.subscriptions.tick_while_wanted())
        log.info(
            "localnet ready",
            url=f"http://{settings.host}:{node.port}",
            network=settings.network.name,
            mint=str(chain.mint),
            slot=chain.slots.processed,
        )
        try:
            yield node
        finally:
            ticker.cancel()
    finally:
        await runner.cleanup()
        chain.close()


async def _listen(runner: web.AppRunner, settings: Settings) -> tuple[int, int]:
    """(port, websocket port); for port 0 the one that the system chose."""
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as problem:
        raise LocalnetFailed(
            f"Cannot listen on {settings.host}:{settings.port}: {problem.strerror}."
        ) from None
    port: int = runner.addresses[0][1]
    ws_port = port + 1 if settings.ws_port is None else settings.ws_port
    if ws_port == 0:
        return port, port
    try:
        await web.TCPSite(runner, settings.host, ws_port).start()
    except (OSError, OverflowError):
        if settings.ws_port is not None:
            raise LocalnetFailed(
                f"Cannot listen on {settings.host}:{ws_port} for websockets."
            ) from None
        log.info("websockets only on the main port", taken=ws_port)
        return port, port
    return port, ws_port


class Node:
    def __init__(self, settings: Settings, chain: Chain) -> None:
        self.chain = chain
        self.port = self.ws_port = settings.port
        self.faults = Faults(chain, settings.lag)
        self.subscriptions = Subscriptions(chain, self.faults)
        self._admin: dict[str, Callable[[Params], Any]] = {}
        if settings.faults:
            self._admin = {
                "bursar_faults": self._set_faults,
                "bursar_expireBlockhashes": lambda _: self.faults.expire_blockhashes(),
                "bursar_fork": self._fork,
                "bursar_freeze": lambda params: self._freeze(params, frozen=True),
                "bursar_thaw": lambda params: self._freeze(params, frozen=False),
            }
        sockets = Sockets(chain, self.subscriptions, MAX_BODY_BYTES)
        self.app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[guard(settings.host)]
        )
        self.app.router.add_post("/", self._post)
        self.app.router.add_get("/", sockets.serve)
        self.app.router.add_get("/health", self._health)
        self.app.on_shutdown.append(sockets.close_all)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(
                text="Supplied content type is not allowed. "
                "Content-Type: application/json is required\n"
            )
        raw = await request.read()
        try:
            answer = await self._answer(raw, request.remote)
            # An answer is sent only after everything it may be based on is on disk.
            await self.chain.durable()
        except HttpFault as fault:
            return web.Response(status=fault.status, text="injected fault")
        except Dropped:
            if request.transport is not None:
                request.transport.close()
            return web.Response(status=500)
        body = b"" if answer is None else msgspec.json.encode(answer)
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def _answer(self, raw: bytes, remote: str | None) -> Any:
        try:
            request = decode(raw)
            if request == []:
                raise RpcError(INVALID_REQUEST, "Invalid request")
        except RpcError as error:
            return unreadable(error)
        if not isinstance(request, list):
            return await self._one(request, remote)
        answers = [await self._one(item, remote) for item in cast("list[Any]", request)]
        return [answer for answer in answers if answer is not None] or None

    async def _one(self, request: Any, remote: str | None) -> Body | None:
        try:
            call = read_call(request)
        except RpcError as error:
            return unreadable(error)
        if call.method in self._admin and is_loopback(remote):
            return call.reply(attempt(call, self._admin[call.method]))
        if call.method not in METHODS:
            return call.reply(no_such_method())
        return call.reply(await self.faults.around(call.method, lambda: self._handle(call)))

    def _handle(self, call: Call) -> Body:
        try:
            return attempt(call, lambda params: METHODS[call.method](self.chain, params))
        except Exception:
            if self.chain.broken.is_set():
                raise Dropped from None
            log.exception("localnet bug", method=call.method)
            return {"error": RpcError(INTERNAL_ERROR, "Internal error").body()}

    def _set_faults(self, params: Params) -> Any:
        switches = params.optional(0)
        return self.faults.describe() if switches is None else self.faults.set(switches)

    def _fork(self, params: Params) -> Any:
        try:
            lost = self.chain.fork_away(params.signature(0))
        except KeyError:
            raise invalid("Invalid param: not an unfinalized transaction") from None
        return [base58.encode(signature) for signature in lost]

    def _freeze(self, params: Params, *, frozen: bool) -> str:
        try:
            return base58.encode(self.chain.freeze(params.address(0), frozen=frozen))
        except Refused:
            raise invalid(f"Invalid param: it is {'' if frozen else 'not '}frozen") from None

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")


def is_loopback(remote: str | None) -> bool:
    return remote is not None and ipaddress.ip_address(remote).is_loopback
