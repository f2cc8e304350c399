"""Reads the history that a draft is tried on, a bounded piece at a time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from bursar.backtest import history_store as store
from bursar.backtest.draft import Draft
from bursar.backtest.recorded import Ending, Recorded, in_order
from bursar.backtest.replay import Replay
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.policy.limits import WINDOWS, window_start
from bursar.recipient.resolve import Directory

# Requests that one piece has: what a worker reads and decides before it rests.
_AT_ONCE: Final = 250
# Rounds of looking for agents that share budgets; each finds those of budgets found before.
_MOST_ROUNDS: Final = 10
# Spends that were open when a backtest begins.
_MOST_OPEN: Final = 50_000


class Past:
    """The requests of agents from a moment on, and of all that share a budget with them. Directory
    look-ups are remembered, so the directory is as it was when the reading began."""

    def __init__(
        self, db: Database, realm_id: int, mode: Mode, draft: Draft, starts_at: datetime
    ) -> None:
        self._db = db
        self._realm_id = realm_id
        self._mode: Mode = mode
        self.draft = draft
        self.starts_at = starts_at
        # What came earlier in windows that were running then is counted, and not decided.
        self.counts_from = _lead(draft, starts_at)
        self.agent_ids: frozenset[str] = frozenset()
        self._budgets: list[str] = []
        # Up to when it is known whose requests count.
        self.known_until = self.counts_from
        self._place: store.Place = self.counts_from, ""
        self._directory = Directory()
        # How many requests were read so far, wanted or not.
        self.read = 0

    @property
    def reached(self) -> datetime:
        """The moment up to which it was read."""
        return self._place[0]

    async def find_agents(self, until: datetime) -> None:
        """The draft's agents and, through all budgets, those whose requests they may have left
        something to."""
        self.agent_ids = await self._agents(self.draft.agent_ids, self.counts_from, until)
        self.known_until = until

    async def misses_agents(self) -> bool:
        """Goes on to what was written meanwhile; whether it has agents that were not read before
        and should have been."""
        until = await self.written_until()
        found = await self._agents(self.agent_ids, self.known_until, until)
        self.known_until = max(until, self.known_until)
        return found != self.agent_ids

    async def _agents(
        self, agent_ids: frozenset[str], starts_at: datetime, ends_at: datetime
    ) -> frozenset[str]:
        """With those that share budgets with them between these moments."""
        found = set(agent_ids)
        for _ in range(_MOST_ROUNDS):
            async with self._db.report() as tx:
                self._budgets = await store.budgets_around(
                    tx, sorted(found), self._budgets, starts_at, ends_at
                )
                if not self._budgets:
                    break
                others = await store.agents_under(tx, self._budgets, starts_at, ends_at)
            if others <= found:
                break
            found |= others
        return frozenset(found)

    async def count_before(self, replay: Replay) -> None:
        """What the draft's agents had spent in their lives until `counts_from`, where the draft
        has limits."""
        if not self.draft.counts_windows:
            return
        async with self._db.report() as tx:
            paid, still = await store.spent_before(
                tx, sorted(self.draft.agent_ids), self.counts_from, _MOST_OPEN
            )
        for agent_id, (micros, spends) in paid.items():
            replay.begin(agent_id, micros, spends)
        for request in in_order(still):
            replay.count(request)

    async def written_until(self) -> datetime:
        async with self._db.connection() as tx:
            return await store.written_until(tx)

    async def next(self, before: datetime) -> list[Recorded] | None:
        """The next piece, in order; None at the end. A moment is never torn."""
        async with self._db.connection() as tx:
            rows: list[Recorded] = []
            at_once = _AT_ONCE
            while True:
                rows = await store.page(
                    tx, self._realm_id, self.agent_ids, self._place, before, at_once
                )
                if not rows:
                    return None
                if len(rows) < at_once:
                    break
                last = rows[-1].created_at
                whole = [row for row in rows if row.created_at < last]
                if whole:
                    rows = whole
                    break
                # All of one moment, and perhaps more of it.
                at_once *= 2
            self._place = rows[-1].created_at, rows[-1].id
            self.read += len(rows)
            wanted = [row for row in rows if row.agent_id in self.agent_ids]
            if self.draft.allows is not None or self.draft.blocks is not None:
                wanted = [await self._resolved(tx, row) for row in wanted]
        return list(in_order(wanted))

    async def endings(self, spend_ids: Sequence[str]) -> dict[str, Ending]:
        found: dict[str, Ending] = {}
        for start in range(0, len(spend_ids), _AT_ONCE):
            async with self._db.connection() as tx:
                found |= await store.endings(tx, spend_ids[start : start + _AT_ONCE])
        return found

    async def _resolved(self, tx: Tx, row: Recorded) -> Recorded:
        """With the address, which a refusal does not show, and whether the draft blocks it."""
        if row.agent_id not in self.draft.agent_ids:
            return row
        place = self._mode, self._realm_id, ""
        pay_to = row.pay_to
        if pay_to is None and row.terms.lists[2] == "p":
            pay_to = (await self._directory.resolve(tx, *place, [row.recipient]))[row.recipient]
        blocked: set[str] = set()
        if pay_to is not None and self.draft.blocks is not None:
            key = (("", 0, ""), self.draft.blocks)
            blocked = await self._directory.paid_to_blocked(tx, *place, key, [pay_to])
        return msgspec.structs.replace(row, pay_to=pay_to, pays_blocked_host=pay_to in blocked)


def _lead(draft: Draft, starts_at: datetime) -> datetime:
    """When the first window began that has to be counted: the day, for its cap, and all of them
    for limits that may not have stood then."""
    windows = WINDOWS if draft.counts_windows else ("day",)
    starts = [start for window in windows if (start := window_start(window, starts_at)) is not None]
    return min(starts)
