"""Statistics: whole days from the running totals, the parts of days from the spends themselves.

Of days whose refusals are forgotten, the totals alone still know. So a range that begins or ends
within such a day takes the whole of it.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from bursar.db import Row, Tx
from bursar.money import format_micros
from bursar.spend.store import SpendFilter
from bursar.spend.totals import ACCOUNT_WIDE
from bursar.spend.view import Statistics, show_total
from bursar.sql import Query

TOP_RECIPIENTS: Final = 10

_WHOLE_DAYS = """
            SELECT recipient, spend_count AS spends, rejected_count AS rejected, settled_micros
              FROM spend_total
             WHERE realm_id = :realm_id AND agent_id = :agent_id
               AND (:first::date IS NULL OR day >= :first)
               AND (:last::date IS NULL OR day < :last)
            UNION ALL
            SELECT recipient, spend_count, rejected_count, settled_micros
              FROM total_delta
             WHERE realm_id = :realm_id AND (:agent_id = '' OR agent_id = :agent_id)
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
    SELECT h.refusals AS whole_before, t.*
      FROM horizon h
      LEFT JOIN (SELECT recipient, sum(settled_micros)::bigint AS settled_micros,
                        (sum(sum(settled_micros)) OVER ())::bigint AS total_micros,
                        (sum(sum(spends)) OVER ())::bigint AS spends,
                        (sum(sum(rejected)) OVER ())::bigint AS rejected
                   FROM ({"UNION ALL".join([_WHOLE_DAYS, *counted])}) AS p
                  GROUP BY recipient
                  ORDER BY settled_micros DESC, recipient COLLATE "C"
                  LIMIT {TOP_RECIPIENTS}) t ON true
    """)


# Of all time. What is paid is never taken back, so the largest are among those that were the
# largest when the worker last folded, and those that were paid since.
_OF_ALL_TIME = Query(f"""
    WITH tail AS MATERIALIZED (
      SELECT recipient, spend_count, rejected_count, settled_micros
        FROM total_delta
       WHERE realm_id = :realm_id AND (:agent_id = '' OR agent_id = :agent_id)
    ), sums AS (
      SELECT sum(settled_micros)::bigint AS total_micros, sum(spend_count)::bigint AS spends,
             sum(rejected_count)::bigint AS rejected
        FROM (SELECT spend_count, rejected_count, settled_micros
                FROM day_total
               WHERE realm_id = :realm_id AND agent_id = :agent_id
              UNION ALL
              SELECT spend_count, rejected_count, settled_micros FROM tail) AS d
    ), folded AS (
      (SELECT recipient, settled_micros
         FROM recipient_total
        WHERE realm_id = :realm_id AND agent_id = :agent_id
        ORDER BY settled_micros DESC, recipient
        LIMIT {TOP_RECIPIENTS})
      UNION
      SELECT r.recipient, r.settled_micros
        FROM (SELECT DISTINCT recipient FROM tail WHERE settled_micros > 0) AS t
       CROSS JOIN LATERAL (
         SELECT r.recipient, r.settled_micros
           FROM recipient_total r
          WHERE r.realm_id = :realm_id AND r.agent_id = :agent_id
            AND r.recipient = t.recipient) AS r
    ), largest AS (
      SELECT recipient, sum(settled_micros)::bigint AS settled_micros
        FROM (SELECT recipient, settled_micros FROM folded
              UNION ALL
              SELECT recipient, settled_micros FROM tail WHERE settled_micros > 0) AS p
       GROUP BY recipient
       ORDER BY settled_micros DESC, recipient
       LIMIT {TOP_RECIPIENTS}
    )
    SELECT h.refusals AS whole_before, s.*, l.*
      FROM horizon h CROSS JOIN sums s LEFT JOIN largest l ON true
     ORDER BY l.settled_micros DESC, l.recipient
""")
# By whether it is of one agent, and how many parts of days the filter cuts off.
_STATISTICS: Final = {
    (of_agent, parts): _statistics(of_agent, parts)
    for of_agent in (False, True)
    for parts in range(3)
}


async def statistics(tx: Tx, filters: SpendFilter) -> Statistics:
    start, end = filters.created_from, filters.created_to
    while True:
        rows = await _ask(tx, filters, start, end)
        taken = start, end
        start, end = _whole_before(rows[0]["whole_before"], start, end)
        if taken == (start, end):
            break
    return Statistics(
        total_spent=format_micros(rows[0]["total_micros"] or 0),
        transaction_count=rows[0]["spends"] or 0,
        rejected_count=rows[0]["rejected"] or 0,
        top_recipients=[
            show_total(row["recipient"], row["settled_micros"])
            for row in rows
            if row["settled_micros"]
        ],
    )


async def _ask(
    tx: Tx, filters: SpendFilter, start: datetime | None, end: datetime | None
) -> list[Row]:
    """Whole days come from the totals, the parts that a timestamp cuts off from the rows."""
    whose: dict[str, Any] = {
        "realm_id": filters.realm_id,
        "agent_id": filters.agent_id or ACCOUNT_WIDE,
    }
    if start is None and end is None:
        return await _OF_ALL_TIME.rows(tx, **whose)
    first, last, edges = _split(start, end)
    cut = {f"start_{n}": start for n, (start, _) in enumerate(edges)}
    cut |= {f"end_{n}": end for n, (_, end) in enumerate(edges)}
    return await _STATISTICS[filters.agent_id is not None, len(edges)].rows(
        tx, **whose, first=first, last=last, **cut
    )


def _whole_before(
    day: date, start: datetime | None, end: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """The range with the days before this one taken whole."""
    if start is not None and start.date() < day:
        start = _midnight(start)
    if end is not None and end.date() < day:
        end = _next_midnight(end)
    return start, end


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
