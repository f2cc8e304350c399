"""Sellers on the test chain of a running service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from bursar_shop.shop import Shop, open_shop
from tests.localnet.support import Rpc
from tests.sellers.hostile import TRICKS, HostileSeller, hostile_seller
from tests.support import Service


@asynccontextmanager
async def shop_of(served: Service) -> AsyncGenerator[Shop]:
    """As `bursar demo shop` opens it."""
    rpc = f"http://127.0.0.1:{served.config.localnet_port}"
    async with open_shop(rpc, "127.0.0.1", 0) as shop:
        yield shop


@asynccontextmanager
async def selling(served: Service, trick: str) -> AsyncGenerator[HostileSeller]:
    async with (
        aiohttp.ClientSession() as session,
        hostile_seller(Rpc(served.config.localnet_port, session), TRICKS[trick]) as seller,
    ):
        yield seller
