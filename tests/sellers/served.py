"""Sellers on the test chain of a running service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from bursar_localnet.whereabouts import noted_address
from bursar_shop.shop import Shop, open_shop
from tests.localnet.support import Rpc
from tests.sellers.hostile import TRICKS, HostileSeller, hostile_seller
from tests.support import Service


@asynccontextmanager
async def shop_of(served: Service) -> AsyncGenerator[Shop]:
    """As `bursar demo shop` opens it."""
    async with open_shop(_rpc(served), "127.0.0.1", 0) as shop:
        yield shop


@asynccontextmanager
async def selling(served: Service, trick: str) -> AsyncGenerator[HostileSeller]:
    port = int(_rpc(served).rpartition(":")[2])
    async with (
        aiohttp.ClientSession() as session,
        hostile_seller(Rpc(port, session), TRICKS[trick]) as seller,
    ):
        yield seller


def _rpc(served: Service) -> str:
    rpc = noted_address(served.config.data_dir / "localnet-test")
    assert rpc is not None
    return rpc
