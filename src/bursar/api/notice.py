"""Events about what an admin set up, which concern no single agent."""

from typing import Any

from bursar.api.call import Call
from bursar.db import moment
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit


async def emit_in_call(call: Call, type_: EventType, data: Any, *, but: str | None = None) -> None:
    """In the commit of the change; to every webhook that wants it, `but` one."""
    event = NewEvent(call.caller.realm_id, type_, None, data, await moment(call.tx))
    await emit(call.tx, [event], but=but)
