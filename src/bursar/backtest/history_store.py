"""Queries on the history that is replayed. Each reads a bounded number of rows and locks none."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec

from bursar.backtest.recorded import Ending, Recorded
from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.policy.engine import RejectCode, Terms, used_of
from bursar.sql import Query

_decode_terms = msgspec.json.Decoder(Terms).decode

_ENDING: Final = "s.status, s.approved_after, s.released_after, s.network_lamports, t.number"
# Of a page only what is read of it: the rest of a row is most of it.
_COLUMNS: Final = """s.id, s.agent_id, s.created_at, s.amount_micros, s.recipient, s.pay_to,
             s.verdict, s.reject_code, s.terms, s.used, s.decision_number, s.status,
             s.approved_after, s.released_after, s.network_lamports"""
_REQUEST: Final = f"""
    SELECT s.id, s.agent_id, s.created_at, s.amount_micros, s.recipient, s.pay_to, w.address,
           s.verdict, s.reject_code, s.terms, s.used, s.decision_number, {_ENDING}
      FROM page s
      JOIN wallet w ON w.agent_id = s.agent_id
      LEFT JOIN transfer t ON t.subject_id = s.id AND t.kind IN ('post', 'void')
     ORDER BY s.created_at, s.id
"""
# Of one agent from its own index, of several from the account's.
_OF_AGENT = Query(f"""
    WITH page AS MATERIALIZED (
      SELECT {_COLUMNS}
        FROM spend s
       WHERE agent_id = :agent_id AND created_at < :before
         AND (created_at, id) > (:after_at, :after_id)
       ORDER BY created_at, id
       LIMIT :limit)
    {_REQUEST}
""")
_OF_REALM = Query(f"""
    WITH page AS MATERIALIZED (
      SELECT {_COLUMNS}
        FROM spend s
       WHERE realm_id = :realm_id AND created_at < :before
         AND (created_at, id) > (:after_at, :after_id)
       ORDER BY created_at, id
       LIMIT :limit)
    {_REQUEST}
""")
_ENDINGS = Query(f"""
    SELECT s.id, {_ENDING}
      FROM spend s
      LEFT JOIN transfer t ON t.subject_id = s.id AND t.kind IN ('post', 'void')
     WHERE s.id = ANY(:spend_ids) AND (t.number IS NOT NULL OR s.approved_after IS NOT NULL)
""")
# Whoever writes has a transaction id before it has the lock, and reads the moment of its decision
# after that. So no decision of an earlier moment than the oldest writer's is still to come.
_WRITTEN_UNTIL = Query("""
    SELECT date_trunc('milliseconds', least(min(a.xact_start), clock_timestamp()))
      FROM (SELECT xact_start
              FROM pg_stat_activity
             WHERE datname = current_database() AND backend_xid IS NOT NULL
               AND pid <> pg_backend_pid()
            UNION ALL
            SELECT clock_timestamp()) a
""")
_PAID_BEFORE = Query("""
    SELECT agent_id, count(*) AS spends, sum(amount_micros)::bigint AS micros
      FROM spend
     WHERE agent_id = ANY(:agent_ids) AND created_at < :before AND status = 'settled'
     GROUP BY agent_id
""")
# Few of all: those that are open, or were until then.
_OPEN_AT = Query(f"""
    WITH page AS MATERIALIZED (
      SELECT {_COLUMNS}
        FROM spend s
        LEFT JOIN transfer v ON v.subject_id = s.id AND v.kind = 'void'
       WHERE s.agent_id = ANY(:agent_ids) AND s.created_at < :before AND s.verdict <> 'rejected'
         AND (s.status IN ('pending', 'approved')
              OR s.status = 'rejected' AND v.created_at >= :before)
       ORDER BY s.created_at, s.id
       LIMIT :limit)
    {_REQUEST}
""")
_BUDGETS_OF = Query("""
    WITH RECURSIVE used AS (
      SELECT budget_id AS id
        FROM spend
       WHERE agent_id = ANY(:agent_ids) AND created_at >= :starts_at AND created_at < :ends_at
         AND budget_id IS NOT NULL
      UNION
      SELECT unnest(:budget_ids::text[])
    ), above AS (
      SELECT b.id, b.parent_id FROM budget b JOIN used u ON u.id = b.id
      UNION
      SELECT p.id, p.parent_id FROM budget p JOIN above a ON p.id = a.parent_id
    ), tree AS (
      SELECT id FROM above WHERE parent_id IS NULL
      UNION
      SELECT b.id FROM budget b JOIN tree t ON b.parent_id = t.id)
    SELECT id FROM tree
""")
_BELOW = Query("""
    WITH RECURSIVE tree AS (
      SELECT id FROM budget WHERE id = :budget_id
      UNION
      SELECT b.id FROM budget b JOIN tree t ON b.parent_id = t.id)
    SELECT id FROM tree
""")
_AGENTS_UNDER = Query("""
    SELECT DISTINCT agent_id
      FROM spend
     WHERE budget_id = ANY(:budget_ids) AND created_at >= :starts_at AND created_at < :ends_at
""")
_AGENTS_NOW_UNDER = Query("SELECT id FROM agent WHERE budget_id = ANY(:budget_ids) LIMIT :limit")
_KEPT_FROM = Query("SELECT nullif(forgotten_before(), '-infinity')")
_MODE = Query("SELECT mode FROM realm WHERE id = :realm_id")

Place = tuple[datetime, str]


async def page(
    tx: Tx,
    realm_id: int,
    agent_ids: frozenset[str],
    after: Place,
    before: datetime,
    limit: int,
) -> list[Recorded]:
    """The next requests of an account in the order of their moments, of an agent if it is one
    alone; others may be among them."""
    at, id_ = after
    if len(agent_ids) == 1:
        (agent_id,) = agent_ids
        rows = await _OF_AGENT.rows(
            tx, agent_id=agent_id, after_at=at, after_id=id_, before=before, limit=limit
        )
    else:
        rows = await _OF_REALM.rows(
            tx, realm_id=realm_id, after_at=at, after_id=id_, before=before, limit=limit
        )
    return [_recorded(row) for row in rows]


async def endings(tx: Tx, spend_ids: Sequence[str]) -> dict[str, Ending]:
    """What has become of these spends, where something has."""
    rows = await _ENDINGS.rows(tx, spend_ids=spend_ids)
    return {row["id"]: _ending(row) for row in rows}


async def written_until(tx: Tx) -> datetime:
    """All that was decided before this moment can be read."""
    return await _WRITTEN_UNTIL.value(tx)


async def spent_before(
    tx: Tx, agent_ids: Sequence[str], before: datetime, limit: int
) -> tuple[dict[str, tuple[int, int]], list[Recorded]]:
    """What agents had spent in their lives before a moment: (micros, spends) of what is paid, and
    those that may be given back after it."""
    rows = await _PAID_BEFORE.rows(tx, agent_ids=agent_ids, before=before)
    still = await _OPEN_AT.rows(tx, agent_ids=agent_ids, before=before, limit=limit)
    return (
        {row["agent_id"]: (row["micros"], row["spends"]) for row in rows},
        [_recorded(row) for row in still],
    )


async def budgets_around(
    tx: Tx,
    agent_ids: Sequence[str],
    budget_ids: Sequence[str],
    starts_at: datetime,
    ends_at: datetime,
) -> list[str]:
    """Every budget of the trees that these agents' requests were decided under, or that have these
    budgets."""
    rows = await _BUDGETS_OF.rows(
        tx, agent_ids=agent_ids, budget_ids=budget_ids, starts_at=starts_at, ends_at=ends_at
    )
    return [row["id"] for row in rows]


async def budgets_below(tx: Tx, budget_id: str) -> list[str]:
    """Itself first."""
    return [row["id"] for row in await _BELOW.rows(tx, budget_id=budget_id)]


async def agents_under(
    tx: Tx, budget_ids: Sequence[str], starts_at: datetime, ends_at: datetime
) -> set[str]:
    """Whose requests were decided under these budgets."""
    rows = await _AGENTS_UNDER.rows(tx, budget_ids=budget_ids, starts_at=starts_at, ends_at=ends_at)
    return {row["agent_id"] for row in rows}


async def agents_now_under(tx: Tx, budget_ids: Sequence[str], limit: int) -> set[str]:
    rows = await _AGENTS_NOW_UNDER.rows(tx, budget_ids=budget_ids, limit=limit)
    return {row["id"] for row in rows}


async def kept_from(tx: Tx) -> datetime | None:
    """From when on refusals are kept; None: always."""
    return await _KEPT_FROM.value(tx)


async def mode_of(tx: Tx, realm_id: int) -> Mode:
    return await _MODE.value(tx, realm_id=realm_id)


def _recorded(row: Row) -> Recorded:
    code = row["reject_code"]
    refused = row["verdict"] == "rejected"
    return Recorded(
        id=row["id"],
        agent_id=row["agent_id"],
        created_at=row["created_at"],
        amount_micros=row["amount_micros"],
        recipient=row["recipient"],
        pay_to=row["pay_to"],
        wallet_address=row["address"],
        verdict=row["verdict"],
        reject_code=RejectCode(code) if refused else None,
        terms=_terms(row["terms"]),
        used=used_of(row["used"]),
        decision_number=row["decision_number"],
        ending=_ending(row),
    )


# Spends of an agent to one recipient have the same terms until the rules change.
@lru_cache(maxsize=2_048)
def _terms(text: str) -> Terms:
    return _decode_terms(text)


def _ending(row: Row) -> Ending:
    return Ending(
        approved_after=row["approved_after"],
        transfer=row["number"],
        is_released=row["status"] == "rejected",
        network_lamports=row["network_lamports"],
        released_after=tuple(row["released_after"] or ()),
    )
