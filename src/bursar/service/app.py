"""The ASGI application: passes /v1 and /mcp to the dispatcher and /console to the console, and
answers the service's own pages such as /healthz."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from bursar.api import openapi
from bursar.api.call import Services
from bursar.api.routes import ROUTES
from bursar.chain.port import Chain, ChainOutOfReach
from bursar.config import Mode
from bursar.console.app import Console
from bursar.db import OUT_OF_REACH
from bursar.errors import ApiError
from bursar.heartbeat import store as heartbeat
from bursar.heartbeat.model import health
from bursar.http.answer import AnswerSender
from bursar.http.dispatch import Dispatcher
from bursar.http.docs import front_page, reference_page, script, style_sheet
from bursar.http.peer import Proxies
from bursar.http.request import AsgiScope, Receive, Send, has_body, request_id
from bursar.http.router import PAGE_METHODS, Router
from bursar.http.unfinished import Unfinished, refuse
from bursar.mcp.endpoint import Endpoint
from bursar.metrics import exposition
from bursar.migrations import migrate
from bursar.wallet import store as wallet_store

_READY_SECONDS: Final = 2.0
_CHAIN_ANSWER_NS: Final = 1_000_000_000
_JSON: Final = b"application/json"
_SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        # The script of /docs sends what a person tries there, to this service only.
        (
            b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
            b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
)

Body = tuple[int, bytes, bytes]


class App:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._pages: dict[str, Callable[[], Awaitable[Body]]] = {
            "/healthz": self._health,
            "/readyz": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/": self._front,
            "/docs": self._docs,
            "/docs/style.css": self._docs_style,
            "/docs/reference.js": self._docs_script,
        }
        self._mcp = Endpoint(Router(ROUTES, ()))
        routes = (*ROUTES, self._mcp.route)
        logs = services.config.log_level in ("debug", "info")
        self._sender = AnswerSender(services.clock, logs=logs)
        self._dispatch = Dispatcher(routes, self._pages, services, self._sender)
        proxies = Proxies(services.config.trusted_proxies)
        self._console = Console(ROUTES, services, self._sender, proxies)
        self._chain_answers: dict[Mode, tuple[int, str | None]] = {}
        self._unfinished = Unfinished(services.config.unfinished_requests, proxies, services.clock)
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self._running += 1
        self._idle.clear()
        # If a header is sent twice, the last one counts.
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            page = self._pages.get(scope["path"])
            if page is not None and scope["method"] in PAGE_METHODS:
                await _send_page(await page(), headers, send)
            elif not has_body(headers):
                await self._surface(scope)(scope, headers, receive, send)
            else:
                watched = self._unfinished.watch(scope, headers, receive)
                try:
                    if watched.crowded and not await watched.begins():
                        await refuse(headers, send)
                    else:
                        await self._surface(scope)(scope, headers, watched.receive, send)
                finally:
                    watched.end()
        finally:
            self._running -= 1
            if self._running == 0:
                self._idle.set()

    def _surface(self, scope: AsgiScope) -> Console | Dispatcher:
        path: str = scope["path"]
        return (
            self._console if path.startswith("/console/") or path == "/console" else self._dispatch
        )

    async def end_late_requests(self) -> None:
        """Gives up on requests whose body takes too long. Runs until it is cancelled."""
        await self._unfinished.end_late_ones()

    async def drained(self, seconds: float) -> bool:
        """Waits until no request is running; False when some still are after that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        await self._mcp.close()

    def flush(self) -> None:
        """Counts and logs the requests that were answered just now."""
        self._sender.flush()

    async def _health(self) -> Body:
        return 200, _JSON, b'{"status":"ok"}'

    async def _ready(self) -> Body:
        checks = {
            "database": await self._database_problem(),
            "rate limits": None if await self._services.limiter.reachable() else "out of reach",
        }
        for mode, chain in self._services.chains.items():
            checks[f"{mode} network"] = await self._chain_problem(mode, chain)
        problems = {name: problem for name, problem in checks.items() if problem}
        body = {
            "status": "unavailable" if problems else "ok",
            "checks": {name: problem or "ok" for name, problem in checks.items()},
            # Reported, but never a reason for 503: without a worker the API still answers, and a
            # load balancer that removed every node would turn a delay into an outage.
            "workers": {} if checks["database"] else await self._workers(),
        }
        return 503 if problems else 200, _JSON, msgspec.json.encode(body)

    async def _database_problem(self) -> str | None:
        try:
            async with asyncio.timeout(_READY_SECONDS), self._services.db.connection() as tx:
                return await migrate.misfit(tx)
        except (*OUT_OF_REACH, ApiError):
            return "out of reach"

    async def _workers(self) -> dict[str, str]:
        """By mode, and `all` for duties of no chain: `ok`, or what is wrong in a few words."""
        try:
            async with asyncio.timeout(_READY_SECONDS), self._services.db.connection() as tx:
                beats = await heartbeat.beats(tx)
                set_aside = await wallet_store.count_set_aside(tx)
        except OUT_OF_REACH:
            return {}
        told: dict[str, str] = {}
        for part in (*self._services.chains, "all"):
            told[part] = health([beat for beat in beats if beat.mode == part])
            if set_aside.get(part):
                told[part] += f"; wallets set aside: {set_aside[part]}"
        return told

    async def _chain_problem(self, mode: Mode, chain: Chain) -> str | None:
        """Asks the nodes at most once a second, however often this page is requested: they are not
        ours."""
        now = self._services.clock.monotonic_ns()
        asked, problem = self._chain_answers.get(mode, (0, None))
        if now - asked > _CHAIN_ANSWER_NS:
            try:
                async with asyncio.timeout(_READY_SECONDS):
                    await chain.finalized()
                problem = None
            except (ChainOutOfReach, TimeoutError):
                problem = "out of reach"
            self._chain_answers[mode] = (now, problem)
        return problem

    async def _metrics(self) -> Body:
        self._sender.flush()
        # In a thread: it reads the files of all processes.
        page = await asyncio.to_thread(exposition)
        return 200, b"text/plain; version=0.0.4; charset=utf-8", page

    async def _openapi(self) -> Body:
        return 200, _JSON, openapi.encoded()

    async def _front(self) -> Body:
        return 200, b"text/html; charset=utf-8", front_page()

    async def _docs(self) -> Body:
        return 200, b"text/html; charset=utf-8", reference_page()

    async def _docs_style(self) -> Body:
        return 200, b"text/css; charset=utf-8", style_sheet()

    async def _docs_script(self) -> Body:
        return 200, b"text/javascript; charset=utf-8", script()


async def _send_page(body: Body, asked: Mapping[bytes, bytes], send: Send) -> None:
    status, content_type, content = body
    headers = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(content)),
        (b"x-request-id", request_id(asked).encode("ascii")),
        *_SECURITY_HEADERS,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
