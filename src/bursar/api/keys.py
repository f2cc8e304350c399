"""/v1/keys, /v1/me and /v1/audit-log."""

from collections.abc import Sequence
from typing import Any

from bursar.access import issue, store
from bursar.access.limits import Category
from bursar.access.model import ADMIN, ANYONE, PEOPLE, Caller, LogFilter, LogRow, Scope
from bursar.access.view import (
    CategoryLimit,
    CreatedKey,
    Key,
    LogLine,
    Me,
    key_fields,
    show_key,
    show_log_line,
)
from bursar.api.call import Answer, Call, Resource, Services, Stream, Unit, data, page, page_fields
from bursar.errors import ErrorCode, Fault
from bursar.form.cursor import Place
from bursar.form.kinds import ID, Choice, Text
from bursar.form.moments import Boundary, Moment
from bursar.form.record import Field, Record
from bursar.http.export import csv_of

endpoints = Resource("Keys", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

PAGE_DEFAULT, PAGE_MOST = 20, 100
LIST_QUERY = page_fields(PAGE_DEFAULT, PAGE_MOST)
NEW_KEY = Record(
    "NewKey",
    (
        Field("name", Text(1, 100, trim=True), "What the key is for.", required=True),
        Field("scope", Choice(tuple(Scope)), "What the key may do.", required=True),
        Field(
            "agentId",
            ID,
            "The agent that a key of scope `agent` is bound to.",
            nullable=True,
        ),
        Field("expiresAt", Moment(), "When it stops working; null: never.", nullable=True),
    ),
)
LOG_FILTERS = (
    Field("actor", Text(1, 100), "Only what this key did, or `operator`."),
    Field("action", Text(1, 100), "Only this action, e.g. `agent.changed`."),
    Field("subject", Text(1, 300), "Only what was done to this id or hostname."),
    Field("from", Boundary(), "Done at or after this date or time."),
    Field("to", Boundary(), "Done before this time; a bare date includes that whole day."),
)
LOG_QUERY = (*LOG_FILTERS, *page_fields(PAGE_DEFAULT, PAGE_MOST))
_LOG_COLUMNS = (
    "id", "createdAt", "actor", "action", "subject", "requestId", "before", "after",
)  # fmt: skip


def faults(services: Services, caller: Caller, body: dict[str, Any]) -> list[Fault]:
    """Fields that do not go together, or not with the time."""
    del caller
    scope, agent_id = body.get("scope"), body.get("agentId")
    # What is no text is named by its own field.
    known = scope in tuple(Scope) and (agent_id is None or isinstance(agent_id, str))
    return issue.key_faults(
        Scope(scope) if known else None,
        agent_id,
        Moment().parse(body.get("expiresAt"), "expiresAt", []),
        services.clock.now(),
    )


@endpoints.post(
    "/v1/keys",
    "Make an API key",
    description="`key` is shown this once; a replay of the request shows null.",
    scopes=ADMIN,
    body=NEW_KEY,
    faults=faults,
    status=201,
    data=CreatedKey,
    errors=(ErrorCode.NOT_FOUND, ErrorCode.AGENT_TERMINATED),
)
async def create(call: Call) -> Answer:
    made = await issue.issue_key(
        call.tx,
        realm_id=call.caller.realm_id,
        mode=call.caller.mode,
        scope=Scope(call.body["scope"]),
        agent_id=call.body.get("agentId"),
        name=call.body["name"],
        expires_at=call.body.get("expiresAt"),
        actor=call.caller.key_id,
        request_id=call.request_id,
    )
    shown = key_fields(made.row)
    return data(CreatedKey(**shown, key=made.secret), 201, replay=CreatedKey(**shown, key=None))


@endpoints.get(
    "/v1/keys",
    "List API keys",
    scopes=ADMIN,
    query=LIST_QUERY,
    data=Key,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    limit = call.query.get("limit", PAGE_DEFAULT)
    rows = await store.list_keys(call.tx, call.caller.realm_id, call.start, limit + 1)
    return page(call, rows, limit, lambda row: (row.created_at, row.id), show_key)


@endpoints.delete(
    "/v1/keys/:id",
    "Revoke an API key",
    description="It stops working in every process within a second.",
    scopes=ADMIN,
    status=204,
)
async def revoke(call: Call) -> Answer:
    key_id = call.params["id"]
    await issue.revoke_key(
        call.tx,
        call.caller.realm_id,
        key_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
    )
    call.after_commit.append(lambda: call.services.guard.forget(key_id))
    return Answer(204)


@endpoints.get(
    "/v1/me",
    "Who am I",
    description="The calling key and its rate limits.",
    scopes=ANYONE,
    data=Me,
)
async def me(call: Call) -> Answer:
    row = await issue.get_key(call.tx, call.caller.realm_id, call.caller.key_id)
    limits = [
        CategoryLimit(category=category.label, requests_per_minute=category.limit(call.caller.mode))
        for category in Category
    ]
    return data(Me(**key_fields(row), account=call.caller.account_name, limits=limits))


# The audit log -----------------------------------------------------------------------------------


@endpoints.get(
    "/v1/audit-log",
    "List the audit log",
    description=(
        "Who did what, newest first: every change of an agent, a directory entry, a webhook or"
        " a key, every approval and withdrawal. Only an admin key sees the lines about keys."
    ),
    tag="Audit",
    scopes=PEOPLE,
    query=LOG_QUERY,
    data=LogLine,
    is_list=True,
)
async def log(call: Call) -> Answer:
    limit = call.query.get("limit", PAGE_DEFAULT)
    rows = await store.list_log(call.tx, _log_filter(call), call.start, limit + 1)
    return page(call, rows, limit, _log_place, show_log_line)


@endpoints.get(
    "/v1/audit-log/export",
    "Export the audit log as CSV",
    description="The filters of the list; cells that a spreadsheet would run are quoted.",
    tag="Audit",
    scopes=PEOPLE,
    unit=Unit.OWN,
    query=LOG_FILTERS,
    content_type="text/csv",
)
async def export_log(call: Call) -> Stream:
    wanted = _log_filter(call)

    async def read(start: Place | None, limit: int) -> Sequence[LogRow]:
        async with call.services.db.read() as tx:
            return await store.list_log(tx, wanted, start, limit)

    rows = csv_of(_LOG_COLUMNS, read, _log_place, show_log_line)
    return Stream("text/csv; charset=utf-8", "audit-log.csv", rows)


def _log_filter(call: Call) -> LogFilter:
    query = call.query
    return LogFilter(
        realm_id=call.caller.realm_id,
        # Keys are for admins' eyes alone, here as in their own list.
        with_keys=call.caller.scope is Scope.ADMIN,
        actor=query.get("actor"),
        action=query.get("action"),
        subject=query.get("subject"),
        start=query["from"].start if "from" in query else None,
        end=query["to"].end if "to" in query else None,
    )


def _log_place(row: LogRow) -> Place:
    return row.created_at, row.id
