"""Queries on events and the deliveries that go with them."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from bursar.db import Tx
from bursar.event.catalog import EVERYTHING
from bursar.event.model import EventFilter, EventRow
from bursar.ids import past_ids_end
from bursar.sql import DAYS_AGO, Listing, Query, columns, sweeping

_EVENT = f"""
    SELECT {columns(EventRow, "e", but=["mode"])}, r.mode
      FROM event e
      JOIN realm r ON r.id = e.realm_id
     WHERE e.realm_id = :realm_id
"""
_GET = Query(f"""
    {_EVENT}
       AND e.id = :event_id
""")
# A filter for each field of `EventFilter`.
_LIST = Listing(
    f"""
    {_EVENT}
       AND e.type = :type
       AND e.agent_id = :agent_id
       AND e.created_at >= :start
       AND e.created_at < :end
       AND (:with_keys OR e.type NOT LIKE 'key.%')
    """,
    "e.created_at",
    "e.id",
)
# By the ids, which begin with their time: an index on the time itself would be one more to write.
_DELETE = sweeping("event", "id", "id", f"id < :past AND created_at < {DAYS_AGO}")
_WANTED = Query("""
    SELECT id, realm_id, events
      FROM webhook
     WHERE realm_id = ANY(:realm_ids::int[])
       AND status = 'enabled'
       AND events && :types::text[]
""")
_INSERT_DELIVERIES = Query("""
    INSERT INTO delivery (id, webhook_id, event_id, created_at, next_attempt_at)
    SELECT d.id, d.webhook_id, d.event_id, d.at, d.at
      FROM unnest(:ids::text[], :webhook_ids::text[], :event_ids::text[], :moments::timestamptz[])
           AS d (id, webhook_id, event_id, at)
""")


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
    rows = await _WANTED.rows(tx, realm_ids=realm_ids, types=[*types, EVERYTHING])
    return [(id_, realm_id, events) for id_, realm_id, events in rows]


async def insert_deliveries(tx: Tx, rows: Sequence[tuple[str, str, str, datetime]]) -> None:
    """Rows of (id, webhook, event, created at), due at once."""
    ids, webhook_ids, event_ids, moments = zip(*rows, strict=True)
    await _INSERT_DELIVERIES.run(
        tx, ids=ids, webhook_ids=webhook_ids, event_ids=event_ids, moments=moments
    )


async def get_event(tx: Tx, realm_id: int, event_id: str) -> EventRow | None:
    row = await _GET.row(tx, realm_id=realm_id, event_id=event_id)
    return None if row is None else EventRow(*row)


async def list_events(
    tx: Tx, filters: EventFilter, before: tuple[datetime, str] | None, limit: int
) -> list[EventRow]:
    rows = await _LIST.rows(tx, before, limit, **msgspec.structs.asdict(filters))
    return [EventRow(*row) for row in rows]


async def delete_events(tx: Tx, older_than_days: int, limit: int) -> int:
    """Returns how many."""
    past = past_ids_end("evt", older_than_days)
    return await _DELETE.count(tx, past=past, days=older_than_days, limit=limit)
