"""Runs backtests, one at a time and a piece at a time. A worker that stops gives its backtest back,
and one that dies keeps it for a while; whoever takes it next begins anew."""

import asyncio
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import msgspec

from bursar.backtest import history_store, store
from bursar.backtest.draft import Draft
from bursar.backtest.model import MOST_CHANGES, BacktestRow
from bursar.backtest.past import Past
from bursar.backtest.replay import Replay
from bursar.backtest.report import Change, Report
from bursar.backtest.rest import rest
from bursar.backtest.view import result_of
from bursar.clock import Clock
from bursar.db import Database
from bursar.policy.model import Bounds, PolicyChange

_LEASE_SECONDS: Final = 60.0
_MOST_TRIES: Final = 3
# Until it looks again whether what was decided is committed.
_WAIT_SECONDS: Final = 0.1
# How often it is written down how far it has come: a commit for each piece would be most of its
# time where commits are slow.
_NOTE_NS: Final = 1_000_000_000
# Requests that one backtest replays.
_MOST_REQUESTS: Final = 5_000_000

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Running:
    row: BacktestRow
    past: Past
    replay: Replay
    report: Report
    numbered: int = 0
    # What was found and is not written down yet.
    found: list[tuple[int, Change]] = field(default_factory=list)
    noted_ns: int = 0
    # Whether everything that was decided until its end can be read.
    is_written: bool = False


class Backtester:
    def __init__(self, db: Database, bounds: Bounds, clock: Clock) -> None:
        self._db = db
        self._bounds = bounds
        self._clock = clock
        self._holder = uuid4().hex
        self._running: _Running | None = None

    async def work(self) -> int:
        """One piece of the oldest backtest; 0 when there is none."""
        read: int | None = 0
        try:
            if self._running is None:
                self._running = await self._begin()
                if self._running is None:
                    return 0
            else:
                read = await self._piece(self._running)
                if read is None:
                    self._running = None
        except BaseException as problem:
            # What the replay has counted may be half of a piece: it is begun anew.
            self._running = None
            if isinstance(problem, Exception):
                # A try that failed counts, so it is no longer this one's to give back.
                self._holder = uuid4().hex
            raise
        await rest(read or 0)
        return 1

    async def give_back(self) -> None:
        """What is not at its end when the worker stops: the next begins at once, and this try does
        not count."""
        self._running = None
        async with self._db.transaction() as tx:
            await store.give_back(tx, self._holder)

    async def _begin(self) -> _Running | None:
        async with self._db.transaction() as tx:
            claimed = await store.claim(tx, self._holder, _LEASE_SECONDS)
        if claimed is None:
            return None
        row, tries = claimed
        if tries > _MOST_TRIES:
            await self._finish(row, problem=f"It was begun {_MOST_TRIES} times and never ended.")
            return None
        past = await self._past(row)
        await past.find_agents(row.ends_at)
        replay = Replay(past.draft)
        await past.count_before(replay)
        return _Running(row, past, replay, Report(past.draft.agent_ids))

    async def _past(self, row: BacktestRow) -> Past:
        asked = row.asked
        agent_ids = set(asked.agent_ids)
        async with self._db.report() as tx:
            mode = await history_store.mode_of(tx, row.realm_id)
            if asked.budget_id is not None:
                below = await history_store.budgets_below(tx, asked.budget_id)
                agent_ids |= await history_store.agents_under(tx, below, row.starts_at, row.ends_at)
        draft = Draft(
            agent_ids=frozenset(agent_ids),
            policy=asked.policy or PolicyChange(),
            budget_id=asked.budget_id,
            budget_limits=asked.limits,
            usual_network_lamports=self._bounds.agent_network_lamports,
        )
        return Past(self._db, row.realm_id, mode, draft, row.starts_at)

    async def _piece(self, running: _Running) -> int | None:
        """How many requests it read; None when it was the last one."""
        row, past = running.row, running.past
        # A decision may have been made and not be committed yet.
        running.is_written = running.is_written or await past.written_until() >= row.ends_at
        if not running.is_written:
            await asyncio.sleep(_WAIT_SECONDS)
            return 0 if await self._note(running) else None
        read = past.read
        requests = await past.next(row.ends_at)
        if requests is None:
            if await self._note(running, at_once=True):
                await self._finish(row, result=_encode(result_of(running.report)))
            return None
        for request in requests:
            if request.created_at < row.starts_at:
                running.replay.count(request)
                continue
            change = running.report.add(running.replay.decide(request))
            if change is not None and running.numbered < MOST_CHANGES:
                running.numbered += 1
                running.found.append((running.numbered, change))
        if running.report.of > _MOST_REQUESTS:
            problem = f"There are more than {_MOST_REQUESTS:,} requests; ask for a shorter time."
            await self._finish(row, problem=problem)
            return None
        return past.read - read if await self._note(running) else None

    async def _note(self, running: _Running, *, at_once: bool = False) -> bool:
        """Writes down how far it has come, and what it found, if it is time for that. False when
        another worker has it by now."""
        now = self._clock.monotonic_ns()
        if not at_once and now - running.noted_ns < _NOTE_NS:
            return True
        row, counts_from = running.row, running.past.counts_from
        done, whole = running.past.reached - counts_from, row.ends_at - counts_from
        found, running.found = running.found, []
        running.noted_ns = now
        async with self._db.transaction() as tx:
            return await store.note_progress(
                tx, row.id, self._holder, int(100 * done / whole), _LEASE_SECONDS, found
            )

    async def _finish(
        self, row: BacktestRow, *, result: bytes | None = None, problem: str | None = None
    ) -> None:
        async with self._db.transaction() as tx:
            await store.finish(tx, row.id, self._holder, result=result, problem=problem)
