"""Answers every request: passes /v1 and /mcp to the dispatcher and /console to the console, and
answers the service's own pages such as /healthz."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from bursar.api import openapi
from bursar.api.call import Services
from bursar.api.routes import ROUTES
from bursar.chain.port import Chain, ChainOutOfReach
from bursar.config import Mode
from bursar.console.app import Console
from bursar.db import OUT_OF_REACH
from bursar.errors import ApiError, unavailable
from bursar.heartbeat import store as heartbeat
from bursar.heartbeat.model import health
from bursar.http.answer import Answers
from bursar.http.dispatch import Dispatcher
from bursar.http.docs import front_page, reference_page, script, style_sheet
from bursar.http.exchange import Exchange
from bursar.http.peer import Proxies
from bursar.http.request import request_id
from bursar.http.router import PAGE_METHODS, Router
from bursar.http.unfinished import CROWDED_SECONDS, Unfinished
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
    def __init__(self, services: Services, proxies: Proxies, unfinished: Unfinished) -> None:
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
        self._answers = Answers(services.clock, logs=logs)
        self._dispatch = Dispatcher(routes, self._pages, services, self._answers)
        self._console = Console(ROUTES, services, self._answers, proxies)
        self._chain_answers: dict[Mode, tuple[int, str | None]] = {}
        self._unfinished = unfinished

    async def __call__(self, exchange: Exchange) -> None:
        page = self._pages.get(exchange.path)
        if page is not None and exchange.method in PAGE_METHODS:
            _send_page(await page(), exchange)
        elif exchange.is_complete:
            await self._surface(exchange.path)(exchange)
        else:
            is_crowded = self._unfinished.watch(exchange)
            try:
                if is_crowded and not await exchange.begins(CROWDED_SECONDS):
                    _refuse(exchange)
                else:
                    await self._surface(exchange.path)(exchange)
            finally:
                self._unfinished.forget(exchange)

    def _surface(self, path: str) -> Console | Dispatcher:
        return (
            self._console if path.startswith("/console/") or path == "/console" else self._dispatch
        )

    async def close(self) -> None:
        await self._mcp.close()

    def flush(self) -> None:
        """Counts and logs the requests that were answered just now."""
        self._answers.flush()

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
        self._answers.flush()
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


def _send_page(body: Body, exchange: Exchange) -> None:
    status, content_type, content = body
    headers = (
        (b"content-type", content_type),
        (b"x-request-id", request_id(exchange.headers).encode("ascii")),
        *_SECURITY_HEADERS,
    )
    exchange.send(status, headers, content)


def _refuse(exchange: Exchange) -> None:
    """Answers without reading the body, which may never come."""
    problem = unavailable("Too many requests of yours are unfinished: send their bodies first.")
    name = request_id(exchange.headers)
    headers = (
        (b"content-type", _JSON),
        (b"x-request-id", name.encode("ascii")),
        (b"retry-after", b"1"),
    )
    exchange.send(problem.code.status, headers, msgspec.json.encode(problem.body(name)))
