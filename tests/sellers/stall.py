"""A seller that is honest, by either protocol, and whose terms a test can change at any time."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from solders.keypair import Keypair

from bursar_localnet.genesis import TEST_MINT
from bursar_shop.facilitator import Facilitator, Price, Settled, Unacceptable
from bursar_shop.rpc import Node
from bursar_shop.shop import encode
from tests.localnet.support import Rpc
from tests.processes import until
from tests.purchase.support import accepted, challenge, in_base64url, request, required
from tests.sellers.chain import new_payee

GOODS = "fair weather"
# What the seller gives away only to those who paid.
PRIVATE = "X-Private"


@dataclass
class Stall:
    """`asked` counts the requests without a payment, `presented` has the headers that paid, in
    order. While `open` is not set, requests wait; while `paying` is not set, those that pay do."""

    node: Node
    fee_payer: Keypair
    payee: str
    price_micros: int = 1_000
    protocols: tuple[str, ...] = ("x402",)
    # What it answers without a payment: 402, or the goods for nothing.
    status: int = 402
    url: str = ""
    asked: list[web.Request] = field(default_factory=list[web.Request])
    # How many requests of any kind have come.
    arrived: int = 0
    presented: list[str] = field(default_factory=list[str])
    settled: list[Settled] = field(default_factory=list[Settled])
    goods: str | bytes = GOODS
    # Where it sends everybody.
    location: str | None = None
    # Where it is paid instead: at each of these in turn, one for each that asks.
    payees: list[str] = field(default_factory=list[str])
    # What its offers say otherwise.
    change: dict[str, Any] = field(default_factory=dict[str, Any])
    # Whether it settles what it is paid with.
    settles: bool = True
    # How it answers those who paid, in turn; 200 once there is none left.
    stumbles: list[int] = field(default_factory=list[int])
    open: asyncio.Event = field(default_factory=asyncio.Event)
    paying: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def origin(self) -> str:
        return self.url.rpartition("/")[0]

    def required(self) -> dict[str, str]:
        """The headers of its 402."""
        payer = str(self.fee_payer.pubkey())
        if self.payees:
            self.payee = self.payees[len(self.asked) % len(self.payees)]
        amount = str(self.price_micros)
        headers: dict[str, str] = {}
        if "x402" in self.protocols:
            offer = accepted(amount=amount, payTo=self.payee, extra={"feePayer": payer})
            offer |= {name: value for name, value in self.change.items() if name in offer}
            headers["PAYMENT-REQUIRED"] = encode(required(offer))
        if "mpp" in self.protocols:
            asked = request(amount=amount, recipient=self.payee, details={"feePayerKey": payer})
            asked |= {name: value for name, value in self.change.items() if name in asked}
            headers["WWW-Authenticate"] = challenge(asked)
        return headers

    async def until_asked(self, times: int = 1) -> None:
        """Returns while they may still be waiting for an answer."""

        async def asked() -> bool:
            return self.arrived >= times

        await until(asked, seconds=60)

    async def until_presented(self, times: int = 1) -> None:
        async def presented() -> bool:
            return len(self.presented) >= times

        await until(presented, seconds=60)

    async def serve(self, asking: web.Request) -> web.StreamResponse:
        self.arrived += 1
        await self.open.wait()
        paying = asking.headers.get("PAYMENT-SIGNATURE") or asking.headers.get("Authorization", "")
        if not paying:
            self.asked.append(asking)
            headers = self.required() if self.status == 402 else {}
            if self.location is not None:
                headers["Location"] = self.location
            return self._answer(self.status, headers)
        self.presented.append(paying)
        await self.paying.wait()
        is_mpp = paying.startswith("Payment ")
        settled = await self.settle(paying.removeprefix("Payment ")) if self.settles else None
        if settled is None or settled.problem is not None:
            return web.Response(status=402, text="not paid", headers=self.required())
        said = {"status": "success", "reference": settled.signature} if is_mpp else {
            "success": True, "transaction": settled.signature}  # fmt: skip
        claim = ("Payment-Receipt", in_base64url(said)) if is_mpp else (
            "PAYMENT-RESPONSE", encode(said))  # fmt: skip
        status = self.stumbles.pop(0) if self.stumbles else 200
        return self._answer(status, {claim[0]: claim[1], PRIVATE: "for the buyer"})

    def _answer(self, status: int, headers: dict[str, str]) -> web.Response:
        body = self.goods if isinstance(self.goods, bytes) else self.goods.encode()
        return web.Response(status=status, body=body, headers=headers)

    async def settle(self, header: str) -> Settled | None:
        payment = msgspec.json.decode(base64.b64decode(header + "=" * (-len(header) % 4), b"-_"))
        payee = payment["accepted"]["payTo"] if self.payees else self.payee
        price = Price(TEST_MINT, payee, self.price_micros)
        try:
            made = await Facilitator(self.node, self.fee_payer).settle(
                price, payment["payload"]["transaction"]
            )
        except Unacceptable:
            return None
        self.settled.append(made)
        return made


@asynccontextmanager
async def open_stall(chain: Rpc, **given: Any) -> AsyncGenerator[Stall]:
    """Sells at loopback until the end of the block; its path ends with `/weather`."""
    stall = Stall(Node(chain.session, chain.url), await chain.wallet(), await new_payee(chain))
    stall.open.set()
    stall.paying.set()
    for name, value in given.items():
        setattr(stall, name, value)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stall.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stall.url = f"http://127.0.0.1:{runner.addresses[0][1]}/weather"
    try:
        yield stall
    finally:
        stall.open.set()
        stall.paying.set()
        await runner.cleanup()
