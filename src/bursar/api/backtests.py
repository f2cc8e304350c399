"""/v1/backtests: what a draft would have decided of recorded requests."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bursar.access.limits import Category
from bursar.access.model import ADMIN, PEOPLE
from bursar.agent import store as agent_store
from bursar.api.agents import visible_agent
from bursar.api.call import Answer, Call, DatabaseUse, Resource, Stream, data
from bursar.api.export import export_csv
from bursar.api.policies import BUDGET_LIMITS, POLICY_CHANGE, policy_change
from bursar.backtest import history_store, store
from bursar.backtest.model import (
    KEPT_DAYS,
    MOST_AGENTS,
    MOST_DAYS,
    MOST_OPEN,
    SHOWN_CHANGES,
    Asked,
    BacktestRow,
)
from bursar.backtest.report import Change
from bursar.backtest.view import BacktestView, show_backtest, show_change
from bursar.budget import store as budget_store
from bursar.clock import iso
from bursar.db import Tx, moment
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, not_found
from bursar.form.cursor import Place
from bursar.form.kinds import ID, Metadata
from bursar.form.moments import Boundary
from bursar.form.record import Field, Record
from bursar.ids import is_id, new_id
from bursar.policy.limits import Limit, named_limits
from bursar.policy.model import PolicyChange

endpoints = Resource("Backtests", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

_USUAL_SPAN = timedelta(days=30)
_SCOPES = ("agentId", "budgetId", "metadata")
DRAFTED_POLICY = Record(
    "DraftedPolicy",
    tuple(field for field in POLICY_CHANGE.fields if field.name != "version"),
    illustrated=False,
)
NEW_BACKTEST = Record(
    "NewBacktest",
    (
        Field(
            "policy",
            DRAFTED_POLICY,
            "What would change of the policies, as in the change of an agent; lists as a whole."
            " What is not named stays as it was at each request.",
        ),
        Field(
            "limits",
            BUDGET_LIMITS,
            "What the limits of the budget `budgetId` would be, as a whole.",
        ),
        Field("agentId", ID, "Try it on this agent."),
        Field("budgetId", ID, "Try it on all agents below this budget."),
        Field("metadata", Metadata(), "Try it on the agents with these pairs, at most 1,000."),
        Field("from", Boundary(), "The first date or time to look at; 30 days ago if not given."),
        Field(
            "to",
            Boundary(),
            "Up to this time; a bare date includes that whole day; now if not given.",
        ),
    ),
    # Each field's own, put together, would ask for what cannot be asked together.
    illustrated=False,
)
_CSV_COLUMNS = ("transactionId", "agentId", "amount", "was", "would", "rule")


class _Numbered(msgspec.Struct, frozen=True):
    """A change with its place in the list, as a page of an export asks for it."""

    created_at: datetime
    id: str
    change: Change


def _check(body: dict[str, Any]) -> None:
    """What is tried, and on whom, must be said. Raises ValidationFailed."""
    faults: list[Fault] = []
    if "policy" not in body and "limits" not in body:
        faults.append(Fault("policy", "Say what to try: policy, the limits of a budget, or both."))
    if "limits" in body and "budgetId" not in body:
        faults.append(
            Fault("limits", "limits are a budget's and need budgetId; an agent's: policy.limits.")
        )
    if sum(name in body for name in _SCOPES) != 1:
        faults.append(Fault("agentId", "Say on whom: one of agentId, budgetId and metadata."))
    elif body.get("metadata") == {}:
        faults.append(Fault("metadata", "metadata needs at least one pair."))
    if faults:
        raise ValidationFailed(faults)


@endpoints.post(
    "/v1/backtests",
    "Try a policy on the past",
    description=(
        "Replays recorded requests in the order in which they were decided, as they were and as"
        " the draft would have it, with windows, budgets, deposits and releases. A worker does it;"
        f" read it until `status` is `done`. It can be read for {KEPT_DAYS} days. `from` is not"
        " before the day from which on refusals are kept."
    ),
    scopes=ADMIN,
    body=NEW_BACKTEST,
    status=202,
    data=BacktestView,
    errors=(ErrorCode.LIMIT_REACHED, ErrorCode.NOT_FOUND),
)
async def create(call: Call) -> Answer:
    _check(call.body)
    realm_id = call.caller.realm_id
    starts_at, ends_at = await _span(call)
    asked = await _asked(call)
    if await store.count_open(call.tx, realm_id) >= MOST_OPEN:
        raise ApiError(
            ErrorCode.LIMIT_REACHED,
            f"{MOST_OPEN} backtests of this account wait or run; read those first.",
        )
    row = await store.insert_backtest(
        call.tx, new_id("bt"), realm_id, asked, starts_at, ends_at, call.caller.key_id
    )
    return data(show_backtest(row, []), 202)


@endpoints.get(
    "/v1/backtests/:id",
    "Get a backtest",
    description=(
        f"`progress` is in percent. The first {SHOWN_CHANGES:,} changes; all of them are in the"
        " export."
    ),
    scopes=PEOPLE,
    data=BacktestView,
)
async def get(call: Call) -> Answer:
    row = await _existing(call, call.tx)
    changes = await store.changes(call.tx, row.id, 0, SHOWN_CHANGES) if row.result else []
    return data(show_backtest(row, [change for _, change in changes]))


@endpoints.get(
    "/v1/backtests/:id/export",
    "Export the changes of a backtest as CSV",
    description="What would have been decided differently, up to 100,000 rows.",
    scopes=PEOPLE,
    database=DatabaseUse.OWN,
    content_type="text/csv",
)
async def export(call: Call) -> Stream:
    async with call.services.db.connection() as tx:
        row = await _existing(call, tx)

    async def read(tx: Tx, start: Place | None, limit: int) -> Sequence[_Numbered]:
        after = 0 if start is None else int(start[1])
        found = await store.changes(tx, row.id, after, limit)
        return [_Numbered(row.created_at, str(number), change) for number, change in found]

    return export_csv(
        call, "backtest.csv", _CSV_COLUMNS, read, lambda numbered: show_change(numbered.change)
    )


async def _existing(call: Call, tx: Tx) -> BacktestRow:
    backtest_id = call.params["id"]
    row = None
    if is_id("bt", backtest_id):
        row = await store.get_backtest(tx, call.caller.realm_id, backtest_id)
    if row is None:
        raise not_found("backtest")
    return row


async def _span(call: Call) -> tuple[datetime, datetime]:
    now = await moment(call.tx)
    ends_at = min(call.body["to"].end, now) if "to" in call.body else now
    starts_at = call.body["from"].start if "from" in call.body else ends_at - _USUAL_SPAN
    kept_from = await history_store.kept_from(call.tx)
    if kept_from is not None and starts_at < kept_from:
        if "from" in call.body:
            problem = f"from is before {iso(kept_from)}, from when on refusals are kept."
            raise ValidationFailed([Fault("from", problem)])
        starts_at = kept_from
    if starts_at >= ends_at:
        raise ValidationFailed([Fault("from", "from must be before to, and not in the future.")])
    if ends_at - starts_at > timedelta(days=MOST_DAYS):
        raise ValidationFailed(
            [Fault("from", f"At most {MOST_DAYS} days lie between from and to.")]
        )
    return starts_at, ends_at


async def _asked(call: Call) -> Asked:
    """With the agents that are meant, and limits by their names."""
    body, realm_id = call.body, call.caller.realm_id
    change = policy_change(body["policy"]) if "policy" in body else None
    limits: tuple[Limit, ...] | None = None
    standing: tuple[Limit, ...] = ()
    agent_ids: list[str] = []
    if "agentId" in body:
        agent = await visible_agent(call, body["agentId"])
        agent_ids, standing = [agent.id], agent.policy.limits
    elif "budgetId" in body:
        budget = None
        if is_id("bud", body["budgetId"]):
            budget = await budget_store.get_budget(call.tx, realm_id, body["budgetId"])
        if budget is None:
            raise not_found("budget")
        if "limits" in body:
            limits = named_limits(body["limits"], budget.limits, "limits")
        below = await history_store.budgets_below(call.tx, budget.id)
        agent_ids = sorted(await history_store.agents_now_under(call.tx, below, MOST_AGENTS + 1))
    else:
        agent_ids = await agent_store.find_agents(
            call.tx, realm_id, status=None, metadata=body["metadata"], limit=MOST_AGENTS + 1
        )
    if len(agent_ids) > MOST_AGENTS:
        raise ApiError(
            ErrorCode.LIMIT_REACHED, f"More than {MOST_AGENTS:,} agents match; narrow it."
        )
    return Asked(
        agent_id=body.get("agentId"),
        budget_id=body.get("budgetId"),
        metadata=body.get("metadata"),
        agent_ids=tuple(agent_ids),
        policy=None if change is None else named_change(change, standing),
        limits=limits,
    )


def named_change(change: PolicyChange, standing: Sequence[Limit]) -> PolicyChange:
    """With names for the limits that are new."""
    if isinstance(change.limits, msgspec.UnsetType):
        return change
    return msgspec.structs.replace(change, limits=named_limits(change.limits, standing))
