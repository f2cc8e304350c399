"""Queries that the API does not have: sums over all agents, charts, and what is waiting.

Every query uses an index and reads a bounded number of rows, however many there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import msgspec

from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.spend.totals import ACCOUNT_WIDE
from bursar.sql import Filtered, Query, columns, made, made_or_none

# How many agents sums and searches look at, newest first; a page that reached the limit says so.
MOST_AGENTS: Final = 20_000
# How many transactions the chart by hour is drawn from, newest first.
MOST_SPENDS: Final = 50_000
# Counting stops here; the page then says "1,000+".
MOST_COUNTED: Final = 1_000

# The creation of a spend has no event of its own.
_NEWEST_EVENT = Filtered("""
    SELECT (SELECT id
              FROM event
             WHERE true
               AND realm_id = :realm_id
               AND agent_id = :agent_id
             ORDER BY created_at DESC, id DESC
             LIMIT 1) AS event_id,
           (SELECT id
              FROM spend
             WHERE true
               AND realm_id = :realm_id
               AND agent_id = :agent_id
             ORDER BY created_at DESC, id DESC
             LIMIT 1) AS spend_id
""")


async def newest_event(tx: Tx, realm_id: int, agent_id: str | None) -> str:
    """A mark for pages that refresh: while it is the same, nothing that has events has changed."""
    realm = realm_id if agent_id is None else None
    rows = await _NEWEST_EVENT.rows(tx, realm_id=realm, agent_id=agent_id)
    return f"{rows[0]['event_id']}/{rows[0]['spend_id']}"


# Agents -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """An agent and where it stands today."""

    id: str
    name: str
    status: str
    frozen: bool
    cap_micros: int
    spent_micros: int
    available_micros: int


@dataclass(frozen=True, slots=True)
class Named:
    """An agent, a budget or a key."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class OnTheChain:
    """What an address or a signature belongs to: a spend, or else a wallet of the agent."""

    id: str
    agent_id: str
    is_spend: bool


@dataclass(frozen=True, slots=True)
class Fleet:
    """Sums over all agents that are not terminated, and the agents that need attention."""

    agents: int
    active: int
    stopped: int
    cap_micros: int
    spent_micros: int
    available_micros: int
    reserved_micros: int
    frozen_wallets: int
    near_cap: list[Standing]
    low: list[Standing]

    @property
    def cut(self) -> bool:
        """Whether there are more agents than the query read."""
        return self.agents >= MOST_AGENTS


_STANDING = """
           a.id, a.name, a.status, p.frozen, p.cap_micros_daily AS cap_micros,
           CASE WHEN (w.windows_at AT TIME ZONE 'UTC')::date >= :today
                THEN w.day_micros ELSE 0 END AS spent_micros,
           w.credits_posted - w.debits_posted - w.debits_pending AS available_micros"""
_JOINS = """
      JOIN policy p ON p.agent_id = a.id AND p.version = a.policy_version
      JOIN wallet w ON w.agent_id = a.id"""
_FLEET = Query(f"""
    WITH fleet AS MATERIALIZED (
        SELECT {_STANDING}, w.debits_pending, w.is_frozen, w.is_low
          FROM (SELECT id, name, status, policy_version
                  FROM agent
                 WHERE realm_id = :realm_id
                   AND status <> 'terminated'
                 ORDER BY created_at DESC, id DESC
                 LIMIT :most) AS a
        {_JOINS}),
    near AS (
        SELECT *
          FROM fleet
         WHERE spent_micros > 0
           AND spent_micros >= cap_micros / 10 * 8
         ORDER BY cap_micros - spent_micros, id
         LIMIT :listed),
    low AS (
        SELECT *
          FROM fleet
         WHERE is_low
         ORDER BY available_micros, id
         LIMIT :listed)
    SELECT 'total' AS kind, '' AS id, '' AS name, '' AS status, false AS frozen,
           coalesce(sum(cap_micros), 0)::numeric AS cap_micros,
           coalesce(sum(spent_micros), 0)::numeric AS spent_micros,
           coalesce(sum(available_micros), 0)::numeric AS available_micros,
           coalesce(sum(debits_pending), 0)::numeric AS reserved_micros,
           count(*) AS agents,
           count(*) FILTER (WHERE status = 'active' AND NOT frozen) AS active,
           count(*) FILTER (WHERE is_frozen) AS frozen_wallets
      FROM fleet
     UNION ALL
    SELECT 'near', {columns(Standing)}, 0, 0, 0, 0 FROM near
     UNION ALL
    SELECT 'low', {columns(Standing)}, 0, 0, 0, 0 FROM low
""")
_STANDINGS = Query(f"""
    SELECT {_STANDING}
      FROM agent a
    {_JOINS}
     WHERE a.realm_id = :realm_id
       AND a.id = ANY(:agent_ids::text[])
""")
# Spends count in the budget that their agent was under when they were asked for.
_UNDER_FROZEN = Query("""
    WITH RECURSIVE above AS (
      SELECT s.id, b.parent_id, b.frozen
        FROM spend s
        JOIN budget b ON b.id = s.budget_id
       WHERE s.realm_id = :realm_id
         AND s.id = ANY(:spend_ids::text[])
      UNION ALL
      SELECT a.id, p.parent_id, p.frozen
        FROM above a
        JOIN budget p ON p.id = a.parent_id)
    SELECT DISTINCT id
      FROM above
     WHERE frozen
""")
_WALK = """
    SELECT a.id, a.created_at, a.name, a.metadata
      FROM agent a
     WHERE a.realm_id = :realm_id
       AND a.status = :status
       AND a.budget_id = :budget_id
       AND (a.created_at, a.id) < (:before_at, :before_id)
     ORDER BY a.created_at DESC, a.id DESC
"""
_LAST_WALKED = Filtered(f"{_WALK} OFFSET {MOST_AGENTS - 1} LIMIT 1")
_SEARCH = Filtered(f"""
    SELECT created_at, id
      FROM ({_WALK} LIMIT {MOST_AGENTS}) AS walked
     WHERE strpos(lower(name), lower(:words)) > 0
       AND metadata @> :metadata::jsonb
     LIMIT :limit
""")
_NAMED = Filtered("""
    SELECT a.created_at, a.id
      FROM agent a
      JOIN (SELECT :id_or_address::text AS id
             UNION
            SELECT agent_id FROM wallet WHERE address = :id_or_address) AS named USING (id)
     WHERE a.realm_id = :realm_id
       AND a.status = :status
       AND a.budget_id = :budget_id
       AND a.metadata @> :metadata::jsonb
""")
_NEWEST_NAMES = Query("""
    SELECT id, name
      FROM agent
     WHERE realm_id = :realm_id
     ORDER BY created_at DESC, id DESC
     LIMIT :limit
""")
_NAMES = Query(f"""
    SELECT id, name
      FROM agent
     WHERE realm_id = :realm_id
       AND id = :words
     UNION ALL
   (SELECT id, name
      FROM (SELECT id, name, created_at
              FROM agent
             WHERE realm_id = :realm_id
             ORDER BY created_at DESC, id DESC
             LIMIT {MOST_AGENTS}) AS walked
     WHERE strpos(lower(name), lower(:words)) > 0
     ORDER BY lower(name) = lower(:words) DESC, created_at DESC, id DESC
     LIMIT :limit)
""")
_BUDGETS_NAMED = Query("""
    SELECT id, name
      FROM budget
     WHERE realm_id = :realm_id
       AND strpos(lower(name), lower(:words)) > 0
     ORDER BY lower(name) = lower(:words) DESC, created_at DESC, id DESC
     LIMIT :limit
""")
_KEYS_NAMED = Query(f"""
    SELECT id, name
      FROM (SELECT id, name, created_at
              FROM api_key
             WHERE realm_id = :realm_id
             ORDER BY created_at DESC, id DESC
             LIMIT {MOST_AGENTS}) AS walked
     WHERE strpos(lower(name), lower(:words)) > 0
     ORDER BY lower(name) = lower(:words) DESC, created_at DESC, id DESC
     LIMIT :limit
""")
_ON_THE_CHAIN = Query("""
    SELECT id, agent_id, true AS is_spend
      FROM spend
     WHERE signature = :words AND realm_id = :realm_id
     UNION ALL
    SELECT id, agent_id, false
      FROM withdrawal
     WHERE signature = :words AND realm_id = :realm_id
     UNION ALL
    SELECT agent_id, agent_id, false
      FROM wallet
     WHERE address = :words AND realm_id = :realm_id
     LIMIT 1
""")
_BUDGET_NAMES = Query("""
    SELECT id, name
      FROM budget
     WHERE realm_id = :realm_id
       AND id = ANY(:budget_ids::text[])
""")


_KEY_NAMES = Query("""
    SELECT id, name
      FROM api_key
     WHERE realm_id = :realm_id
       AND id = ANY(:key_ids::text[])
""")


async def fleet(tx: Tx, realm_id: int, today: date, listed: int) -> Fleet:
    rows = await _FLEET.rows(tx, realm_id=realm_id, today=today, most=MOST_AGENTS, listed=listed)
    (total,) = [row for row in rows if row["kind"] == "total"]
    return Fleet(
        agents=total["agents"],
        active=total["active"],
        stopped=total["agents"] - total["active"],
        cap_micros=int(total["cap_micros"]),
        spent_micros=int(total["spent_micros"]),
        available_micros=int(total["available_micros"]),
        reserved_micros=int(total["reserved_micros"]),
        frozen_wallets=total["frozen_wallets"],
        near_cap=[_standing(row) for row in rows if row["kind"] == "near"],
        low=[_standing(row) for row in rows if row["kind"] == "low"],
    )


async def standings(
    tx: Tx, realm_id: int, today: date, agent_ids: Sequence[str]
) -> dict[str, Standing]:
    """Names and today's figures of the agents that a page shows."""
    rows = await _STANDINGS.rows(tx, realm_id=realm_id, today=today, agent_ids=list(set(agent_ids)))
    return {row["id"]: _standing(row) for row in rows}


async def under_frozen_budgets(tx: Tx, realm_id: int, spend_ids: Sequence[str]) -> set[str]:
    """Those of the spends that a frozen budget is above."""
    rows = await _UNDER_FROZEN.rows(tx, realm_id=realm_id, spend_ids=spend_ids)
    return {row["id"] for row in rows}


async def named_agents(tx: Tx, realm_id: int, words: str, limit: int) -> list[Named]:
    """Agents whose name contains the words or whose id they are: those that are called just so
    first, then the newest. The newest of all when there are no words."""
    if words:
        rows = await _NAMES.rows(tx, realm_id=realm_id, words=words, limit=limit)
    else:
        rows = await _NEWEST_NAMES.rows(tx, realm_id=realm_id, limit=limit)
    return [made(Named, row) for row in rows]


async def named_budgets(tx: Tx, realm_id: int, words: str, limit: int) -> list[Named]:
    rows = await _BUDGETS_NAMED.rows(tx, realm_id=realm_id, words=words, limit=limit)
    return [made(Named, row) for row in rows]


async def named_keys(tx: Tx, realm_id: int, words: str, limit: int) -> list[Named]:
    rows = await _KEYS_NAMED.rows(tx, realm_id=realm_id, words=words, limit=limit)
    return [made(Named, row) for row in rows]


async def on_the_chain(tx: Tx, realm_id: int, words: str) -> OnTheChain | None:
    """By a whole signature or a wallet's whole address, from their unique indexes."""
    row = await _ON_THE_CHAIN.row(tx, realm_id=realm_id, words=words)
    return made_or_none(OnTheChain, row)


async def budget_names(tx: Tx, realm_id: int, budget_ids: Sequence[str]) -> dict[str, str]:
    rows = await _BUDGET_NAMES.rows(tx, realm_id=realm_id, budget_ids=list(budget_ids))
    return {row["id"]: row["name"] for row in rows}


async def key_names(tx: Tx, realm_id: int, key_ids: Sequence[str]) -> dict[str, str]:
    rows = await _KEY_NAMES.rows(tx, realm_id=realm_id, key_ids=list(set(key_ids)))
    return {row["id"]: row["name"] for row in rows}


Place = tuple[datetime, str]


async def search_agents(
    tx: Tx,
    realm_id: int,
    *,
    words: str,
    status: str | None,
    budget_id: str | None,
    metadata: Mapping[str, str],
    before: Place | None,
    limit: int,
) -> tuple[list[str], Place | None]:
    """Ids of agents whose name contains the words, or whose id or address they are, newest first;
    and where to continue if there may be more.

    The query goes through the agents, newest first, and stops when the page is full or after
    `MOST_AGENTS`.
    """
    before_at, before_id = before or (None, None)
    walk = {
        "realm_id": realm_id,
        "status": status,
        "budget_id": budget_id,
        "before_at": before_at,
        "before_id": before_id,
    }
    pairs = msgspec.json.encode(metadata).decode()
    last_walked = await _LAST_WALKED.rows(tx, **walk)
    rows = await _SEARCH.rows(tx, **walk, words=words, metadata=pairs, limit=limit + 1)
    if before is None:
        named = await _NAMED.rows(
            tx,
            realm_id=realm_id,
            id_or_address=words,
            status=status,
            budget_id=budget_id,
            metadata=pairs,
        )
        rows = [row for row in named if row not in rows] + rows
    ids = [row["id"] for row in rows[:limit]]
    if len(rows) > limit:
        return ids, _place(rows[limit - 1])
    return ids, _place(last_walked[0]) if last_walked else None


def _place(row: Row) -> Place:
    return row["created_at"], row["id"]


def _standing(row: Row) -> Standing:
    return made(
        Standing,
        row,
        cap_micros=int(row["cap_micros"]),
        spent_micros=int(row["spent_micros"]),
        available_micros=int(row["available_micros"]),
    )


# Charts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """One hour or day of spends, by when they were requested: how much was settled, how many there
    were, and how many were refused."""

    start: datetime | date
    settled_micros: int
    spends: int
    rejected: int


_BY_HOUR = Query("""
    SELECT date_bin('1 hour', created_at, '2000-01-01Z') AS start,
           coalesce(sum(amount_micros) FILTER (WHERE status = 'settled'), 0)::bigint
               AS settled_micros,
           count(*) AS spends,
           count(*) FILTER (WHERE status = 'rejected') AS rejected
      FROM (SELECT created_at, status, amount_micros
              FROM spend
             WHERE realm_id = :realm_id
               AND created_at >= :since
             ORDER BY created_at DESC, id DESC
             LIMIT :most) AS s
     GROUP BY 1
     ORDER BY 1
""")
_BY_DAY = Query("""
    SELECT day AS start,
           sum(settled_micros)::bigint AS settled_micros,
           sum(spend_count)::bigint AS spends,
           sum(rejected_count)::bigint AS rejected
      FROM (SELECT day, settled_micros, spend_count, rejected_count
              FROM day_total
             WHERE realm_id = :realm_id AND agent_id = :agent_id AND day >= :since
            UNION ALL
            SELECT day, settled_micros, spend_count, rejected_count
              FROM total_delta
             WHERE realm_id = :realm_id AND (:agent_id = '' OR agent_id = :agent_id)
               AND day >= :since) AS t
     GROUP BY day
     ORDER BY day
""")
_SETTLED_BY_DAY = Query("""
    SELECT agent_id, day, sum(settled_micros)::bigint AS settled_micros
      FROM (SELECT agent_id, day, settled_micros
              FROM day_total
             WHERE realm_id = :realm_id AND agent_id = ANY(:agent_ids::text[]) AND day >= :since
            UNION ALL
            SELECT agent_id, day, settled_micros
              FROM total_delta
             WHERE realm_id = :realm_id AND agent_id = ANY(:agent_ids::text[])
               AND day >= :since) AS t
     GROUP BY agent_id, day
""")


async def spend_by_hour(tx: Tx, realm_id: int, since: datetime) -> list[Bucket]:
    """Hours with spends. The oldest hour is left out if it may be incomplete because the query
    reached its bound."""
    rows = await _BY_HOUR.rows(tx, realm_id=realm_id, since=since, most=MOST_SPENDS)
    buckets = [Bucket(**row) for row in rows]
    return buckets[1:] if sum(bucket.spends for bucket in buckets) >= MOST_SPENDS else buckets


async def spend_by_day(tx: Tx, realm_id: int, agent_id: str | None, since: date) -> list[Bucket]:
    """From the running totals, so the number of transactions does not matter."""
    whose = ACCOUNT_WIDE if agent_id is None else agent_id
    rows = await _BY_DAY.rows(tx, realm_id=realm_id, agent_id=whose, since=since)
    return [Bucket(**row) for row in rows]


async def settled_by_day(
    tx: Tx, realm_id: int, agent_ids: Sequence[str], since: date
) -> dict[str, dict[date, int]]:
    """What each agent of a page paid on its days, from the running totals: one query."""
    found: dict[str, dict[date, int]] = {}
    rows = await _SETTLED_BY_DAY.rows(tx, realm_id=realm_id, agent_ids=list(agent_ids), since=since)
    for row in rows:
        found.setdefault(row["agent_id"], {})[row["day"]] = row["settled_micros"]
    return found


# What is on its way -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many wait (counted up to MOST_COUNTED), and since when the oldest does."""

    count: int
    oldest: datetime | None


_WAITING = Query("""
    SELECT count(*) AS count, min(created_at) AS oldest
      FROM (SELECT created_at
              FROM spend
             WHERE realm_id = :realm_id
               AND status = :status
             ORDER BY created_at, id
             LIMIT :most) AS s
""")
_IN_DOUBT = Query("""
    SELECT count(*)
      FROM (SELECT
              FROM submission s
              JOIN payment p ON p.id = s.payment_id
             WHERE s.mode = :mode
               AND s.state = 'live'
               AND s.in_doubt
               AND p.realm_id = :realm_id
             LIMIT :most) AS s
""")


async def waiting_spends(tx: Tx, realm_id: int, status: str) -> Waiting:
    row = await _WAITING.one(tx, realm_id=realm_id, status=status, most=MOST_COUNTED)
    return Waiting(**row)


async def payments_in_doubt(tx: Tx, realm_id: int, mode: Mode) -> int:
    """Payments of which it is not known whether they were made. There should be none or few."""
    return await _IN_DOUBT.value(tx, realm_id=realm_id, mode=mode, most=MOST_COUNTED)


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook and the state of its deliveries."""

    id: str
    url: str
    status: str
    disabled_reason: str | None
    failing_since: datetime | None
    waiting: int
    oldest: datetime | None


_HOOKS = Query(f"""
    SELECT {columns(Hook, "w", but=["waiting", "oldest"])}, d.waiting, d.oldest
      FROM (SELECT *
              FROM webhook
             WHERE realm_id = :realm_id
               AND (:webhook_id::text IS NULL OR id = :webhook_id)
             ORDER BY created_at DESC, id DESC
             LIMIT 100) AS w
     CROSS JOIN LATERAL (SELECT count(*) AS waiting, min(s.created_at) AS oldest
                           FROM (SELECT created_at
                                   FROM delivery
                                  WHERE webhook_id = w.id
                                    AND status = 'pending'
                                  ORDER BY next_attempt_at
                                  LIMIT :most) AS s) AS d
""")
_DELIVERIES_MARK = Query("""
    SELECT md5(string_agg(concat_ws(' ', d.id, d.status, d.attempt_count, w.status), ','))
      FROM webhook w
     CROSS JOIN LATERAL (SELECT id, status, attempt_count
                           FROM delivery
                          WHERE webhook_id = w.id
                          ORDER BY created_at DESC, id DESC
                          LIMIT :listed) AS d
     WHERE w.id = :webhook_id
       AND w.realm_id = :realm_id
""")


async def hooks(tx: Tx, realm_id: int, webhook_id: str | None = None) -> dict[str, Hook]:
    """All of an account's webhooks (at most a hundred), or one of them."""
    rows = await _HOOKS.rows(tx, realm_id=realm_id, webhook_id=webhook_id, most=MOST_COUNTED)
    return {row["id"]: Hook(**row) for row in rows}


async def deliveries_mark(tx: Tx, realm_id: int, webhook_id: str, listed: int) -> str:
    """Changes whenever one of a webhook's newest deliveries does."""
    mark = await _DELIVERIES_MARK.value(tx, realm_id=realm_id, webhook_id=webhook_id, listed=listed)
    return mark or "none"
