"""Goal: a purchase asks the database no more often than it has to: each statement is a round trip
that its buyer waits for."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest

from bursar.clock import SystemClock
from bursar.db import Hosts
from bursar.service.api import Api
from bursar.service.postgres import ADMIN_ROLE, EmbeddedPostgres
from tests.purchases.market import Market, made
from tests.sellers.stall import GOODS, Stall
from tests.support import Service

# The books; the purchase is begun; price and spend; the signature; the seller's answer. The four
# that write are transactions by themselves.
MOST = 5
# What a service asks by itself now and then comes in between; on a busy machine each time, too,
# whether its keys still stand.
TIMES = 5
TOGETHER = 10


@dataclass
class Counted:
    """A service in this process, and what it asked the database since `asked` was cleared."""

    service: Service
    asked: list[str] = field(default_factory=list[str])


@pytest.fixture
async def counted(market: Market, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Counted]:
    asked: list[str] = []
    connect = Hosts.connect

    async def listening(self: Hosts, *given: Any, **more: Any) -> "asyncpg.Connection[Any]":
        connection = await connect(self, *given, **more)
        connection.add_query_logger(lambda record: asked.append(record.query))
        return connection

    monkeypatch.setattr(Hosts, "connect", listening)
    api = await Api.start(replace(market.config, port=0), SystemClock())
    try:
        service = Service(f"http://127.0.0.1:{api.port}", market.config, market.db)
        yield Counted(service, asked)
    finally:
        await api.stop()


@pytest.fixture
async def strange_defaults(market: Market, postgres: EmbeddedPostgres) -> AsyncGenerator[None]:
    """Of connections that begin meanwhile."""
    async with market.db.connection() as tx:
        database = await tx.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(postgres.dsn_for(database, ADMIN_ROLE))
    settings = {"default_transaction_isolation": "serializable", "synchronous_commit": "off"}
    for name, value in settings.items():
        await admin.execute(f"ALTER DATABASE \"{database}\" SET {name} = '{value}'")
    try:
        yield
    finally:
        for name in settings:
            await admin.execute(f'ALTER DATABASE "{database}" RESET {name}')
        await admin.close()


async def test_other_defaults_of_the_database(
    market: Market, stall: Stall, strange_defaults: None, counted: Counted
):
    """Goal: defaults that a statement by itself cannot do with cost round trips and nothing else:
    whatever writes is a transaction that says what it wants."""
    agent = await market.agent()
    key = await market.service.key(account=agent.account, scope="agent", agent_id=agent.id)
    async with counted.service.client(key) as client:
        for _ in range(3):
            counted.asked.clear()
            bought = made(await client.post("/v1/purchases", json={"url": stall.url}))
            assert bought["response"]["body"] == GOODS
    assert counted.asked.count("COMMIT") == 4


async def test_statements_of_a_purchase(market: Market, stall: Stall, counted: Counted):
    agent = await market.agent()
    key = await market.service.key(account=agent.account, scope="agent", agent_id=agent.id)
    async with counted.service.client(key) as client:
        # The first reads what is remembered, and pins the payee.
        made(await client.post("/v1/purchases", json={"url": stall.url}))
        lists: list[list[str]] = []
        for _ in range(TIMES):
            counted.asked.clear()
            bought = made(await client.post("/v1/purchases", json={"url": stall.url}))
            assert bought["response"]["body"] == GOODS
            lists.append([query for query in counted.asked if "FROM api_key" not in query])
    asked = min(lists, key=len)
    assert len(asked) <= MOST, "\n".join(" ".join(query.split())[:100] for query in asked)
    assert "COMMIT" not in asked


async def test_purchases_at_once_count_once_what_is_kept(
    market: Market, stall: Stall, counted: Counted
):
    """Goal: to count takes longer than a purchase, so one of those that come together does."""
    agent = await market.agent()
    key = await market.service.key(account=agent.account, scope="agent", agent_id=agent.id)
    async with counted.service.client(key) as client:
        order = {"url": stall.url}
        answers = await asyncio.gather(
            *(client.post("/v1/purchases", json=order) for _ in range(TOGETHER))
        )
    assert [made(answer)["response"]["body"] for answer in answers] == [GOODS] * TOGETHER
    assert len([query for query in counted.asked if "sum(bytes)" in query]) == 1
