"""Another address of a node: passes requests on, and does to the answers what a test wants."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

# Gets the method and the node's answer; returns what to answer instead, bytes as they are.
Twist = Callable[[str, dict[str, Any]], Any]


@dataclass
class Proxy:
    url: str
    methods: list[str] = field(default_factory=list[str])
    twist: Twist | None = None
    status: int = 200
    closed: bool = False

    def result(self, method: str, value: Any) -> None:
        """From now on that method's result is this, whatever the node says."""
        self.twist = lambda asked, answer: (
            {**answer, "result": value} if asked == method else answer
        )


@asynccontextmanager
async def running_proxy(upstream: str) -> AsyncGenerator[Proxy]:
    proxy = Proxy("")

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        proxy.methods.append(asked["method"])
        async with session.post(upstream, json=asked) as response:
            answer = await response.json()
        if proxy.closed:
            assert request.transport is not None
            request.transport.close()
        body: Any = answer if proxy.twist is None else proxy.twist(asked["method"], answer)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=proxy.status, body=raw, content_type="application/json")

    app = web.Application()
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield proxy
        finally:
            await runner.cleanup()
