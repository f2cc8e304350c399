"""Queries on events and the deliveries that go with them."""

from collections.abc import Sequence
from datetime import datetime

from bursar.db import Tx


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


async def delete_events(tx: Tx, older_than_days: int, limit: int) -> int:
    """With their deliveries, which hang below them."""
    status = await tx.execute(
        "DELETE FROM event WHERE id IN (SELECT id FROM event"
        " WHERE created_at < clock_timestamp() - make_interval(days => $1) LIMIT $2)",
        older_than_days,
        limit,
    )
    return int(status.rpartition(" ")[2])
