"""Counts again what every meter counted, from the spends alone.

A meter numbers its decisions and what it is given back, in the order of its lock. A spend keeps the
numbers that it was judged on, so its place in each meter is known; of what was given back only the
amounts are, so a release is put where a number is missing and the sums call for it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations, pairwise

from bursar.budget import store as budget_store
from bursar.budget.model import MeterRow
from bursar.db import Database
from bursar.policy.engine import judge, waits
from bursar.policy.limits import METER, WINDOWS, numbers_at, window_start
from bursar.spend.model import SpendRow
from bursar.spend.store import spend_of

# Releases take a meter's lock nearly in the order of their times: so far off one may be.
NEAR = 8


@dataclass
class Meter:
    """What it counts, one decision or release after the other."""

    numbers: tuple[int, ...] = (0,) * METER
    windows_at: datetime | None = None

    def decide(self, spend: SpendRow) -> tuple[int, ...]:
        """Counts it; returns what it was judged on."""
        assert self.windows_at is None or self.windows_at <= spend.created_at, "time runs back"
        before = numbers_at(self.numbers, self.windows_at, spend.created_at)
        self.numbers, self.windows_at = (before[0] + 1, *before[1:]), spend.created_at
        if spend.verdict != "rejected":
            self._add(spend, 1)
        return before

    def release(self, spend: SpendRow, *, numbered: bool = True) -> None:
        self.numbers = (self.numbers[0] + numbered, *self.numbers[1:])
        self._add(spend, -1)

    def _add(self, spend: SpendRow, sign: int) -> None:
        assert self.windows_at is not None
        decisions, *windows = self.numbers
        for place, window in enumerate(WINDOWS):
            if window_start(window, self.windows_at) == window_start(window, spend.created_at):
                windows[2 * place] += sign * spend.amount_micros
                windows[2 * place + 1] += sign
        self.numbers = (decisions, *windows)


@dataclass
class Counted:
    """All spends that a meter counts, with the numbers that they keep of it."""

    decided: list[tuple[tuple[int, ...], SpendRow]] = field(default_factory=list)

    def replay(self, row: MeterRow) -> list[SpendRow]:
        """Fails where a number does not follow from those before it; returns the spends in the
        order of the meter."""
        meter = Meter()
        self.decided.sort(key=lambda pair: pair[0][0])
        given_back = sorted(
            (s for _, s in self.decided if s.verdict != "rejected" and s.status == "rejected"),
            key=lambda spend: spend.updated_at,
        )
        for (one, first), (two, second) in pairwise(self.decided):
            assert one[0] < two[0], f"{first} and {second} have one number of {row}"
        for kept, spend in self.decided:
            self._give_back(meter, given_back, kept)
            assert meter.decide(spend) == kept, (row.id, spend)
        self._give_back(meter, given_back, row.numbers)
        assert not given_back, row
        now = row.windows_at or row.created_at
        assert numbers_at(meter.numbers, meter.windows_at, now) == row.numbers, row
        return [spend for _, spend in self.decided]

    def _give_back(self, meter: Meter, given_back: list[SpendRow], until: Sequence[int]) -> None:
        """Of those that are left, the first that explain how the lifetime's numbers changed."""
        missing = until[0] - meter.numbers[0]
        micros = meter.numbers[-2] - until[-2]
        found = next(
            (
                some
                for some in combinations(given_back[: missing + NEAR], missing)
                if sum(spend.amount_micros for spend in some) == micros
            ),
            None,
        )
        assert found is not None, f"{missing} releases of {micros}, of {given_back}"
        for spend in found:
            meter.release(spend)
            given_back.remove(spend)


@dataclass(frozen=True)
class Fleet:
    """All spends by id, and those of each budget in the order of its meter."""

    spends: dict[str, SpendRow]
    by_meter: dict[str, list[SpendRow]]


async def replay_fleet(db: Database, realm_id: int) -> Fleet:
    """Each decision follows from the numbers that it keeps, and those from what came before it."""
    async with db.transaction() as tx:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        spends = [
            spend_of(row)
            for row in await tx.fetch(
                "SELECT * FROM spend WHERE realm_id = $1 ORDER BY agent_id, decision_number",
                realm_id,
            )
        ]
        voids = await tx.fetch(
            "SELECT t.agent_id, t.number, t.subject_id FROM transfer t JOIN wallet w"
            " USING (agent_id) WHERE w.realm_id = $1 AND t.kind = 'void' ORDER BY t.number",
            realm_id,
        )
        ids = await tx.fetch("SELECT id FROM meter WHERE realm_id = $1", realm_id)
        meters = await budget_store.meters(tx, [row["id"] for row in ids])
    by_id = {spend.id: spend for spend in spends}
    by_agent: defaultdict[str, list[SpendRow]] = defaultdict(list)
    given_back: defaultdict[str, list[tuple[int, SpendRow]]] = defaultdict(list)
    counted = {meter_id: Counted() for meter_id in meters}
    for row in voids:
        given_back[row["agent_id"]].append((row["number"], by_id[row["subject_id"]]))
    for spend in spends:
        code = judge(spend.terms, spend.used, spend.amount_micros)
        waiting = waits(spend.terms, spend.amount_micros)
        assert spend.verdict == ("rejected" if code else "pending" if waiting else "approved")
        assert code is None or code == spend.reject_code
        by_agent[spend.agent_id].append(spend)
        numbers = spend.used.meters[METER:]
        assert len(numbers) == METER * len(spend.terms.meter_ids)
        for place, meter_id in enumerate(spend.terms.meter_ids):
            kept = numbers[place * METER : (place + 1) * METER]
            counted[meter_id].decided.append((kept, spend))
    for agent_id, decided in by_agent.items():
        _replay_wallet(decided, given_back[agent_id])
    return Fleet(by_id, {id_: counted[id_].replay(row) for id_, row in meters.items()})


def _replay_wallet(decided: Sequence[SpendRow], voids: list[tuple[int, SpendRow]]) -> None:
    """The wallet is a meter too, and its journal says where each release belongs."""
    meter = Meter()
    for spend in decided:
        while voids and voids[0][0] <= spend.used.transfers:
            meter.release(voids.pop(0)[1], numbered=False)
        before = meter.decide(spend)
        if spend.used.meters:
            assert before == spend.used.meters[:METER], spend
