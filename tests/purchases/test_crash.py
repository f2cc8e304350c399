"""Goal: a purchase whose processes die at any step ends by itself, is never paid twice, and leaves
nothing reserved."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from bursar.service.postgres import EmbeddedPostgres
from tests.databases import until_waited_for
from tests.processes import until
from tests.purchases.market import PATIENCE_SECONDS, Agent, Market, open_market, shown
from tests.sellers.stall import GOODS, Stall
from tests.settlement.stage import database
from tests.support import error_of, events_of

KEY = "the only one"


@pytest.fixture(scope="module")
async def market(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Market]:
    """A service of its own: others would notice the kills. A payment outlives a restart."""
    async with (
        database(postgres) as dsn,
        open_market(
            tmp_path_factory.mktemp("market"),
            dsn,
            processes=2,
            slot_ms=250,
            purchases_timeout_seconds=3,
        ) as opened,
    ):
        yield opened


async def started(agent: Agent, url: str) -> "asyncio.Task[httpx.Response]":
    """A purchase in the middle; its answer may never come."""
    return asyncio.create_task(agent.post(url, headers_of_the_call={"Idempotency-Key": KEY}))


async def killed(
    market: Market, task: "asyncio.Task[Any]", still_busy: Agent | None = None
) -> None:
    """Every HTTP process, at this very moment; returns once they are back. However long that takes,
    a dead one might still go on with what this agent buys."""
    _kill_http(market)
    if still_busy is not None:
        await _busy_until(market, still_busy, timedelta(hours=1))
    await _back(market, task)


def _kill_http(market: Market) -> None:
    for number in (1, 2):
        assert market.kill(f"api-{number}")


async def _back(market: Market, task: "asyncio.Task[Any]") -> None:
    with suppress(httpx.TransportError):
        await task
    await market.answers()


async def stored(market: Market, agent: Agent) -> Any:
    async with market.db.connection() as tx:
        return await tx.fetchrow("SELECT * FROM purchase WHERE agent_id = $1", agent.id)


async def reached(market: Market, agent: Agent, condition: Callable[[Any], bool]) -> None:
    """Returns when the stored purchase is so."""

    async def there() -> bool:
        row = await stored(market, agent)
        return row is not None and condition(row)

    await until(there, seconds=PATIENCE_SECONDS)


async def give_time(market: Market, agent: Agent) -> None:
    """As if the time had passed in which the dead process might have gone on with it."""
    await _busy_until(market, agent, timedelta(seconds=-1))


async def _busy_until(market: Market, agent: Agent, from_now: timedelta) -> None:
    async with market.db.connection() as tx:
        await tx.execute(
            "UPDATE purchase SET busy_until = clock_timestamp() + $2::interval"
            " WHERE agent_id = $1 AND busy_until IS NOT NULL",
            agent.id,
            from_now,
        )


async def assert_given_back(agent: Agent) -> None:
    now = await agent.balance()
    assert (now["balance"], now["available"]) == ("10.000000", "10.000000")


async def found(agent: Agent, url: str) -> dict[str, Any]:
    """The same request again, with the same key."""
    return await agent.buy(url, headers_of_the_call={"Idempotency-Key": KEY})


async def test_while_the_seller_is_asked(market: Market, stall: Stall):
    agent = await market.agent()
    stall.open.clear()
    task = await started(agent, stall.url)
    await stall.until_asked()
    await killed(market, task, still_busy=agent)
    stall.open.set()
    assert (await found(agent, stall.url))["status"] == "open"
    await give_time(market, agent)
    ended = await agent.ended(await found(agent, stall.url))
    assert (ended["status"], ended["failureCode"]) == ("failed", "interrupted")
    assert (ended["transactionId"], stall.presented) == (None, [])
    await assert_given_back(agent)


@asynccontextmanager
async def unsigned(
    market: Market, agent: Agent, *, notices: bool = True
) -> AsyncGenerator["asyncpg.Connection[Any]"]:
    """What was signed for the agent is not stored meanwhile: whoever does looks at its realm, which
    a stop might be changing. `notices`: the server notices the end of those that waited for it,
    before their turn comes."""
    # By itself: the service's own connections would not let a transaction idle for so long.
    connection = await asyncpg.connect(market.config.database_url)
    try:
        async with connection.transaction():
            await connection.execute(
                "SELECT FROM realm r JOIN agent a ON a.realm_id = r.id WHERE a.id = $1"
                " FOR NO KEY UPDATE OF r",
                agent.id,
            )
            yield connection
            if notices:
                await connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
                )
    finally:
        await connection.close()


async def test_between_decision_and_signature(market: Market, stall: Stall):
    agent = await market.agent()
    async with unsigned(market, agent):
        task = await started(agent, stall.url)
        await reached(market, agent, lambda row: row["spend_id"] is not None)
        assert (await agent.balance())["available"] == "9.999000"
        await killed(market, task)
    row = await stored(market, agent)
    assert (row["status"], row["signature"]) == ("open", None)
    await give_time(market, agent)
    ended = await agent.ended(await found(agent, stall.url))
    assert (ended["status"], ended["failureCode"]) == ("failed", "interrupted")
    assert ended["transaction"]["status"] == "rejected"
    assert stall.presented == []
    await assert_given_back(agent)


async def test_a_signature_that_is_stored_for_nobody(market: Market, stall: Stall):
    """Goal: a statement that was waiting when its process died goes on without it. What it stored
    never left: it is proven dead and given back, or the same bytes are presented after all."""
    stall.settles = False
    for asked_again in (False, True):
        agent = await market.agent()
        stall.presented.clear()
        async with unsigned(market, agent, notices=False) as holder:
            task = await started(agent, stall.url)
            await until_waited_for(holder)
            _kill_http(market)
            # Its turn comes before the server, which looks every 5 s, sees that it is for nobody.
            with suppress(httpx.TransportError):
                await task
        await market.answers()
        await reached(market, agent, lambda row: row["status"] == "presented")
        purchase = await found(agent, stall.url)
        assert (purchase["response"], stall.presented) == (None, [])
        if asked_again:
            stall.settles = True
            assert shown(await agent.retry(purchase))["response"]["body"] == GOODS
            assert (await agent.ended(purchase))["status"] == "paid"
            assert await market.paid(agent, stall.payee) == [1_000]
        else:
            await market.pass_blocks()
            assert (await agent.ended(purchase))["status"] == "unpaid"
            await assert_given_back(agent)


async def pending(market: Market, stall: Stall) -> tuple[Agent, dict[str, Any]]:
    """A purchase that a person has approved."""
    agent = await market.agent(approvalThreshold="0")
    purchase = await found(agent, stall.url)
    path = f"/v1/transactions/{purchase['transactionId']}/approve"
    shown(await agent.admin.post(path, json={}))
    return agent, purchase


async def test_between_approval_and_signature(market: Market, stall: Stall):
    """Goal: what a person approved is not lost with the process: it can be continued."""
    agent, purchase = await pending(market, stall)
    async with unsigned(market, agent):
        task = asyncio.create_task(agent.resume(purchase))
        await stall.until_asked(2)
        await killed(market, task, still_busy=agent)
    assert (await agent.get(purchase))["status"] == "pending"
    error_of(await agent.resume(purchase), 409, "invalid_state")
    await give_time(market, agent)
    bought = shown(await agent.resume(purchase))
    assert (await agent.ended(bought))["status"] == "paid"
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_approved_and_never_continued(market: Market, stall: Stall):
    agent, purchase = await pending(market, stall)
    async with market.db.connection() as tx:
        await tx.execute(
            "UPDATE spend SET decided_at = decided_at - interval '23 hours 59 minutes'"
            " WHERE id = $1",
            purchase["transactionId"],
        )
    await asyncio.sleep(1)
    assert (await agent.get(purchase))["status"] == "pending"
    async with market.db.connection() as tx:
        await tx.execute(
            "UPDATE spend SET decided_at = decided_at - interval '2 minutes' WHERE id = $1",
            purchase["transactionId"],
        )
    ended = await agent.ended(purchase)
    assert (ended["status"], ended["failureCode"]) == ("failed", "not_continued")
    assert ended["transaction"]["rejectCode"] == "hold_expired"
    error_of(await agent.resume(purchase), 409, "invalid_state")
    await assert_given_back(agent)


async def test_between_signature_and_presenting(market: Market, stall: Stall):
    """Goal: what was signed and never arrived is proven dead and given back; the same bytes are
    still there until then, and nothing else is ever signed."""
    agent = await market.agent()
    stall.settles = False
    stall.paying.clear()
    task = await started(agent, stall.url)
    await stall.until_presented()
    await killed(market, task)
    purchase = await found(agent, stall.url)
    assert (purchase["status"], purchase["response"]) == ("presented", None)
    assert (await agent.balance())["available"] == "9.999000"
    await market.pass_blocks()
    ended = await agent.ended(purchase)
    assert (ended["status"], ended["transaction"]["rejectCode"]) == ("unpaid", "purchase_expired")
    async with market.db.connection() as tx:
        told = [event.type for event in await events_of(tx, agent.id)]
    assert told.count("purchase.unpaid") == 1
    assert await market.paid(agent, stall.payee) == []
    assert len(set(stall.presented)) == 1
    await assert_given_back(agent)


async def test_between_signature_and_presenting_and_asked_for_again(market: Market, stall: Stall):
    agent = await market.agent()
    stall.settles = False
    stall.paying.clear()
    task = await started(agent, stall.url)
    await stall.until_presented()
    await killed(market, task)
    stall.settles = True
    stall.paying.set()
    bought = shown(await agent.retry(await found(agent, stall.url)))
    assert bought["response"]["body"] == GOODS
    assert (await agent.ended(bought))["status"] == "paid"
    assert len(set(stall.presented)) == 1
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_while_the_seller_settles(market: Market, stall: Stall):
    """Goal: the seller was paid, and nobody was there to hear of it: the chain says so."""
    agent = await market.agent()
    stall.paying.clear()
    task = await started(agent, stall.url)
    await stall.until_presented()
    for number in (1, 2):
        market.kill(f"worker-{number}")
    _kill_http(market)
    # While nobody is there, and before the payment is too old: blocks are quick here.
    stall.paying.set()
    await _back(market, task)
    paid = await agent.ended(await found(agent, stall.url))
    assert (paid["status"], paid["response"]) == ("paid", None)
    assert paid["transaction"]["signature"] == stall.settled[0].signature
    # The goods are still to be had.
    assert shown(await agent.retry(paid))["response"]["body"] == GOODS
    assert await market.paid(agent, stall.payee) == [1_000]


async def test_stopped_in_order(market: Market, stall: Stall):
    """Goal: SIGTERM lets what was signed reach its seller."""
    agent = await market.agent()
    stall.paying.clear()
    task = await started(agent, stall.url)
    await stall.until_presented()
    for number in (1, 2):
        pid = market.supervisor.pid(f"api-{number}")
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
    await asyncio.sleep(0.2)
    stall.paying.set()
    answer = await task
    assert answer.json()["data"]["response"]["body"] == GOODS
    await market.answers()
    assert (await agent.ended(await found(agent, stall.url)))["status"] == "paid"


async def test_the_books_are_right_after_all_of_it(market: Market):
    audit = await market.audit()
    assert audit.code == 0, audit.out + audit.err
