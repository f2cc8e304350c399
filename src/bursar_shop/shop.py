"""A paid weather report, and a dearer forecast. Without a payment it answers 402 and says what it
costs; with one it settles first and answers then."""

import base64
import binascii
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, Final, cast

import aiohttp
import msgspec
from aiohttp import web
from solders.keypair import Keypair

from bursar_localnet.genesis import TEST_MINT
from bursar_shop.facilitator import Facilitator, Price, Unacceptable
from bursar_shop.rpc import Node, NodeRefused

PRICE_MICROS: Final = 1_000
NETWORK: Final = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
FORECAST_MICROS: Final = 50_000
_PATH: Final = "/weather"
_REPORT: Final = {"place": "Lisbon", "sky": "clear", "celsius": 21}
_FORECAST_PATH: Final = "/forecast"
_FORECAST: Final = {"place": "Lisbon", "days": [{"sky": "clear"}, {"sky": "rain"}]}
_SOL: Final = 1_000_000_000
_TIMEOUT_SECONDS: Final = 60


class ShopFailed(Exception):
    """It cannot open; the message says why."""


@asynccontextmanager
async def open_shop(rpc: str, host: str, port: int) -> AsyncGenerator["Shop"]:
    """Sells until the end of the block. Raises ShopFailed."""
    async with aiohttp.ClientSession(trust_env=False) as session:
        shop = await _found(Node(session, rpc), rpc)
        runner = web.AppRunner(shop.app, access_log=None)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as problem:
                raise ShopFailed(f"Cannot listen on {host}:{port}: {problem.strerror}.") from None
            shop.url = f"http://{host}:{runner.addresses[0][1]}{_PATH}"
            yield shop
        finally:
            await runner.cleanup()


async def _found(node: Node, rpc: str) -> "Shop":
    """A shop with money for fees, and an account that it can be paid into. On the same chain it has
    the same addresses again, for buyers remember whom they paid."""
    try:
        genesis: str = await node.call("getGenesisHash")
        payee, payer = (
            Keypair.from_seed(sha256(f"{role} of the shop on {genesis}".encode()).digest())
            for role in ("payee", "fee payer")
        )
        await node.call("requestAirdrop", str(payer.pubkey()), _SOL)
        await node.call("bursar_faucet", str(payee.pubkey()), 1)
        if await node.call("getTokenSupply", TEST_MINT) is None:
            raise ShopFailed(f"{rpc} has no test USDC.")
    except (aiohttp.ClientError, TimeoutError, ValueError):
        raise ShopFailed(f"No localnet answers at {rpc}. Start one with: bursar localnet") from None
    except NodeRefused as refusal:
        raise ShopFailed(
            f"{rpc} is no localnet that a shop can sell on ({refusal}). One that an earlier version"
            " founded has another token: bursar localnet reset"
        ) from None
    return Shop(Facilitator(node, payer), Price(TEST_MINT, str(payee.pubkey()), PRICE_MICROS))


@dataclass
class Shop:
    facilitator: Facilitator
    price: Price
    url: str = ""

    @property
    def app(self) -> web.Application:
        app = web.Application(client_max_size=1024)
        forecast = replace(self.price, micros=FORECAST_MICROS)
        app.router.add_get(_PATH, partial(self._sell, price=self.price, goods=_REPORT))
        app.router.add_get(_FORECAST_PATH, partial(self._sell, price=forecast, goods=_FORECAST))
        return app

    @property
    def accepted(self) -> dict[str, Any]:
        return self._accepted(self.price)

    def _accepted(self, price: Price) -> dict[str, Any]:
        return {
            "scheme": "exact",
            "network": NETWORK,
            "asset": price.mint,
            "amount": str(price.micros),
            "payTo": price.payee,
            "maxTimeoutSeconds": _TIMEOUT_SECONDS,
            "extra": {"feePayer": self.facilitator.address},
        }

    async def _sell(
        self, request: web.Request, *, price: Price, goods: dict[str, Any]
    ) -> web.Response:
        header = request.headers.get("PAYMENT-SIGNATURE")
        if header is None:
            return self._asks(request, price, "PAYMENT-SIGNATURE header is required")
        try:
            settled = await self.facilitator.settle(price, self._payment(header, price))
        except Unacceptable as problem:
            return self._asks(request, price, str(problem))
        except (aiohttp.ClientError, TimeoutError):
            # It may have landed: the same payment can be presented again.
            return web.json_response({"error": "the chain does not answer"}, status=503)
        said = {
            "success": settled.problem is None,
            "transaction": settled.signature,
            "network": NETWORK,
            "payer": settled.payer,
        }
        if settled.problem is not None:
            reason = {"errorReason": settled.problem}
            return self._asks(request, price, settled.problem, said | reason)
        return web.json_response(goods, headers={"PAYMENT-RESPONSE": encode(said)})

    def _payment(self, header: str, price: Price) -> str:
        """The transaction that the header carries, if it is for what is sold here."""
        try:
            made = msgspec.json.decode(base64.b64decode(header, validate=True))
        except (binascii.Error, ValueError):
            raise Unacceptable("PAYMENT-SIGNATURE is not base64 of JSON") from None
        if not isinstance(made, dict):
            raise Unacceptable("PAYMENT-SIGNATURE is not an object")
        payment = cast("dict[str, Any]", made)
        if payment.get("x402Version") != 2 or payment.get("accepted") != self._accepted(price):
            raise Unacceptable("it pays for other terms than these")
        match payment.get("payload"):
            case {"transaction": str(transaction)}:
                return transaction
            case _:
                raise Unacceptable("it has no transaction")

    def _asks(
        self, request: web.Request, price: Price, error: str, said: dict[str, Any] | None = None
    ) -> web.Response:
        required = {
            "x402Version": 2,
            "error": error,
            "resource": {"url": str(request.url), "mimeType": "application/json"},
            "accepts": [self._accepted(price)],
        }
        headers = {"PAYMENT-REQUIRED": encode(required)}
        if said is not None:
            headers["PAYMENT-RESPONSE"] = encode(said)
        return web.json_response({"error": error}, status=402, headers=headers)


def encode(value: dict[str, Any]) -> str:
    return base64.b64encode(msgspec.json.encode(value)).decode()
