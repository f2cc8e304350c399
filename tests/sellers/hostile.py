"""Sellers that take a payment and then do what no seller should, each on a real chain.

`TRICKS` names them. A trick has three parts: what the seller offers, how it settles a payment that
it was given, and how it answers whoever paid.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from aiohttp import web
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from bursar_localnet.genesis import LIVE_MINT, TEST_MINT
from bursar_shop.facilitator import Facilitator, Price
from bursar_shop.rpc import Node
from bursar_shop.shop import NETWORK, encode
from tests.localnet.support import Rpc
from tests.sellers.chain import Seller, new_payee

PRICE_MICROS: Final = 1_000
GOODS: Final = {"weather": "fair"}
_LATE_SECONDS: Final = 60.0
_ENDLESS_BYTES: Final = 256 * 1024 * 1024
_CHUNK: Final = b"x" * 65_536

Settling = Literal["at once", "never", "twice", "late"]
Answering = Literal[
    "goods", "503", "hang", "reset", "redirect", "402", "endless", "huge header", "denies"
]


@dataclass(frozen=True, slots=True)
class Trick:
    """`answers` are for the first payment that a buyer presents, the second and so on; the last one
    also for all that come later. `changes` says what of the offer differs in a buyer's n-th 402."""

    answers: Sequence[Answering] = ("goods",)
    settling: Settling = "at once"
    changes: Callable[["HostileSeller", int], dict[str, Any]] = lambda _seller, _number: {}


TRICKS: Final[dict[str, Trick]] = {
    "honest": Trick(),
    "503 once": Trick(("503", "goods")),
    "503 twice": Trick(("503", "503", "goods")),
    "503 always": Trick(("503",)),
    "hang": Trick(("hang",)),
    "reset": Trick(("reset",)),
    "redirect": Trick(("redirect",)),
    "other payee": Trick(changes=lambda seller, number: {"payTo": seller.payees[number % 2]}),
    "higher price": Trick(
        changes=lambda seller, number: {"amount": str(seller.price_micros * (number + 1))}
    ),
    "other fee payer": Trick(("503", "goods"), changes=lambda seller, _: seller.new_fee_payer()),
    "settles late": Trick(("503",), "late"),
    "settles twice": Trick(settling="twice"),
    "denies": Trick(("denies",)),
    "pretends": Trick(settling="never"),
    "endless body": Trick(("endless",)),
    "huge header": Trick(("huge header",)),
    "402 for ever": Trick(("402",)),
    "402 for ever, unsettled": Trick(("402",), "never"),
    "other asset": Trick(changes=lambda _seller, _number: {"asset": LIVE_MINT}),
    "other network": Trick(
        changes=lambda _seller, _number: {"network": "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"}
    ),
}


@dataclass
class HostileSeller:
    """`asked` counts the requests without a payment, `presented` has those with one, in order.

    Who asks for another path or query is another buyer to it.
    """

    trick: Trick
    node: Node
    payees: tuple[str, str]
    fee_payers: list[Keypair]
    price_micros: int = PRICE_MICROS
    late_seconds: float = _LATE_SECONDS
    url: str = ""
    asked: int = 0
    presented: list[str] = field(default_factory=list[str])
    settled: list[str] = field(default_factory=list[str])
    _asked_by: Counter[str] = field(default_factory=Counter[str])
    _presented_by: Counter[str] = field(default_factory=Counter[str])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def seller(self) -> Seller:
        return Seller(self.url, self.price_micros, self.payees[0], "x402")

    def new_fee_payer(self) -> dict[str, Any]:
        """Another one of those with money, in turn."""
        self.fee_payers.append(self.fee_payers.pop(0))
        return {"extra": {"feePayer": str(self.fee_payers[0].pubkey())}}

    async def late(self) -> None:
        """Returns when all that was to be settled later is."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Ends what hangs, and what was to be settled later."""
        self._closing.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        header = request.headers.get("PAYMENT-SIGNATURE")
        if header is None:
            return self._asks(request)
        payment = msgspec.json.decode(base64.b64decode(header))
        self.presented.append(header)
        self._presented_by[request.path_qs] += 1
        claimed = await self._settle(payment["accepted"], payment["payload"]["transaction"])
        answers = self.trick.answers
        answering = answers[min(self._presented_by[request.path_qs], len(answers)) - 1]
        return await self._answer(request, answering, claimed)

    def _asks(self, request: web.Request) -> web.Response:
        offer: dict[str, Any] = {
            "scheme": "exact",
            "network": NETWORK,
            "asset": TEST_MINT,
            "amount": str(self.price_micros),
            "payTo": self.payees[0],
            "maxTimeoutSeconds": 60,
            "extra": {"feePayer": str(self.fee_payers[0].pubkey())},
        }
        offer |= self.trick.changes(self, self._asked_by[request.path_qs])
        self._asked_by[request.path_qs] += 1
        self.asked += 1
        required = {"x402Version": 2, "resource": {"url": str(request.url)}, "accepts": [offer]}
        return web.json_response({}, status=402, headers={"PAYMENT-REQUIRED": encode(required)})

    async def _settle(self, accepted: dict[str, Any], payment: str) -> dict[str, Any]:
        """What the seller will claim; the truth of it is up to the trick."""
        message = VersionedTransaction.from_bytes(base64.b64decode(payment)).message
        payer = next(key for key in self.fee_payers if key.pubkey() == message.account_keys[0])
        facilitator = Facilitator(self.node, payer)
        price = Price(accepted["asset"], accepted["payTo"], int(accepted["amount"]))
        signature = "5" * 88

        async def settle(after: float = 0.0) -> None:
            nonlocal signature
            await asyncio.sleep(after)
            settled = await facilitator.settle(price, payment)
            if settled.problem is None:
                signature = settled.signature
                self.settled.append(signature)

        match self.trick.settling:
            case "at once":
                await settle()
            case "twice":
                await asyncio.gather(settle(), settle())
                await settle()
            case "late":
                task = asyncio.create_task(settle(self.late_seconds))
                self._tasks.add(task)
            case "never":
                pass
        return {"success": True, "transaction": signature, "network": NETWORK}

    async def _answer(
        self, request: web.Request, answering: Answering, claimed: dict[str, Any]
    ) -> web.StreamResponse:
        match answering:
            case "503":
                return web.json_response({"error": "try again"}, status=503)
            case "hang":
                await self._closing.wait()
                return web.Response(status=500)
            case "reset":
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=500)
            case "redirect":
                return web.Response(status=307, headers={"Location": "/weather?elsewhere"})
            case "402":
                return self._asks(request)
            case "denies":
                denied = claimed | {"success": False, "errorReason": "transaction_failed"}
                return web.json_response({}, status=402, headers={
                    "PAYMENT-RESPONSE": encode(denied)})  # fmt: skip
            case "huge header":
                said = {"PAYMENT-RESPONSE": encode(claimed), "X-Huge": "x" * 1024 * 1024}
                return web.json_response(GOODS, headers=said)
            case "endless":
                return await self._endless(request)
            case "goods":
                said = {"PAYMENT-RESPONSE": encode(claimed)}
                return web.json_response(GOODS, headers=said)

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(_ENDLESS_BYTES // len(_CHUNK)):
                await response.write(_CHUNK)
        return response


@asynccontextmanager
async def hostile_seller(
    chain: Rpc, trick: Trick, *, price_micros: int = PRICE_MICROS, late_seconds: float = 60.0
) -> AsyncGenerator[HostileSeller]:
    """Sells at loopback until the end of the block, with money for fees on this localnet."""
    seller = HostileSeller(
        trick,
        Node(chain.session, chain.url),
        (await new_payee(chain), await new_payee(chain)),
        [await chain.wallet() for _ in range(3)],
        price_micros,
        late_seconds,
    )
    app = web.Application()
    app.router.add_route("*", "/weather", seller.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    seller.url = f"http://127.0.0.1:{runner.addresses[0][1]}/weather"
    try:
        yield seller
    finally:
        await seller.close()
        await runner.cleanup()
