"""Connections take turns: bounded, in order, none used again in the middle of a statement."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from bursar import pool as pools
from bursar.db import OUT_OF_REACH, Database, Tx
from bursar.pool import Pool
from bursar.service.postgres import EmbeddedPostgres
from tests.processes import until

MOST = 3


async def pid(tx: Tx) -> int:
    return await tx.fetchval("SELECT pg_backend_pid()")


@pytest.fixture
async def db(postgres: EmbeddedPostgres) -> AsyncGenerator[Database]:
    made = await Database.open(postgres.dsn, MOST, 5)
    yield made
    await made.close()


@asynccontextmanager
async def pool(
    postgres: EmbeddedPostgres, most: int = MOST, seconds: float = 5
) -> AsyncGenerator[Pool]:
    made = Pool(lambda: asyncpg.connect(postgres.dsn), most, seconds)
    yield made
    await made.close()


async def test_one_connection_serves_those_who_come_one_after_the_other(db: Database):
    pids: set[int] = set()
    for _ in range(5):
        async with db.connection() as tx:
            pids.add(await pid(tx))
    assert len(pids) == 1


async def test_there_are_never_more_than_allowed(db: Database):
    """Goal: however many ask at once, all are served, by so many connections."""
    pids: set[int] = set()
    here = most = 0

    async def work() -> None:
        nonlocal here, most
        async with db.connection() as tx:
            here += 1
            most = max(most, here)
            pids.add(await pid(tx))
            await tx.fetchval("SELECT pg_sleep(0.002)")
            here -= 1

    await asyncio.gather(*(work() for _ in range(60)))
    assert (most, len(pids)) == (MOST, MOST)


async def test_who_waits_comes_in_order(postgres: EmbeddedPostgres):
    order: list[int] = []
    async with pool(postgres, most=1) as made:
        first = await made.acquire()

        async def wait(number: int) -> None:
            connection = await made.acquire()
            order.append(number)
            made.release(connection, is_sound=True)

        waiting = [asyncio.create_task(wait(number)) for number in range(10)]
        await asyncio.sleep(0)
        made.release(first, is_sound=True)
        await asyncio.gather(*waiting)
    assert order == list(range(10))


async def test_waiting_ends(postgres: EmbeddedPostgres):
    """Goal: who gets no turn is told, and whoever comes later is served."""
    async with pool(postgres, most=1, seconds=0.05) as made:
        used = await made.acquire()
        with pytest.raises(TimeoutError):
            await made.acquire()
        made.release(used, is_sound=True)
        again = await made.acquire()
        assert again is used
        made.release(again, is_sound=True)


@pytest.mark.parametrize("late", [False, True])
async def test_who_gives_up_takes_no_turn_along(postgres: EmbeddedPostgres, late: bool):
    """Goal: one that is cancelled while it waits, or in the moment of its turn, costs nobody a
    connection."""
    async with pool(postgres, most=1) as made:
        used = await made.acquire()
        waiting = asyncio.create_task(made.acquire())
        await asyncio.sleep(0)
        if late:
            made.release(used, is_sound=True)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if not late:
            made.release(used, is_sound=True)
        again = await made.acquire()
        made.release(again, is_sound=True)


async def test_a_statement_that_is_cancelled_is_over_before_its_place_is_another_s(
    db: Database, postgres: EmbeddedPostgres
):
    """Goal: what was given up holds no lock and no connection for long, and nobody gets its
    answer."""

    async def sleep() -> None:
        async with db.connection() as tx:
            await tx.fetchval("SELECT pg_sleep(60)")

    sleeping = [asyncio.create_task(sleep()) for _ in range(MOST)]
    async with pool(postgres, most=1) as other:
        watch = await other.acquire()

        async def asleep(count: int) -> bool:
            return count == await watch.fetchval(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE query LIKE 'SELECT pg_sleep(60)%' AND state = 'active'"
            )

        await until(lambda: asleep(MOST), seconds=20)
        for task in sleeping:
            task.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)
        async with db.connection() as tx:
            assert await tx.fetchval("SELECT 1") == 1
        await until(lambda: asleep(0), seconds=20)
        other.release(watch, is_sound=True)


async def test_an_error_of_its_own_costs_no_connection(db: Database):
    async with db.connection() as tx:
        before = await pid(tx)
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with db.connection() as tx:
            await tx.fetchval("SELECT 1 / 0")
    async with db.connection() as tx:
        assert await pid(tx) == before


async def test_what_was_left_open_is_not_handed_on(db: Database):
    """Goal: a transaction that somebody forgot to end is not continued by the next."""
    async with db.connection() as tx:
        before = await pid(tx)
        await tx.execute("BEGIN")
    async with db.connection() as tx:
        assert not tx.is_in_transaction()
        assert await pid(tx) != before


async def test_a_lost_connection_is_replaced_and_the_others_with_it(db: Database):
    """Goal: after one was found dead, nobody finds out the others one by one."""
    async with db.connection() as one, db.connection() as two:
        old = {await pid(one), await pid(two)}

    async def end_and_use() -> None:
        async with db.connection() as tx:
            mine = await pid(tx)
            async with db.connection() as other:
                await other.fetchval("SELECT pg_terminate_backend($1, 1000)", mine)
            await tx.fetchval("SELECT 1")

    with pytest.raises(OUT_OF_REACH):
        await end_and_use()
    async with db.connection() as tx:
        assert await pid(tx) not in old


async def test_a_place_is_kept_for_whom_no_connection_could_be_made(postgres: EmbeddedPostgres):
    fails = True

    async def connect() -> Tx:
        if fails:
            raise OSError("nobody is there")
        return await asyncpg.connect(postgres.dsn)

    made = Pool(connect, 1, 5)
    for _ in range(3):
        with pytest.raises(OSError, match="nobody is there"):
            await made.acquire()
    fails = False
    made.release(await made.acquire(), is_sound=True)
    await made.close()


async def test_a_connection_that_hangs_while_it_is_made_is_given_up(postgres: EmbeddedPostgres):
    """Goal: one time-out covers the wait for a place and the connection."""
    hangs = True

    async def connect() -> Tx:
        if hangs:
            await asyncio.Event().wait()
        return await asyncpg.connect(postgres.dsn)

    made = Pool(connect, 1, 0.5)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await made.acquire()
    hangs = False
    made.release(await made.acquire(), is_sound=True)
    for _ in range(2):
        await made.close()


async def test_idle_connections_end_but_the_last(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.1)
    async with pool(postgres) as made:
        used = [await made.acquire() for _ in range(MOST)]
        for connection in used:
            made.release(connection, is_sound=True)

        async def ended() -> bool:
            return sum(connection.is_closed() for connection in used) == MOST - 1

        await until(ended, seconds=20)
        assert await made.acquire() is used[-1]
        made.release(used[-1], is_sound=True)


async def test_closing_waits_for_those_in_use_and_turns_others_away(postgres: EmbeddedPostgres):
    made = Pool(lambda: asyncpg.connect(postgres.dsn), 2, 5)
    used = await made.acquire()
    closing = asyncio.create_task(made.close())
    await asyncio.sleep(0)
    with pytest.raises(asyncpg.InterfaceError):
        await made.acquire()
    assert not closing.done()
    assert await used.fetchval("SELECT 1") == 1
    made.release(used, is_sound=True)
    await closing
    assert used.is_closed()
