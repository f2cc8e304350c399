"""Sellers on the test chain of a running service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from bursar.config import Mode
from bursar.db import Database
from bursar_shop.shop import Shop, open_shop
from tests.localnet.support import Rpc
from tests.processes import until
from tests.sellers.hostile import TRICKS, HostileSeller, hostile_seller
from tests.support import Service

# It ends with its condition, however busy the machine is.
_PATIENCE_SECONDS = 240.0


async def until_signing(db: Database, *modes: Mode) -> None:
    """Returns when a worker has noted, in these modes, which history of the database this is: no
    purchase is signed before."""

    async def noted() -> bool:
        async with db.connection() as tx:
            return set(modes) <= set(
                await tx.fetchval("SELECT array_agg(mode::text) FROM settlement_watch") or ()
            )

    await until(noted, seconds=_PATIENCE_SECONDS)


@asynccontextmanager
async def shop_of(served: Service) -> AsyncGenerator[Shop]:
    """As `bursar demo shop` opens it."""
    await until_signing(served.db, "test")
    rpc = f"http://127.0.0.1:{served.config.localnet_port}"
    async with open_shop(rpc, "127.0.0.1", 0) as shop:
        yield shop


@asynccontextmanager
async def selling(served: Service, trick: str) -> AsyncGenerator[HostileSeller]:
    await until_signing(served.db, "test")
    async with (
        aiohttp.ClientSession() as session,
        hostile_seller(Rpc(served.config.localnet_port, session), TRICKS[trick]) as seller,
    ):
        yield seller
