"""/v1/events."""

from bursar.access.limits import Category
from bursar.access.model import PEOPLE
from bursar.api.call import Answer, Call, Resource, data, page, page_fields
from bursar.errors import not_found
from bursar.event import store
from bursar.event.catalog import EventType
from bursar.event.view import Event, show_event
from bursar.form.kinds import ID, Choice
from bursar.form.moments import Boundary
from bursar.form.record import Field
from bursar.ids import is_id

endpoints = Resource("Events", Category.WEBHOOK_MANAGEMENT)

PAGE_DEFAULT, PAGE_MOST = 20, 100
LIST_QUERY = (
    Field("type", Choice(tuple(EventType)), "Only events of this type."),
    Field("agentId", ID, "Only events about this agent."),
    Field("from", Boundary(), "Created at or after this date or time."),
    Field(
        "to",
        Boundary(),
        "Created before this time; a bare date includes that whole day.",
    ),
    *page_fields(PAGE_DEFAULT, PAGE_MOST),
)


@endpoints.get(
    "/v1/events",
    "List events",
    description="Newest first. Kept 90 days.",
    scopes=PEOPLE,
    query=LIST_QUERY,
    data=Event,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    query = call.query
    start, end = query.get("from"), query.get("to")
    limit = query.get("limit", PAGE_DEFAULT)
    rows = await store.list_events(
        call.tx,
        call.caller.realm_id,
        type_=query.get("type"),
        agent_id=query.get("agentId"),
        start=None if start is None else start.start,
        end=None if end is None else end.end,
        before=call.start,
        limit=limit + 1,
    )
    return page(call, rows, limit, lambda row: (row.created_at, row.id), show_event)


@endpoints.get(
    "/v1/events/:id",
    "Get an event",
    scopes=PEOPLE,
    data=Event,
)
async def get(call: Call) -> Answer:
    event_id = call.params["id"]
    row = None
    if is_id("evt", event_id):
        row = await store.get_event(call.tx, call.caller.realm_id, event_id)
    if row is None:
        raise not_found("event")
    return data(show_event(row))
