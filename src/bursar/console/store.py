"""What the console asks beyond the API: sums over all agents, charts, and what is on its way.

Every query reads from an index and looks at a bounded number of rows, whatever the books hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import msgspec

from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.errors import present
from bursar.spend.stats import ACCOUNT_WIDE

# Agents that sums and searches look at, the newest first; a page that met this limit says so.
MOST_AGENTS: Final = 20_000
# Transactions that the chart of hours is drawn from, the newest first.
MOST_SPENDS: Final = 50_000
# Counting stops here; the page then says "1,000+".
MOST_COUNTED: Final = 1_000


async def newest_event(tx: Tx, realm_id: int, agent_id: str | None) -> str:
    """The mark of a moment: as long as it is the same, nothing that is told of has changed."""
    whose, value = ("realm_id", realm_id) if agent_id is None else ("agent_id", agent_id)
    found = await tx.fetchval(
        f"SELECT id FROM event WHERE {whose} = $1 ORDER BY created_at DESC, id DESC LIMIT 1", value
    )
    return found or "none"


# Agents -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Budget:
    """An agent and where it stands today."""

    id: str
    name: str
    status: str
    frozen: bool
    cap_micros: int
    spent_micros: int
    available_micros: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """All agents that are not terminated, added up, and those that need a look."""

    agents: int
    active: int
    stopped: int
    cap_micros: int
    spent_micros: int
    available_micros: int
    reserved_micros: int
    held: int
    near_cap: list[Budget]
    low: list[Budget]

    @property
    def cut(self) -> bool:
        """Whether there are more agents than were looked at."""
        return self.agents >= MOST_AGENTS


_BUDGET: Final = (
    "a.id, a.name, a.status, p.frozen, p.cap_micros_daily AS cap_micros,"
    " coalesce(u.spent_micros, 0) AS spent_micros,"
    " w.credits_posted - w.debits_posted - w.debits_pending AS available_micros"
)
# The use of a day is looked up agent by agent: the planner would rather read all days of all time,
# which OFFSET 0 keeps it from.
_JOINS: Final = (
    " JOIN policy p ON p.agent_id = a.id AND p.version = a.policy_version"
    " JOIN wallet w ON w.agent_id = a.id"
    " LEFT JOIN LATERAL (SELECT spent_micros FROM usage WHERE agent_id = a.id"
    " AND window_kind = 'day' AND window_start = $2 OFFSET 0) AS u ON true"
)


async def fleet(tx: Tx, realm_id: int, today: date, listed: int) -> Fleet:
    rows = await tx.fetch(
        f"WITH fleet AS MATERIALIZED (SELECT {_BUDGET}, w.debits_pending, w.held, w.is_low"
        " FROM (SELECT id, name, status, policy_version FROM agent"
        " WHERE realm_id = $1 AND status <> 'terminated' ORDER BY created_at DESC, id DESC"
        f" LIMIT $3) AS a{_JOINS}),"
        " near AS (SELECT * FROM fleet WHERE spent_micros > 0 AND spent_micros >= cap_micros / 10"
        " * 8 ORDER BY cap_micros - spent_micros, id LIMIT $4),"
        " low AS (SELECT * FROM fleet WHERE is_low ORDER BY available_micros, id LIMIT $4)"
        " SELECT 'total' AS kind, '' AS id, '' AS name, '' AS status, false AS frozen,"
        " coalesce(sum(cap_micros), 0)::numeric AS cap_micros,"
        " coalesce(sum(spent_micros), 0)::numeric AS spent_micros,"
        " coalesce(sum(available_micros), 0)::numeric AS available_micros,"
        " coalesce(sum(debits_pending), 0)::numeric AS reserved_micros, count(*) AS agents,"
        " count(*) FILTER (WHERE status = 'active' AND NOT frozen) AS active,"
        " count(*) FILTER (WHERE held) AS held FROM fleet"
        " UNION ALL SELECT 'near', id, name, status, frozen, cap_micros, spent_micros,"
        " available_micros, 0, 0, 0, 0 FROM near"
        " UNION ALL SELECT 'low', id, name, status, frozen, cap_micros, spent_micros,"
        " available_micros, 0, 0, 0, 0 FROM low",
        realm_id,
        today,
        MOST_AGENTS,
        listed,
    )
    (total,) = [row for row in rows if row["kind"] == "total"]
    return Fleet(
        agents=total["agents"],
        active=total["active"],
        stopped=total["agents"] - total["active"],
        cap_micros=int(total["cap_micros"]),
        spent_micros=int(total["spent_micros"]),
        available_micros=int(total["available_micros"]),
        reserved_micros=int(total["reserved_micros"]),
        held=total["held"],
        near_cap=[_budget(row) for row in rows if row["kind"] == "near"],
        low=[_budget(row) for row in rows if row["kind"] == "low"],
    )


async def budgets(
    tx: Tx, realm_id: int, today: date, agent_ids: Sequence[str]
) -> dict[str, Budget]:
    """Names and standings of a page's agents."""
    rows = await tx.fetch(
        f"SELECT {_BUDGET} FROM agent a{_JOINS} WHERE a.realm_id = $1 AND a.id = ANY($3::text[])",
        realm_id,
        today,
        list(set(agent_ids)),
    )
    return {row["id"]: _budget(row) for row in rows}


Place = tuple[datetime, str]


async def search_agents(
    tx: Tx,
    realm_id: int,
    *,
    words: str,
    status: str | None,
    metadata: Mapping[str, str],
    before: Place | None,
    limit: int,
) -> tuple[list[str], Place | None]:
    """Ids of agents whose name holds the words, or whose id or address they are; newest first. With
    the place to go on from, where there may be more.

    Walks the newest agents in order, stops as soon as the page is full, and never goes far.
    """
    arguments: list[Any] = [realm_id]

    def bind(value: Any) -> str:
        arguments.append(value)
        return f"${len(arguments)}"

    pairs = msgspec.json.encode(metadata).decode()
    walk = "SELECT a.id, a.created_at, a.name, a.metadata FROM agent a WHERE a.realm_id = $1"
    if status is not None:
        walk += f" AND a.status = {bind(status)}"
    if before is not None:
        walk += (
            f" AND (a.created_at, a.id) < ({bind(before[0])}::timestamptz, {bind(before[1])}::text)"
        )
    walk += " ORDER BY a.created_at DESC, a.id DESC"
    beyond = await tx.fetchrow(f"{walk} OFFSET {MOST_AGENTS - 1} LIMIT 1", *arguments)
    rows = await tx.fetch(
        f"SELECT id, created_at FROM ({walk} LIMIT {MOST_AGENTS}) AS walked"
        f" WHERE strpos(lower(name), lower({bind(words)})) > 0"
        f" AND metadata @> {bind(pairs)}::jsonb"
        f" LIMIT {int(limit) + 1}",
        *arguments,
    )
    found: list[Place] = [(row["created_at"], row["id"]) for row in rows]
    if before is None:
        named = await _named(tx, realm_id, words, status, pairs)
        found = [one for one in named if one not in found] + found
    ids = [agent_id for _, agent_id in found[:limit]]
    if len(found) > limit:
        return ids, found[limit - 1]
    return ids, None if beyond is None else (beyond["created_at"], beyond["id"])


async def _named(
    tx: Tx, realm_id: int, id_or_address: str, status: str | None, metadata: str
) -> list[Place]:
    rows = await tx.fetch(
        "SELECT a.created_at, a.id FROM agent a JOIN (SELECT $2::text AS id"
        " UNION SELECT agent_id FROM wallet WHERE address = $2) AS named USING (id)"
        " WHERE a.realm_id = $1 AND ($3::text IS NULL OR a.status = $3)"
        " AND a.metadata @> $4::jsonb",
        realm_id,
        id_or_address,
        status,
        metadata,
    )
    return [(row["created_at"], row["id"]) for row in rows]


def _budget(row: Row) -> Budget:
    return Budget(
        id=row["id"],
        name=row["name"],
        status=row["status"],
        frozen=row["frozen"],
        cap_micros=int(row["cap_micros"]),
        spent_micros=int(row["spent_micros"]),
        available_micros=int(row["available_micros"]),
    )


# Charts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """What was settled, and how many spends there were and how many were refused, in one hour or
    one day, by when they were made."""

    start: datetime | date
    settled_micros: int
    spends: int
    rejected: int


async def spend_by_hour(tx: Tx, realm_id: int, since: datetime) -> list[Bucket]:
    """Hours that saw something. Where there are more transactions than are looked at, the oldest
    hour that is given is not whole."""
    rows = await tx.fetch(
        "SELECT date_bin('1 hour', created_at, '2000-01-01Z') AS start,"
        " coalesce(sum(amount_micros) FILTER (WHERE status = 'settled'), 0)::bigint AS micros,"
        " count(*) FILTER (WHERE status = 'rejected') AS rejected, count(*) AS spends"
        " FROM (SELECT created_at, status, amount_micros FROM spend"
        " WHERE realm_id = $1 AND created_at >= $2 ORDER BY created_at DESC, id DESC LIMIT $3) AS s"
        " GROUP BY 1 ORDER BY 1",
        realm_id,
        since,
        MOST_SPENDS,
    )
    if rows and sum(row["spends"] for row in rows) >= MOST_SPENDS:
        rows = rows[1:]
    return [Bucket(r["start"], r["micros"], r["spends"], r["rejected"]) for r in rows]


async def spend_by_day(tx: Tx, realm_id: int, agent_id: str | None, since: date) -> list[Bucket]:
    """From the running totals, so the number of transactions does not matter."""
    rows = await tx.fetch(
        "SELECT day, sum(settled_micros)::bigint AS micros, sum(spend_count)::bigint AS spends,"
        " sum(rejected_count)::bigint AS rejected FROM spend_total"
        " WHERE realm_id = $1 AND agent_id = $2 AND day >= $3 GROUP BY day ORDER BY day",
        realm_id,
        ACCOUNT_WIDE if agent_id is None else agent_id,
        since,
    )
    return [Bucket(r["day"], r["micros"], r["spends"], r["rejected"]) for r in rows]


# What is on its way -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many, up to MOST_COUNTED, and since when the oldest."""

    count: int
    oldest: datetime | None


async def waiting_spends(tx: Tx, realm_id: int, status: str) -> Waiting:
    row = await tx.fetchrow(
        "SELECT count(*) AS count, min(created_at) AS oldest FROM (SELECT created_at FROM spend"
        " WHERE realm_id = $1 AND status = $2 ORDER BY created_at, id LIMIT $3) AS s",
        realm_id,
        status,
        MOST_COUNTED,
    )
    row = present(row, "the statement returns a row")
    return Waiting(row["count"], row["oldest"])


async def payments_in_doubt(tx: Tx, realm_id: int, mode: Mode) -> int:
    """Payments of which it is not known whether they were made; few, or a matter for a person."""
    return await tx.fetchval(
        "SELECT count(*) FROM (SELECT 1 FROM submission s JOIN payment p ON p.id = s.payment_id"
        " WHERE s.mode = $2 AND s.state = 'live' AND s.in_doubt AND p.realm_id = $1 LIMIT $3) AS s",
        realm_id,
        mode,
        MOST_COUNTED,
    )


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook and how its deliveries go."""

    id: str
    url: str
    status: str
    disabled_reason: str | None
    failing_since: datetime | None
    waiting: int
    oldest: datetime | None


async def hooks(tx: Tx, realm_id: int, webhook_id: str | None = None) -> dict[str, Hook]:
    """All of an account's webhooks, of which there are at most a hundred; or one of them."""
    rows = await tx.fetch(
        "SELECT w.id, w.url, w.status, w.disabled_reason, w.failing_since, d.waiting, d.oldest"
        " FROM (SELECT * FROM webhook WHERE realm_id = $1 AND ($3::text IS NULL OR id = $3)"
        " ORDER BY created_at DESC, id DESC LIMIT 100) AS w CROSS JOIN LATERAL"
        " (SELECT count(*) AS waiting, min(s.created_at) AS oldest FROM (SELECT created_at"
        " FROM delivery WHERE webhook_id = w.id AND status = 'pending' ORDER BY next_attempt_at"
        " LIMIT $2) AS s) AS d",
        realm_id,
        MOST_COUNTED,
        webhook_id,
    )
    return {row["id"]: Hook(*row) for row in rows}


async def deliveries_mark(tx: Tx, realm_id: int, webhook_id: str, listed: int) -> str:
    """Changes whenever one of a webhook's newest deliveries does."""
    found = await tx.fetchval(
        "SELECT md5(string_agg(concat_ws(' ', d.id, d.status, d.attempt_count, w.status), ','))"
        " FROM webhook w CROSS JOIN LATERAL (SELECT id, status, attempt_count FROM delivery"
        " WHERE webhook_id = w.id ORDER BY created_at DESC, id DESC LIMIT $3) AS d"
        " WHERE w.id = $2 AND w.realm_id = $1",
        realm_id,
        webhook_id,
        listed,
    )
    return found or "none"
