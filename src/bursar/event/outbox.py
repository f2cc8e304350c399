"""Events and their deliveries, written in the transaction that causes them: never lost, never
early."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from bursar.db import Tx
from bursar.errors import check
from bursar.event import store
from bursar.event.catalog import EventType, wants
from bursar.ids import new_id

_encode = msgspec.json.Encoder().encode


class NewEvent(msgspec.Struct, frozen=True):
    realm_id: int
    type: EventType
    agent_id: str | None
    # What the API shows of the subject; bytes are JSON already.
    data: Any
    created_at: datetime
    id: str = msgspec.field(default_factory=lambda: new_id("evt"))


async def emit(tx: Tx, events: Sequence[NewEvent], *, but: str | None = None) -> None:
    """To every webhook that wants them, `but` one."""
    if not events:
        return
    await _insert(tx, events)
    await queue_deliveries(tx, events, but=but)


async def queue_deliveries(tx: Tx, events: Sequence[NewEvent], *, but: str | None = None) -> None:
    """Puts events that are written already on their way to the webhooks that want them."""
    webhooks = await store.wanted_deliveries(
        tx, list({e.realm_id for e in events}), list({e.type.value for e in events})
    )
    deliveries = [
        (new_id("dlv"), webhook_id, e.id, e.created_at)
        for webhook_id, realm_id, types in webhooks
        for e in events
        if e.realm_id == realm_id and wants(types, e.type) and webhook_id != but
    ]
    if deliveries:
        await store.insert_deliveries(tx, deliveries)


async def emit_to(tx: Tx, event: NewEvent, webhook_id: str) -> str:
    """An event for one webhook only; returns the delivery's id."""
    await _insert(tx, [event])
    return (await send_again(tx, event.id, [webhook_id], event.created_at))[0]


async def send_again(tx: Tx, event_id: str, webhook_ids: Sequence[str], now: datetime) -> list[str]:
    """A new delivery of an event to each of these; returns the deliveries' ids."""
    deliveries = [(new_id("dlv"), webhook_id, event_id, now) for webhook_id in webhook_ids]
    if deliveries:
        await store.insert_deliveries(tx, deliveries)
    return [row[0] for row in deliveries]


async def _insert(tx: Tx, events: Sequence[NewEvent]) -> None:
    for event in events:
        fits = isinstance(event.data, bytes) or type(event.data).__name__ == event.type.view
        check(fits, "an event carries what the catalogue says")
    await store.insert_events(
        tx,
        [(e.id, e.realm_id, e.type.value, e.agent_id, _json(e.data), e.created_at) for e in events],
    )


def _json(data: Any) -> str:
    return (data if isinstance(data, bytes) else _encode(data)).decode()
