"""Running totals, so that statistics cost the same however many transactions there are.

Totals are kept by agent, day of creation and recipient. Those of a whole account are spread over
shards, because one row that every commit locks would put all spends in a line.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from bursar.db import Tx
from bursar.money import format_micros
from bursar.spend.model import SpendRow
from bursar.spend.store import SpendFilter, TotalDelta
from bursar.spend.view import Statistics, show_total
from bursar.sql import Query

SHARDS: Final = 16
TOP_RECIPIENTS: Final = 10
# In place of an agent: the totals of a whole account.
ACCOUNT_WIDE: Final = ""

_ADD = Query("""
    INSERT INTO spend_total AS t (realm_id, agent_id, day, recipient, shard,
                                  spend_count, rejected_count, settled_micros)
    SELECT *
      FROM unnest(:realm_ids::int[], :agent_ids::text[], :days::date[], :recipients::text[],
                  :shards::smallint[], :spends::bigint[], :rejected::bigint[],
                  :settled_micros::bigint[])
        ON CONFLICT (realm_id, agent_id, day, recipient, shard) DO UPDATE
       SET spend_count = t.spend_count + excluded.spend_count,
           rejected_count = t.rejected_count + excluded.rejected_count,
           settled_micros = t.settled_micros + excluded.settled_micros
""")
_WHOLE_DAYS = """
            SELECT recipient, spend_count AS spends, rejected_count AS rejected, settled_micros
              FROM spend_total
             WHERE realm_id = :realm_id AND agent_id = :agent_id
               AND (:first::date IS NULL OR day >= :first)
               AND (:last::date IS NULL OR day < :last)
"""
_PART_OF_A_DAY = """
            SELECT recipient, count(*), count(*) FILTER (WHERE status = 'rejected'),
                   coalesce(sum(amount_micros) FILTER (WHERE status = 'settled'), 0)::bigint
              FROM spend
             WHERE realm_id = :realm_id {of_agent}
               AND created_at >= :start_{number} AND created_at < :end_{number}
             GROUP BY recipient
"""


def _statistics(of_agent: bool, parts: int) -> Query:
    """One statement, so one snapshot: totals and rows cannot disagree. Only the largest recipients
    come back, each with the sums over all: there may be a million."""
    owner = "AND agent_id = :agent_id" if of_agent else ""
    counted = [_PART_OF_A_DAY.format(of_agent=owner, number=number) for number in range(parts)]
    return Query(f"""
    SELECT recipient, sum(settled_micros)::bigint AS settled_micros,
           (sum(sum(settled_micros)) OVER ())::bigint AS total_micros,
           (sum(sum(spends)) OVER ())::bigint AS spends,
           (sum(sum(rejected)) OVER ())::bigint AS rejected
      FROM ({"UNION ALL".join([_WHOLE_DAYS, *counted])}) AS p
     GROUP BY recipient
     ORDER BY settled_micros DESC, recipient COLLATE "C"
     LIMIT {TOP_RECIPIENTS}
    """)


# By whether it is of one agent, and how many parts of days the filter cuts off.
_STATISTICS: Final = {
    (of_agent, parts): _statistics(of_agent, parts)
    for of_agent in (False, True)
    for parts in range(3)
}

_Key = tuple[int, str, date, str, int]


@dataclass(slots=True)
class _Delta:
    spends: int = 0
    rejected: int = 0
    settled_micros: int = 0


class Totals:
    """Gathers what spends add to the totals, and writes it in one statement."""

    def __init__(self, shard: int) -> None:
        self._shard = shard % SHARDS
        self._deltas: dict[_Key, _Delta] = {}

    def count(self, spend: SpendRow) -> None:
        """A new spend; one that is rejected at once counts as rejected too."""
        for delta in self._of(spend):
            delta.spends += 1
            delta.rejected += spend.status == "rejected"

    def reject(self, spend: SpendRow) -> None:
        """A spend that was counted before, and ended rejected."""
        for delta in self._of(spend):
            delta.rejected += 1

    def settle(self, spend: SpendRow) -> None:
        for delta in self._of(spend):
            delta.settled_micros += spend.amount_micros

    def added(self) -> list[TotalDelta]:
        """In the order of `write`; only for new spends, which are all of one day."""
        return [
            TotalDelta(realm_id, agent_id, recipient, shard, delta.spends, delta.rejected)
            for (realm_id, agent_id, _, recipient, shard), delta in sorted(self._deltas.items())
        ]

    async def write(self, tx: Tx) -> None:
        """In key order, so that two commits never wait for each other in a circle."""
        keys = sorted(self._deltas)
        if not keys:
            return
        deltas = [self._deltas[key] for key in keys]
        realm_ids, agent_ids, days, recipients, shards = zip(*keys, strict=True)
        await _ADD.run(
            tx,
            realm_ids=realm_ids,
            agent_ids=agent_ids,
            days=days,
            recipients=recipients,
            shards=shards,
            spends=[delta.spends for delta in deltas],
            rejected=[delta.rejected for delta in deltas],
            settled_micros=[delta.settled_micros for delta in deltas],
        )

    def _of(self, spend: SpendRow) -> Iterable[_Delta]:
        day, recipient = spend.day, spend.recipient
        for key in (
            (spend.realm_id, spend.agent_id, day, recipient, 0),
            (spend.realm_id, ACCOUNT_WIDE, day, recipient, self._shard),
        ):
            delta = self._deltas.get(key)
            if delta is None:
                delta = self._deltas[key] = _Delta()
            yield delta


async def statistics(tx: Tx, filters: SpendFilter) -> Statistics:
    """Whole days come from the totals, the parts that a timestamp cuts off from the rows."""
    first, last, edges = _split(filters.created_from, filters.created_to)
    cut = {f"start_{n}": start for n, (start, _) in enumerate(edges)}
    cut |= {f"end_{n}": end for n, (_, end) in enumerate(edges)}
    rows = await _STATISTICS[filters.agent_id is not None, len(edges)].rows(
        tx,
        realm_id=filters.realm_id,
        agent_id=filters.agent_id or ACCOUNT_WIDE,
        first=first,
        last=last,
        **cut,
    )
    totals = rows[0] if rows else {"total_micros": 0, "spends": 0, "rejected": 0}
    return Statistics(
        total_spent=format_micros(totals["total_micros"]),
        transaction_count=totals["spends"],
        rejected_count=totals["rejected"],
        top_recipients=[
            show_total(row["recipient"], row["settled_micros"])
            for row in rows
            if row["settled_micros"]
        ],
    )


def _split(
    start: datetime | None, end: datetime | None
) -> tuple[date | None, date | None, list[tuple[datetime, datetime]]]:
    """(first whole day, day after the last whole day, cut pieces of days) of a time range."""
    first = None if start is None else _next_midnight(start)
    last = None if end is None else _midnight(end)
    if start and end and first and last and first > last:
        return first.date(), first.date(), [(start, end)] if start < end else []
    edges: list[tuple[datetime, datetime]] = []
    if start is not None and first is not None and start < first:
        edges.append((start, first))
    if end is not None and last is not None and last < end:
        edges.append((last, end))
    return first.date() if first else None, last.date() if last else None, edges


def _midnight(moment: datetime) -> datetime:
    return datetime(moment.year, moment.month, moment.day, tzinfo=UTC)


def _next_midnight(moment: datetime) -> datetime:
    floor = _midnight(moment)
    return floor if floor == moment else floor + timedelta(days=1)
