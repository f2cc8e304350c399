"""Running totals, so that statistics cost the same however many transactions there are.

Each commit appends what it adds (`write_spends` for new spends, `add` for what became of them). A
worker folds that into the totals by agent, day of creation and recipient, into those by day and by
recipient alone, and into those of the whole account. What is not folded yet counts all the same:
`spend/stats.py` reads both in one snapshot.
"""

from collections.abc import Sequence
from datetime import date
from typing import Final, NamedTuple

from bursar.advisory import FOLDING
from bursar.db import Database, Tx
from bursar.spend.model import SpendRow
from bursar.sql import Query

# In place of an agent: the totals of a whole account.
ACCOUNT_WIDE: Final = ""
# What one statement folds.
_AT_ONCE: Final = 20_000

_ADD = Query("""
    INSERT INTO total_delta (realm_id, agent_id, day, recipient,
                             spend_count, rejected_count, settled_micros)
    SELECT *
      FROM unnest(:realm_ids::int[], :agent_ids::text[], :days::date[], :recipients::text[],
                  :spends::smallint[], :rejected::smallint[], :settled_micros::bigint[])
""")
_LOCK = Query("SELECT pg_try_advisory_xact_lock(:lock)")
_FOLD = Query("""
    WITH taken AS (
      DELETE FROM total_delta
       WHERE ctid = ANY(ARRAY(SELECT ctid FROM total_delta LIMIT :limit))
      RETURNING *
    ), summed AS (
      SELECT t.realm_id, o.agent_id, t.day, t.recipient, sum(t.spend_count) AS spends,
             sum(t.rejected_count) AS rejected, sum(t.settled_micros) AS settled_micros
        FROM taken t
       CROSS JOIN LATERAL (VALUES (t.agent_id), ('')) AS o (agent_id)
       GROUP BY 1, 2, 3, 4
    ), folded AS (
      INSERT INTO spend_total AS s (realm_id, agent_id, day, recipient,
                                    spend_count, rejected_count, settled_micros)
      SELECT * FROM summed
          ON CONFLICT (realm_id, agent_id, day, recipient) DO UPDATE
         SET spend_count = s.spend_count + excluded.spend_count,
             rejected_count = s.rejected_count + excluded.rejected_count,
             settled_micros = s.settled_micros + excluded.settled_micros
    ), days AS (
      INSERT INTO day_total AS s (realm_id, agent_id, day,
                                  spend_count, rejected_count, settled_micros)
      SELECT realm_id, agent_id, day, sum(spends), sum(rejected), sum(settled_micros)
        FROM summed
       GROUP BY 1, 2, 3
          ON CONFLICT (realm_id, agent_id, day) DO UPDATE
         SET spend_count = s.spend_count + excluded.spend_count,
             rejected_count = s.rejected_count + excluded.rejected_count,
             settled_micros = s.settled_micros + excluded.settled_micros
    ), recipients AS (
      INSERT INTO recipient_total AS s (realm_id, agent_id, recipient, settled_micros)
      SELECT realm_id, agent_id, recipient, sum(settled_micros)
        FROM summed
       WHERE settled_micros > 0
       GROUP BY 1, 2, 3
          ON CONFLICT (realm_id, agent_id, recipient) DO UPDATE
         SET settled_micros = s.settled_micros + excluded.settled_micros
    )
    SELECT count(*) FROM taken
""")


class Delta(NamedTuple):
    """What one spend adds to the totals of its day."""

    realm_id: int
    agent_id: str
    day: date
    recipient: str
    spends: int
    rejected: int
    settled_micros: int


def rejected(spend: SpendRow) -> Delta:
    """A spend that was counted before, and ended rejected."""
    return Delta(spend.realm_id, spend.agent_id, spend.created_at.date(), spend.recipient, 0, 1, 0)


def settled(spend: SpendRow) -> Delta:
    day = spend.created_at.date()
    return Delta(spend.realm_id, spend.agent_id, day, spend.recipient, 0, 0, spend.amount_micros)


async def add(tx: Tx, deltas: Sequence[Delta]) -> None:
    if not deltas:
        return
    realm_ids, agent_ids, days, recipients, spends, rejections, micros = zip(*deltas, strict=True)
    await _ADD.run(
        tx,
        realm_ids=realm_ids,
        agent_ids=agent_ids,
        days=days,
        recipients=recipients,
        spends=spends,
        rejected=rejections,
        settled_micros=micros,
    )


async def fold(db: Database) -> int:
    """Folds a bounded number of what was added into the totals; returns how many. One process at a
    time, so that no two wait for each other's rows."""
    async with db.transaction() as tx:
        if not await _LOCK.value(tx, lock=FOLDING):
            return 0
        return await _FOLD.value(tx, limit=_AT_ONCE)
