"""One service that buys for all tests here that do not break it."""

from collections.abc import AsyncGenerator

import pytest

from bursar.service.postgres import EmbeddedPostgres
from tests.purchases.market import Market, open_market
from tests.sellers.stall import Stall, open_stall
from tests.settlement.stage import database


@pytest.fixture(scope="session")
async def market(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Market]:
    async with (
        database(postgres) as dsn,
        open_market(tmp_path_factory.mktemp("market"), dsn) as opened,
    ):
        yield opened


@pytest.fixture
async def stall(market: Market) -> AsyncGenerator[Stall]:
    async with open_stall(market.rpc) as opened:
        yield opened
