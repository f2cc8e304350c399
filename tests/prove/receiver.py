"""Receives webhooks, checks each signature, and remembers what it was told of."""

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from bursar.webhooks import InvalidSignature, verify
from tests.prove.wires import Wire

# Nodes whose clocks are set wrong sign with the wrong time; the receiver does not mind here.
TOLERANCE_SECONDS = 100_000


@dataclass
class Receiver:
    port: int = 0
    wire: Wire | None = None
    # By the tenant in the path.
    secrets: dict[str, str] = field(default_factory=dict)
    # Of each tenant: how often each event came, and for which object.
    events: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    told: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    forged: int = 0

    def url(self, tenant: str) -> str:
        assert self.wire is not None
        return f"http://127.0.0.1:{self.wire.port}/{tenant}"

    async def receive(self, request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        body = await request.read()
        secret = self.secrets.get(tenant)
        if secret is None:
            # Registered, and the answer that told the secret is still on its way.
            return web.Response(status=503)
        try:
            event = verify(body, request.headers["service-signature"], secret, TOLERANCE_SECONDS)
        except InvalidSignature:
            self.forged += 1
            return web.Response(status=400)
        self.events[tenant][event["id"]] += 1
        data = event["data"]
        self.told[tenant].add((event["type"], data.get("id") or data["agentId"]))
        return web.Response()

    @property
    def deliveries(self) -> int:
        return sum(counts.total() for counts in self.events.values())

    @property
    def repeated(self) -> int:
        return sum(counts.total() - len(counts) for counts in self.events.values())


@asynccontextmanager
async def running_receiver() -> AsyncGenerator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=1 << 20)
    app.router.add_post("/{tenant}", receiver.receive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.port = runner.addresses[0][1]
        yield receiver
    finally:
        await runner.cleanup()
