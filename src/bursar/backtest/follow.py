"""Follows drafts: backtests that keep running. What was counted is kept in memory; a worker that
takes over begins where the draft began."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from bursar.backtest import draft_store, history_store
from bursar.backtest.draft import Draft
from bursar.backtest.model import SHOWN_DIFFERENCES, DraftRow
from bursar.backtest.past import Past
from bursar.backtest.replay import Replay
from bursar.backtest.report import Report
from bursar.backtest.rest import rest
from bursar.backtest.view import DifferenceView, show_change
from bursar.db import OUT_OF_REACH, ROLLED_BACK, Database
from bursar.policy.model import Bounds

# Pieces of one draft before the next has its turn.
_PIECES: Final = 4

_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger()


@dataclass(slots=True)
class _Followed:
    past: Past
    replay: Replay
    report: Report
    # The newest first.
    differences: "deque[DifferenceView]" = field(
        default_factory=lambda: deque(maxlen=SHOWN_DIFFERENCES)
    )


class DraftFollower:
    def __init__(self, db: Database, bounds: Bounds) -> None:
        self._db = db
        self._bounds = bounds
        # By the draft's id.
        self._followed: dict[str, _Followed] = {}

    def forget(self) -> None:
        """Another worker follows them."""
        self._followed.clear()

    async def follow(self) -> int:
        """One round over all drafts; returns how many have more to decide."""
        async with self._db.connection() as tx:
            rows = await draft_store.list_drafts(tx)
        for gone in self._followed.keys() - {row.id for row in rows}:
            del self._followed[gone]
        behind = 0
        for row in rows:
            try:
                read, more = await self._follow(row)
                behind += more
            except TimeoutError as problem:
                # Its history is too long for one statement, or the database is slow. It comes first
                # again in the next round, so the others must not wait for it.
                _log.warning("draft_put_off", agent_id=row.agent_id, problem=repr(problem))
                continue
            except (*OUT_OF_REACH, *ROLLED_BACK):
                raise
            except Exception:  # noqa: BLE001 - the other drafts go on
                # One that cannot be followed stops no other.
                _log.exception("draft_not_followed", agent_id=row.agent_id)
                continue
            await rest(read)
        return behind

    async def _follow(self, row: DraftRow) -> tuple[int, bool]:
        """How many requests were read, and whether there are more."""
        # Put back when it is whole again: what fails in the middle is begun anew.
        followed = self._followed.pop(row.id, None)
        if followed is None or await followed.past.misses_agents():
            followed = await self._begin(row)
        caught_up = await self._catch_up(row, followed)
        self._followed[row.id] = followed
        return caught_up

    async def _begin(self, row: DraftRow) -> _Followed:
        draft = Draft(
            agent_ids=frozenset({row.agent_id}),
            policy=row.change,
            usual_network_lamports=self._bounds.agent_network_lamports,
        )
        async with self._db.connection() as tx:
            mode = await history_store.mode_of(tx, row.realm_id)
        past = Past(self._db, row.realm_id, mode, draft, row.since)
        await past.find_agents(await past.written_until())
        replay = Replay(draft)
        await past.count_before(replay)
        return _Followed(past, replay, Report(draft.agent_ids))

    async def _catch_up(self, row: DraftRow, followed: _Followed) -> tuple[int, bool]:
        """How many requests were read, and whether there are more."""
        past, replay, report = followed.past, followed.replay, followed.report
        read, more = past.read, True
        for _ in range(_PIECES):
            requests = await past.next(past.known_until)
            if requests is None:
                more = False
                break
            # What ended before a decision is known once the decision can be read.
            for spend_id, ending in (await past.endings(replay.open_ids)).items():
                replay.learn(spend_id, ending)
            for request in requests:
                if request.created_at < row.since:
                    replay.count(request)
                    continue
                change = report.add(replay.decide(request))
                if change is not None:
                    followed.differences.appendleft(show_change(change))
        # There may be many drafts, and the next round of this one comes later.
        past.draft.forget_terms()
        async with self._db.connection() as tx:
            await draft_store.note_followed(
                tx,
                row.id,
                max(past.reached if more else past.known_until, row.since),
                report.of - report.others,
                report.changed_count,
                _encode(list(followed.differences)),
            )
        return past.read - read, more
