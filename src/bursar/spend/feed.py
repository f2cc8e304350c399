"""Events as callers see them: those that were written, and those that spends tell by themselves.

The creation of a spend has no row among the events. The spend says what was decided at once, and
its event has the letters of its id: `txn_x` was announced by `evt_x`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.event import store as event_store
from bursar.event.model import EventFilter, EventRow
from bursar.spend.model import SpendRow
from bursar.spend.store import spend_of
from bursar.spend.view import show_spend
from bursar.sql import Listing, Query, columns

# For so long events can be read and sent again.
EVENT_DAYS: Final = 90
# In a query of its own, so that the database works it out once and begins there.
_OLDEST: Final = f"(SELECT moment() - interval '{EVENT_DAYS} days')"
_OF_SPENDS: Final = "transaction."
_encode = msgspec.json.Encoder().encode

_SPEND = f"""
    SELECT {columns(SpendRow, "s")}, r.mode
      FROM spend s
      JOIN realm r ON r.id = s.realm_id
"""
_BY_ID = f"""
    {_SPEND}
     WHERE s.id = ANY(:spend_ids)
       AND s.created_at > {_OLDEST}
"""
_GET, _GET_OF_REALM = Query(_BY_ID), Query(f"{_BY_ID} AND s.realm_id = :realm_id")


def _listing(verdict: str) -> Listing:
    return Listing(
        f"""
    {_SPEND}
     WHERE s.realm_id = :realm_id {verdict}
       AND s.agent_id = :agent_id
       AND s.created_at >= :start
       AND s.created_at < :end
       AND s.created_at > {_OLDEST}
    """,
        "s.created_at",
        "s.id",
    )


# By the type that is asked for; the words let PostgreSQL use the index of the kind.
_LISTS: Final = {
    None: _listing(""),
    "transaction.approved": _listing("AND s.verdict = 'approved'"),
    "transaction.pending": _listing("AND s.verdict = 'pending'"),
    "transaction.rejected": _listing("AND s.verdict = 'rejected' AND s.status = 'rejected'"),
}


async def get_event(tx: Tx, realm_id: int, event_id: str) -> EventRow | None:
    found = await event_store.get_event(tx, realm_id, event_id)
    if found is not None:
        return found
    row = await _GET_OF_REALM.row(tx, realm_id=realm_id, spend_ids=[_spend_id(event_id)])
    return None if row is None else _event(row)


async def told_by_spends(tx: Tx, event_ids: Sequence[str]) -> dict[str, EventRow]:
    """Those of these events that spends tell, by id."""
    if not event_ids:
        return {}
    rows = await _GET.rows(tx, spend_ids=[_spend_id(event_id) for event_id in event_ids])
    return {event.id: event for event in map(_event, rows)}


async def list_events(
    tx: Tx, filters: EventFilter, before: tuple[datetime, str] | None, limit: int
) -> list[EventRow]:
    """Newest first."""
    written = await event_store.list_events(tx, filters, before, limit)
    if filters.type not in _LISTS:
        return written
    place = None if before is None else (before[0], _spend_id(before[1]))
    narrowed = msgspec.structs.asdict(filters)
    del narrowed["with_keys"]
    told = await _LISTS[narrowed.pop("type")].rows(tx, place, limit, **narrowed)
    both = [*written, *map(_event, told)]
    return sorted(both, key=lambda event: (event.created_at, event.id), reverse=True)[:limit]


def _event(row: Row) -> EventRow:
    spend = spend_of(row)
    mode: Mode = row["mode"]
    return EventRow(
        id=f"evt_{spend.id.removeprefix('txn_')}",
        type=_OF_SPENDS + spend.verdict,
        agent_id=spend.agent_id,
        data=_encode(show_spend(spend.as_created)).decode(),
        created_at=spend.created_at,
        mode=mode,
    )


def _spend_id(event_id: str) -> str:
    return f"txn_{event_id.removeprefix('evt_')}"
