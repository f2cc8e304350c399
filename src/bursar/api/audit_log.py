"""/v1/audit-log: who did what."""

from collections.abc import Sequence
from functools import partial

from bursar.access.limits import Category
from bursar.access.model import PEOPLE, Scope
from bursar.api.call import (
    Answer,
    Call,
    DatabaseUse,
    Resource,
    Stream,
    page,
    page_fields,
)
from bursar.api.export import export_csv
from bursar.db import Tx
from bursar.form.cursor import Place
from bursar.form.kinds import Text
from bursar.form.moments import Boundary
from bursar.form.record import Field
from bursar.trail import store
from bursar.trail.model import LogFilter, LogRow
from bursar.trail.view import LogLine, show_log_line

endpoints = Resource("Audit", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

LOG_FILTERS = (
    Field("actor", Text(1, 100), "Only what this key did, or `operator`."),
    Field("action", Text(1, 100), "Only this action, e.g. `agent.changed`."),
    Field("subject", Text(1, 300), "Only what was done to this id or hostname."),
    Field("from", Boundary(), "Done at or after this date or time."),
    Field("to", Boundary(), "Done before this time; a bare date includes that whole day."),
)

LOG_QUERY = (*LOG_FILTERS, *page_fields())

_LOG_COLUMNS = (
    "id", "createdAt", "actor", "action", "subject", "requestId", "before", "after",
)  # fmt: skip


@endpoints.get(
    "/v1/audit-log",
    "List the audit log",
    description=(
        "Who did what, newest first: every change of an agent, a directory entry, a webhook or"
        " a key, every approval and withdrawal. Only an admin key sees the lines about keys."
    ),
    scopes=PEOPLE,
    query=LOG_QUERY,
    data=LogLine,
    is_list=True,
)
async def log(call: Call) -> Answer:
    return await page(call, partial(store.list_log, call.tx, _log_filter(call)), show_log_line)


@endpoints.get(
    "/v1/audit-log/export",
    "Export the audit log as CSV",
    description="The filters of the list; cells that a spreadsheet would run are quoted.",
    scopes=PEOPLE,
    database=DatabaseUse.OWN,
    query=LOG_FILTERS,
    content_type="text/csv",
)
async def export_log(call: Call) -> Stream:
    async def read(tx: Tx, start: Place | None, limit: int) -> Sequence[LogRow]:
        return await store.list_log(tx, _log_filter(call), start, limit)

    return export_csv(call, "audit-log.csv", _LOG_COLUMNS, read, show_log_line)


def _log_filter(call: Call) -> LogFilter:
    query = call.query
    return LogFilter(
        realm_id=call.caller.realm_id,
        # Only admin keys may read about keys, here as in the list of keys.
        with_keys=call.caller.scope is Scope.ADMIN,
        actor=query.get("actor"),
        action=query.get("action"),
        subject=query.get("subject"),
        start=query["from"].start if "from" in query else None,
        end=query["to"].end if "to" in query else None,
    )
