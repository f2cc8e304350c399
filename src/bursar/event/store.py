"""Queries on events and the deliveries that go with them."""

from collections.abc import Sequence
from datetime import datetime

from bursar.db import Tx
from bursar.event.model import EventRow

_SELECT = (
    "SELECT e.id, e.type, e.agent_id, e.data, e.created_at, r.mode"
    " FROM event e JOIN realm r ON r.id = e.realm_id"
)


async def insert_events(
    tx: Tx, rows: Sequence[tuple[str, int, str, str | None, str, datetime]]
) -> None:
    """Rows of (id, realm, type, agent, data as JSON text, created at)."""
    await tx.copy_records_to_table(
        "event",
        columns=("id", "realm_id", "type", "agent_id", "data", "created_at"),
        records=rows,
    )


async def wanted_deliveries(
    tx: Tx, realm_ids: Sequence[int], types: Sequence[str]
) -> list[tuple[str, int, list[str]]]:
    """(webhook, realm, its event types) of the enabled webhooks that may want these events."""
    rows = await tx.fetch(
        "SELECT id, realm_id, events FROM webhook"
        " WHERE realm_id = ANY($1::int[]) AND status = 'enabled' AND events && $2::text[]",
        realm_ids,
        [*types, "*"],
    )
    return [(row["id"], row["realm_id"], row["events"]) for row in rows]


async def insert_deliveries(tx: Tx, rows: Sequence[tuple[str, str, str, datetime]]) -> None:
    """Rows of (id, webhook, event, created at), due at once."""
    ids, webhooks, events, moments = zip(*rows, strict=True)
    await tx.execute(
        "INSERT INTO delivery (id, webhook_id, event_id, created_at, next_attempt_at)"
        " SELECT d.id, d.webhook_id, d.event_id, d.at, d.at FROM"
        " unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[])"
        " AS d (id, webhook_id, event_id, at)",
        ids,
        webhooks,
        events,
        moments,
    )


async def get_event(tx: Tx, realm_id: int, event_id: str) -> EventRow | None:
    row = await tx.fetchrow(f"{_SELECT} WHERE e.id = $2 AND e.realm_id = $1", realm_id, event_id)
    return None if row is None else EventRow(*row)


async def list_events(
    tx: Tx,
    realm_id: int,
    *,
    type_: str | None,
    agent_id: str | None,
    start: datetime | None,
    end: datetime | None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> list[EventRow]:
    """Newest first. Only the conditions that are given are written, so that each list has an index
    to read from."""
    values: list[object] = [realm_id]
    where = ["e.realm_id = $1"]

    def add(condition: str, *given: object) -> None:
        numbers = [f"${len(values) + place}" for place in range(1, len(given) + 1)]
        where.append(condition.format(*numbers))
        values.extend(given)

    if type_ is not None:
        add("e.type = {}", type_)
    if agent_id is not None:
        add("e.agent_id = {}", agent_id)
    if start is not None:
        add("e.created_at >= {}", start)
    if end is not None:
        add("e.created_at < {}", end)
    if before is not None:
        add("(e.created_at, e.id) < ({}, {})", *before)
    rows = await tx.fetch(
        f"{_SELECT} WHERE {' AND '.join(where)}"
        f" ORDER BY e.created_at DESC, e.id DESC LIMIT ${len(values) + 1}",
        *values,
        limit,
    )
    return [EventRow(*row) for row in rows]


async def delete_events(tx: Tx, older_than_days: int, limit: int) -> int:
    """With their deliveries, which hang below them."""
    status = await tx.execute(
        "DELETE FROM event WHERE id IN (SELECT id FROM event"
        " WHERE created_at < clock_timestamp() - make_interval(days => $1) LIMIT $2)",
        older_than_days,
        limit,
    )
    return int(status.rpartition(" ")[2])
