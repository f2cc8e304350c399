"""Forgets spends that were refused at once, when their time is over. They moved no money, and a
lost agent can make any number of them.

They go by whole UTC days. The day before which they are gone (`horizon` in the schema) rises before
the first of them is deleted. Each wallet keeps how many of its decisions were forgotten, and the
totals of their days go on counting them.
"""

from bursar.db import Tx
from bursar.sql import Query

_RAISE = Query("""
    UPDATE horizon
       SET refusals = d.day
      FROM (SELECT (moment() AT TIME ZONE 'UTC')::date - :days::int AS day) d
     WHERE refusals < d.day
""")
_FORGET = Query("""
    WITH old AS MATERIALIZED (
      SELECT id, agent_id
        FROM spend
       WHERE verdict = 'rejected'
         AND (created_at AT TIME ZONE 'UTC')::date < (SELECT refusals FROM horizon)
       ORDER BY (created_at AT TIME ZONE 'UTC')::date
       LIMIT :limit
    ), locked AS MATERIALIZED (
      SELECT agent_id
        FROM wallet
       WHERE agent_id = ANY(ARRAY(SELECT agent_id FROM old))
       ORDER BY agent_id
         FOR NO KEY UPDATE
    ), gone AS (
      DELETE FROM spend
       WHERE id = ANY(ARRAY(SELECT o.id FROM old o JOIN locked l ON l.agent_id = o.agent_id))
      RETURNING agent_id
    ), kept AS (
      UPDATE wallet w
         SET forgotten = w.forgotten + g.spends
        FROM (SELECT agent_id, count(*) AS spends FROM gone GROUP BY agent_id) g
       WHERE w.agent_id = g.agent_id
    )
    SELECT count(*) FROM gone
""")


async def forget_refusals(tx: Tx, older_than_days: int, limit: int) -> int:
    """Forgets a bounded number; returns how many."""
    await _RAISE.run(tx, days=older_than_days)
    return await _FORGET.value(tx, limit=limit)
