"""How an event shows itself: in lists, and as the body of a delivery."""

from typing import Any

import msgspec

from bursar.clock import iso
from bursar.config import Mode
from bursar.event.catalog import EventType
from bursar.event.model import EventRow

_encode = msgspec.json.Encoder().encode


class Event(msgspec.Struct, rename="camel", kw_only=True):
    """Something that happened. `data` is its subject as the API showed it at that moment."""

    id: str
    type: EventType
    created_at: str
    mode: Mode
    data: dict[str, Any]


def show_event(row: EventRow) -> Event:
    # Raw: the bytes that were stored are the bytes that are shown and signed.
    data: Any = msgspec.Raw(row.data.encode())
    return Event(
        id=row.id,
        type=EventType(row.type),
        created_at=iso(row.created_at),
        mode=row.mode,
        data=data,
    )


def envelope(row: EventRow) -> bytes:
    """The body of a delivery: the same bytes for every attempt, every webhook, every redelivery."""
    return _encode(show_event(row))
