"""/v1/transactions: spends that were decided, their approval, statistics and export."""

from collections.abc import Sequence
from functools import partial

from bursar.access.limits import Category
from bursar.access.model import ANYONE, APPROVERS, SPENDERS, Caller
from bursar.api.agent_filter import wanted_agent
from bursar.api.call import (
    Answer,
    Call,
    DatabaseUse,
    Resource,
    Services,
    Stream,
    data,
    page,
    page_fields,
)
from bursar.api.export import export_csv
from bursar.db import Tx
from bursar.errors import ErrorCode, not_found
from bursar.form.cursor import Place
from bursar.form.kinds import ID, Choice, Recipient, Text
from bursar.form.moments import Boundary
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.spend import approve as approvals
from bursar.spend import stats, store
from bursar.spend.approve import Approver
from bursar.spend.model import SpendRow, bounds_of
from bursar.spend.store import SpendFilter
from bursar.spend.view import Statistics, Transaction, show_spend
from bursar.spend.wait import MAX_SECONDS, wanted_seconds

endpoints = Resource("Transactions", Category.TRANSACTIONS)

REASON = Record("Reason", (Field("reason", Text(0, 500), "Why, for the books.", nullable=True),))

_DATES = (
    Field("from", Boundary(), "Created at or after this date or time."),
    Field(
        "to",
        Boundary(),
        "Created before this time; a bare date includes that whole day.",
    ),
)

FILTERS = (
    Field("agentId", ID, "Only this agent's."),
    Field(
        "status",
        Choice(("all", "pending", "approved", "settled", "rejected")),
        "Only those in this state; `all` is the default.",
    ),
    *_DATES,
    Field("recipient", Recipient(), "Only those to this hostname or address."),
    Field("settledFrom", Boundary(), "Settled at or after this date or time."),
    Field("settledTo", Boundary(), "Settled before this time; a bare date is included."),
)

LIST_QUERY = (*FILTERS, *page_fields(50, 200))

STATS_QUERY = (FILTERS[0], *_DATES)

_CSV_COLUMNS = (
    "id", "agentId", "amount", "currency", "recipient", "status", "signature", "blockTime",
    "rejectCode", "createdAt", "settledAt", "payTo", "memo", "policyVersion", "purchaseId",
    "createdBy", "decidedBy", "decidedAt", "decisionReason", "feeLamports", "rentLamports",
)  # fmt: skip


@endpoints.get(
    "/v1/transactions",
    "List transactions",
    description="Newest first.",
    scopes=ANYONE,
    query=LIST_QUERY,
    data=Transaction,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    return await page(call, partial(store.list_spends, call.tx, _filters(call)), show_spend)


@endpoints.get(
    "/v1/transactions/stats",
    "Get statistics",
    description="From running totals: as quick at ten million transactions as at ten. Of days whose"
    " refusals are forgotten (`BURSAR_REFUSALS_DAYS`) only whole ones are known: a `from` or `to`"
    " within one stands for the beginning or the end of its UTC day.",
    scopes=ANYONE,
    database=DatabaseUse.REPORT,
    query=STATS_QUERY,
    data=Statistics,
)
async def statistics(call: Call) -> Answer:
    return data(await stats.statistics(call.tx, _filters(call)))


@endpoints.get(
    "/v1/transactions/export",
    "Export transactions as CSV",
    description="The filters of the list; cells that a spreadsheet would run are quoted.",
    scopes=ANYONE,
    database=DatabaseUse.OWN,
    query=FILTERS,
    content_type="text/csv",
)
async def export(call: Call) -> Stream:
    async def read(tx: Tx, start: Place | None, limit: int) -> Sequence[SpendRow]:
        return await store.list_spends(tx, _filters(call), start, limit)

    return export_csv(call, "transactions.csv", _CSV_COLUMNS, read, show_spend)


@endpoints.get(
    "/v1/transactions/:id",
    "Get a transaction",
    description=(
        f"With `Prefer: wait=N` (at most {MAX_SECONDS}) the answer comes when the spend is settled"
        " or rejected, or after N seconds as it stands then."
    ),
    scopes=ANYONE,
    database=DatabaseUse.OWN,
    headers=(
        Field(
            "Prefer",
            Text(0, 1_000),
            f"`wait=N`: answer when the spend is settled or rejected, or after N seconds as it"
            f" stands then; more than {MAX_SECONDS} counts as {MAX_SECONDS}.",
        ),
    ),
    data=Transaction,
)
async def get(call: Call) -> Answer:
    row = await _existing(call)
    seconds = wanted_seconds(call.prefer)
    if seconds and row.status in ("pending", "approved"):
        ended = await call.services.waiter.wait(row.id, seconds)
        row = await _existing(call) if ended is None else ended
    return data(show_spend(row))


@endpoints.post(
    "/v1/transactions/:id/approve",
    "Approve a pending spend",
    description=(
        "Checks everything but the threshold again under the policy as it is now; if something"
        " fails, the spend stays pending and the answer is 409 naming the code. In live mode"
        " the key that asked for the spend may not approve it (403); in test mode it may,"
        " unless `BURSAR_TEST_SELF_APPROVAL` is `off`."
    ),
    scopes=APPROVERS,
    body=REASON,
    data=Transaction,
    errors=(ErrorCode.INVALID_STATE,),
)
async def approve(call: Call) -> Answer:
    spend = await approvals.approve_spend(
        call.tx,
        call.services.policies,
        call.services.directory,
        bounds_of(call.services.config),
        _approver(call),
        call.params["id"],
        call.body.get("reason"),
    )
    return data(show_spend(spend))


@endpoints.post(
    "/v1/transactions/:id/deny",
    "Deny a pending spend",
    description="Its funds are available again, and its day's cap too.",
    scopes=APPROVERS,
    body=REASON,
    data=Transaction,
    errors=(ErrorCode.INVALID_STATE,),
)
async def deny(call: Call) -> Answer:
    spend = await approvals.deny_spend(
        call.tx, _approver(call), call.params["id"], call.body.get("reason")
    )
    return data(show_spend(spend))


@endpoints.post(
    "/v1/transactions/:id/cancel",
    "Cancel a pending spend",
    description=(
        "By the key that asked for it, or an admin. It is rejected with `cancelled`; its funds are"
        " available again, and its day's cap too."
    ),
    scopes=SPENDERS,
    category=Category.SPEND_AUTHORISE,
    body=REASON,
    data=Transaction,
    errors=(ErrorCode.INVALID_STATE,),
)
async def cancel(call: Call) -> Answer:
    spend = await approvals.cancel_spend(
        call.tx,
        _approver(call),
        call.caller.agent_id,
        call.params["id"],
        call.body.get("reason"),
    )
    return data(show_spend(spend))


async def _existing(call: Call) -> SpendRow:
    spend_id, row = call.params["id"], None
    if is_id("txn", spend_id):
        async with call.services.db.connection() as tx:
            row = await store.get_spend(tx, call.caller.realm_id, spend_id)
    if row is None or not call.caller.may_see_agent(row.agent_id):
        raise not_found("transaction")
    return row


def _approver(call: Call) -> Approver:
    caller = call.caller
    own = approves_own(call.services, caller)
    return Approver(caller.realm_id, caller.mode, caller.key_id, call.request_id, own)


def approves_own(services: Services, caller: Caller) -> bool:
    """Whether a key may approve what it asked for itself."""
    return caller.mode == "test" and services.config.test_self_approval


def _filters(call: Call) -> SpendFilter:
    query = call.query
    status = query.get("status", "all")
    return SpendFilter(
        realm_id=call.caller.realm_id,
        agent_id=wanted_agent(call),
        status=None if status == "all" else status,
        created_from=query["from"].start if "from" in query else None,
        created_to=query["to"].end if "to" in query else None,
        settled_from=query["settledFrom"].start if "settledFrom" in query else None,
        settled_to=query["settledTo"].end if "settledTo" in query else None,
        recipient=query.get("recipient"),
    )
