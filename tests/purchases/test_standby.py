"""Goal: what pays leaves the service once a standby has it too, so that nothing can be paid after a
failover that the books do not know of."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from bursar.service.postgres import EmbeddedPostgres
from tests.databases import administer, until_waited_for
from tests.processes import until
from tests.purchases.market import Market, open_market, shown
from tests.purchases.test_brought import brought
from tests.purchases.test_crash import unsigned
from tests.sellers.stall import Stall
from tests.settlement.stage import database
from tests.support import error_of

# Long enough to take the standby away while a signature waits to be stored.
TIMEOUT_SECONDS = 5


@pytest.fixture
async def market(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Market]:
    """A service of its own, which gives up waiting soon."""
    async with (
        database(postgres) as dsn,
        open_market(
            tmp_path_factory.mktemp("market"), dsn, database_timeout_seconds=TIMEOUT_SECONDS
        ) as opened,
    ):
        yield opened


async def _commits_wait(postgres: EmbeddedPostgres) -> bool:
    connection = await asyncpg.connect(postgres.admin_dsn)
    try:
        await connection.execute("SELECT pg_logical_emit_message(true, 'test', '')", timeout=0.2)
    except TimeoutError:
        return True
    finally:
        await connection.close()
    return False


@asynccontextmanager
async def only_standby_gone(postgres: EmbeddedPostgres) -> AsyncGenerator[None]:
    """The commits of the server wait for a standby that is not there."""
    await administer(postgres, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    try:
        await administer(postgres, "SELECT pg_reload_conf()")
        await until(lambda: _commits_wait(postgres), seconds=TIMEOUT_SECONDS)
        yield
    finally:
        await administer(postgres, "ALTER SYSTEM RESET synchronous_standby_names")
        await administer(postgres, "SELECT pg_reload_conf()")


async def test_a_header_is_shown_once_a_standby_knows_that_it_was_signed(
    market: Market, stall: Stall, postgres: EmbeddedPostgres
):
    """Goal: a signature whose commit gave up waiting is stored on the primary alone. Whoever asks
    for the purchase, in whatever way, waits like the one who made it."""
    agent = await market.agent()
    key = {"headers_of_the_call": {"Idempotency-Key": "once"}}
    async with AsyncExitStack() as stack:
        async with unsigned(market, agent, notices=False) as holder:
            await holder.execute("SET LOCAL synchronous_commit = off")
            task = asyncio.create_task(agent.post(stall.url, paymentRequired=brought(stall), **key))
            await until_waited_for(holder)
            await stack.enter_async_context(only_standby_gone(postgres))
        error_of(await task, 503, "unavailable")
        (purchase,) = shown(await agent.client.get("/v1/purchases"))
        assert purchase["status"] == "presented"
        path = f"/v1/purchases/{purchase['id']}"
        for answer in await asyncio.gather(
            agent.client.get(path),
            agent.admin.get(path),
            agent.post(stall.url, paymentRequired=brought(stall), **key),
        ):
            error_of(answer, 503, "unavailable")
    assert (await agent.get(purchase))["header"]["name"] == "PAYMENT-SIGNATURE"
