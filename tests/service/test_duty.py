"""The duties of a worker: each on its own, and known to be alive."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg

from bursar.clock import SystemClock
from bursar.db import Database
from bursar.heartbeat import store
from bursar.heartbeat.model import Beat, health
from bursar.service.duty import Duties, Duty
from bursar.service.postgres import EmbeddedPostgres
from tests.databases import own_database
from tests.processes import until


class _Ahead(SystemClock):
    """The clock of this machine, set ahead by hand."""

    ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


def _raising(problems: list[Exception]) -> Callable[[], Awaitable[int]]:
    """Raises one after the other, then goes well."""

    async def work() -> int:
        if problems:
            raise problems.pop(0)
        return 0

    return work


async def _beats(db: Database) -> dict[str, Beat]:
    async with db.connection() as tx:
        return {beat.duty: beat for beat in await store.beats(tx)}


async def test_no_duty_ends_by_what_it_raises(postgres: EmbeddedPostgres):
    """Goal: what the database takes back is done again, and a bug of one duty stops neither it nor
    another."""
    problems: list[Exception] = [asyncpg.DeadlockDetectedError(), KeyError("bug"), OSError()]
    async with own_database(postgres) as (_, db), AsyncExitStack() as stack:
        duties = Duties(db, SystemClock())
        rounds = 0

        async def count() -> int:
            nonlocal rounds
            rounds += 1
            return 0

        for duty in (Duty("bad", _raising(problems), 0.01), Duty("good", count, 0.01)):
            task = asyncio.create_task(duties.keep(duty))
            stack.callback(task.cancel)

        async def both() -> bool:
            return not problems and rounds > 3

        await until(both, seconds=20)


async def test_where_there_is_nothing_to_do_one_round_looks_for_all(postgres: EmbeddedPostgres):
    """Goal: at rest a duty with several rounds at once costs no more than with one; and one round
    that takes long keeps none from looking."""
    rest, looks = 0.05, 20
    async with own_database(postgres) as (_, db), AsyncExitStack() as stack:
        duties = Duties(db, SystemClock())
        rounds = 0
        hangs = False

        async def look() -> int:
            nonlocal rounds, hangs
            rounds += 1
            if hangs:
                hangs = False
                await asyncio.Event().wait()
            return 0

        async def enough() -> bool:
            return rounds >= looks

        began = time.monotonic()
        task = asyncio.create_task(duties.keep(Duty("two", look, rest, at_once=2)))
        stack.callback(task.cancel)
        await until(enough, seconds=20)
        # The first two looks come before any rest.
        assert time.monotonic() - began >= (looks - 2) * rest * 0.9
        rounds, hangs = 0, True
        await until(enough, seconds=20)
        assert not hangs


async def test_a_duty_that_raises_and_one_that_hangs_are_told(postgres: EmbeddedPostgres):
    """Goal: a worker whose process runs but whose duty does not move is seen in the database; the
    others of the same worker are well."""
    clock = _Ahead()
    async with own_database(postgres) as (_, db), AsyncExitStack() as stack:
        duties = Duties(db, clock)

        async def bug() -> int:
            raise KeyError("bug")

        async def hang() -> int:
            await asyncio.Event().wait()
            return 0

        rounds = 0

        async def well() -> int:
            nonlocal rounds
            rounds += 1
            return 0

        kept = [
            Duty("bug", bug, 0.01, "test"),
            Duty("hang", hang, 0.01, "test"),
            Duty("well", well, 0.01, "live"),
        ]
        for duty in kept:
            task = asyncio.create_task(duties.keep(duty))
            stack.callback(task.cancel)

        async def raised() -> bool:
            return kept[0].problem == "KeyError" and rounds > 0

        await until(raised, seconds=20)
        clock.ahead_ns = 90_000_000_000
        before = rounds

        async def again() -> bool:
            return rounds > before + 1

        await until(again, seconds=20)
        await duties.beat()
        beats = await _beats(db)
        told = re.sub(r"\d+", "N", health([beats["bug"], beats["hang"]]))
        assert told == "bug stuck for N s (KeyError); hang stuck for N s"
        assert health([beats["well"]]) == "ok"


async def test_of_several_workers_the_one_that_moves_counts(postgres: EmbeddedPostgres):
    """Goal: one worker that is stuck beside one that is well is no alarm, whoever wrote last."""
    async with own_database(postgres) as (_, db):
        for still in (5.0, 500.0):
            beat = Beat(
                mode="test",
                duty="sign",
                silent_seconds=0,
                still_seconds=still,
                patience_seconds=60,
                problem=None,
            )
            async with db.connection() as tx:
                await store.put_beats(tx, [beat])
        beats = await _beats(db)
        assert 5 <= beats["sign"].still_seconds < 30
