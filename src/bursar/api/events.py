"""/v1/events, and sending one again."""

from functools import partial

from bursar.access.limits import Category
from bursar.access.model import ADMIN, PEOPLE, Scope
from bursar.api.call import Answer, Call, Resource, data, page, page_fields
from bursar.api.webhooks import MOST_WEBHOOKS, enabled_webhook
from bursar.db import moment
from bursar.errors import ErrorCode, not_found
from bursar.event.catalog import ABOUT_KEYS, EventType, wants
from bursar.event.model import EventFilter, EventRow
from bursar.event.outbox import send_again
from bursar.event.view import Event, show_event
from bursar.form.kinds import ID, Choice
from bursar.form.moments import Boundary
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.spend import feed
from bursar.webhook import store as webhook_store
from bursar.webhook.view import Redelivery, show_delivery

endpoints = Resource("Events", Category.WEBHOOK_MANAGEMENT)

LIST_QUERY = (
    Field("type", Choice(tuple(EventType)), "Only events of this type."),
    Field("agentId", ID, "Only events about this agent."),
    Field("from", Boundary(), "Created at or after this date or time."),
    Field(
        "to",
        Boundary(),
        "Created before this time; a bare date includes that whole day.",
    ),
    *page_fields(),
)

REDELIVERY = Record(
    "RedeliveryRequest",
    (
        Field(
            "webhookId",
            ID,
            "Only to this webhook. Without it: to every enabled webhook that wants the type.",
        ),
    ),
)


@endpoints.get(
    "/v1/events",
    "List events",
    description="Newest first. Kept 90 days. Only an admin key sees those about keys.",
    scopes=PEOPLE,
    query=LIST_QUERY,
    data=Event,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    query = call.query
    start, end = query.get("from"), query.get("to")
    filters = EventFilter(
        realm_id=call.caller.realm_id,
        type=query.get("type"),
        agent_id=query.get("agentId"),
        start=None if start is None else start.start,
        end=None if end is None else end.end,
        with_keys=_sees_keys(call),
    )
    return await page(call, partial(feed.list_events, call.tx, filters), show_event)


@endpoints.get(
    "/v1/events/:id",
    "Get an event",
    scopes=PEOPLE,
    data=Event,
)
async def get(call: Call) -> Answer:
    return data(show_event(await _existing(call)))


@endpoints.post(
    "/v1/events/:id/redeliver",
    "Send an event again",
    scopes=ADMIN,
    body=REDELIVERY,
    data=Redelivery,
    errors=(ErrorCode.INVALID_STATE,),
)
async def redeliver(call: Call) -> Answer:
    event = await _existing(call)
    webhook_id: str | None = call.body.get("webhookId")
    if webhook_id is not None:
        webhook_ids = [(await enabled_webhook(call, webhook_id)).id]
    else:
        rows = await webhook_store.list_webhooks(call.tx, call.caller.realm_id, None, MOST_WEBHOOKS)
        webhook_ids = [
            row.id for row in rows if row.status == "enabled" and wants(row.events, event.type)
        ]
    now = await moment(call.tx)
    made = await send_again(call.tx, event.id, webhook_ids, now)
    shown = [show_delivery(row) for row in await webhook_store.get_deliveries(call.tx, made)]
    return data(Redelivery(event_id=event.id, deliveries=shown))


async def _existing(call: Call) -> EventRow:
    event_id, row = call.params["id"], None
    if is_id("evt", event_id):
        row = await feed.get_event(call.tx, call.caller.realm_id, event_id)
    if row is None or (row.type in ABOUT_KEYS and not _sees_keys(call)):
        raise not_found("event")
    return row


def _sees_keys(call: Call) -> bool:
    """Only admin keys read about keys, here as in the audit log."""
    return call.caller.scope is Scope.ADMIN
