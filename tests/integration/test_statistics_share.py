"""Statistics of one tenant do not take the database away from the others."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final

import pytest

from bursar.clock import SystemClock
from bursar.service.api import Api
from tests.processes import until
from tests.support import Service, new_account, new_agent

CONNECTIONS: Final = 4
# Far less than a request waits for a connection before it is answered 503.
SOON_SECONDS: Final = 5


@pytest.fixture(scope="module")
async def narrow(service: Service) -> AsyncGenerator[Service]:
    """The same service in a second process' place, with few connections."""
    config = replace(service.config, database_connections=CONNECTIONS, rate_limits=False)
    api = await Api.start(config, SystemClock())
    try:
        yield replace(service, url=f"http://127.0.0.1:{api.port}")
    finally:
        await api.stop()


async def test_statistics_that_take_long_leave_connections_to_others(narrow: Service):
    """Goal: however many statistics an agent key asks for at once, another tenant is answered."""
    account = new_account()
    async with (
        await narrow.admin(account=account) as admin,
        await narrow.admin() as neighbour,
    ):
        agent = (await new_agent(admin))["id"]
        other = (await new_agent(neighbour))["id"]
        key = await narrow.key(account=account, scope="agent", agent_id=agent)
        async with narrow.client(key) as greedy:
            # As slow as they can be: what they read is locked.
            async with narrow.db.transaction() as tx:
                await tx.execute("LOCK TABLE day_total IN ACCESS EXCLUSIVE MODE")
                asked = [
                    asyncio.create_task(greedy.get("/v1/transactions/stats"))
                    for _ in range(3 * CONNECTIONS)
                ]

                async def is_waiting() -> bool:
                    async with narrow.db.connection() as other_tx:
                        return await other_tx.fetchval(
                            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname ="
                            " current_database() AND wait_event_type = 'Lock'"
                            " AND query LIKE '%day_total%')"
                        )

                await until(is_waiting, seconds=10)
                for _ in range(10):
                    async with asyncio.timeout(SOON_SECONDS):
                        answer = await neighbour.get(f"/v1/wallets/{other}/balance")
                    assert answer.status_code == 200, answer.text
            # Released, all of them are answered: they waited for each other.
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * len(
                asked
            )
