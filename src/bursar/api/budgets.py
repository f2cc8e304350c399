"""/v1/budgets: ceilings that agents share."""

from collections.abc import Sequence
from typing import Final

import msgspec

from bursar.access.limits import Category
from bursar.access.model import ADMIN, PEOPLE
from bursar.api.call import Answer, Call, Resource, data, page, page_fields
from bursar.api.policies import BUDGET_LIMITS
from bursar.budget import store
from bursar.budget.model import BudgetRow
from bursar.budget.view import BudgetView, show_budget
from bursar.db import moment
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, not_found, present
from bursar.form.cursor import Place
from bursar.form.kinds import ID, Flag, Text
from bursar.form.record import Field, Record
from bursar.ids import is_id, new_id
from bursar.policy.limits import MOST_LEVELS, named_limits
from bursar.policy.store import encode_limits
from bursar.trail.trail import leave_trail

endpoints = Resource("Budgets", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

MOST_BUDGETS: Final = 1_000
_NAME = Text(1, 100, trim=True)
_LIMITS_DOC = (
    "Up to 20 limits: an `amount`, a `count` of spends or both, in a UTC `window` (`hour`, `day`,"
    " `week` from Monday, `month`, `lifetime`). They hold for the window that is running."
)
NEW_BUDGET = Record(
    "NewBudget",
    (
        Field("name", _NAME, "1 to 100 characters.", required=True),
        Field("limits", BUDGET_LIMITS, _LIMITS_DOC, required=True),
        Field(
            "parentId",
            ID,
            f"The budget above it, for good; at most {MOST_LEVELS} stand above each other.",
            nullable=True,
        ),
    ),
)
BUDGET_CHANGE = Record(
    "BudgetChange",
    (
        Field("name", _NAME, "1 to 100 characters."),
        Field("limits", BUDGET_LIMITS, _LIMITS_DOC),
        Field("frozen", Flag(), "True refuses all spends below it until it is false again."),
    ),
)


@endpoints.post(
    "/v1/budgets",
    "Create a budget",
    description="Put agents under it with `budgetId`. A spend must pass every budget above it.",
    scopes=ADMIN,
    body=NEW_BUDGET,
    status=201,
    data=BudgetView,
    errors=(ErrorCode.LIMIT_REACHED,),
)
async def create(call: Call) -> Answer:
    realm_id = call.caller.realm_id
    parent = None
    parent_id: str | None = call.body.get("parentId")
    if parent_id is not None:
        parent = await store.hold_budget(call.tx, realm_id, parent_id)
        if parent is None:
            raise ValidationFailed([Fault("parentId", "parentId names no budget of this account.")])
        if parent.level >= MOST_LEVELS:
            problem = f"parentId is {MOST_LEVELS} deep already, the deepest there is."
            raise ValidationFailed([Fault("parentId", problem)])
    if await store.count_budgets(call.tx, realm_id) >= MOST_BUDGETS:
        raise ApiError(
            ErrorCode.LIMIT_REACHED, f"There are {MOST_BUDGETS} budgets, the most an account has."
        )
    budget_id = new_id("bud")
    limits = named_limits(call.body["limits"], (), "limits")
    await store.insert_budget(
        call.tx,
        budget_id,
        realm_id,
        call.body["name"],
        parent,
        encode_limits(limits),
        call.caller.key_id,
        await moment(call.tx),
    )
    row = present(await store.get_budget(call.tx, realm_id, budget_id), "it was just made")
    shown = await _shown(call, row)
    await _changed(call, "budget.created", budget_id, None, shown)
    return data(shown, 201)


@endpoints.get(
    "/v1/budgets",
    "List budgets",
    description="Newest first, with what was used in each window that is running.",
    scopes=PEOPLE,
    query=(Field("parentId", ID, "Only those directly below this budget."), *page_fields()),
    data=BudgetView,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    async def read(start: Place | None, limit: int) -> Sequence[tuple[BudgetRow, BudgetView]]:
        rows = await store.list_budgets(
            call.tx, call.caller.realm_id, call.query.get("parentId"), start, limit
        )
        ids = [row.id for row in rows]
        meters = await store.meters(call.tx, ids)
        agents = await store.agents_of(call.tx, ids)
        now = await moment(call.tx)
        return [(row, show_budget(row, meters[row.id], agents.get(row.id, 0), now)) for row in rows]

    return await page(
        call, read, lambda pair: pair[1], lambda pair: (pair[0].created_at, pair[0].id)
    )


@endpoints.get("/v1/budgets/:id", "Get a budget", scopes=PEOPLE, data=BudgetView)
async def get(call: Call) -> Answer:
    return data(await _shown(call, await _existing(call)))


@endpoints.patch(
    "/v1/budgets/:id",
    "Change a budget",
    description="In force for every spend requested afterwards. Its parent never changes.",
    scopes=ADMIN,
    body=BUDGET_CHANGE,
    data=BudgetView,
)
async def change(call: Call) -> Answer:
    budget_id = (await _existing(call)).id
    await store.lock_budget(call.tx, budget_id)
    before = await _existing(call)
    limits = before.limits
    if "limits" in call.body:
        limits = named_limits(call.body["limits"], before.limits, "limits")
    wanted = msgspec.structs.replace(
        before,
        name=call.body.get("name", before.name),
        limits=limits,
        frozen=call.body.get("frozen", before.frozen),
    )
    shown_before = await _shown(call, before)
    if wanted == before:
        return data(shown_before)
    call.check_seen(
        shown_before.updated_at,
        "Nothing was changed: somebody else changed this budget since you opened the form.",
    )
    shown = await _shown(call, await store.update_budget(call.tx, wanted))
    await _changed(call, "budget.changed", budget_id, shown_before, shown)
    return data(shown)


@endpoints.delete(
    "/v1/budgets/:id",
    "Delete a budget",
    description="409 while an agent or a budget is under it, or a spend was decided under it.",
    scopes=ADMIN,
    status=204,
    errors=(ErrorCode.INVALID_STATE,),
)
async def delete(call: Call) -> Answer:
    budget = await _existing(call)
    await store.lock_to_delete(call.tx, budget.id)
    if await store.is_used(call.tx, budget.id):
        raise ApiError(
            ErrorCode.INVALID_STATE,
            "This budget is used: agents, budgets or spends are under it. Freeze it instead.",
        )
    shown = await _shown(call, budget)
    await store.delete_budget(call.tx, budget.id)
    await _changed(call, "budget.deleted", budget.id, shown, None)
    return Answer(204)


async def _existing(call: Call) -> BudgetRow:
    budget_id = call.params["id"]
    row = None
    if is_id("bud", budget_id):
        row = await store.get_budget(call.tx, call.caller.realm_id, budget_id)
    if row is None:
        raise not_found("budget")
    return row


async def _shown(call: Call, row: BudgetRow) -> BudgetView:
    meters = await store.meters(call.tx, [row.id])
    agents = await store.agents_of(call.tx, [row.id])
    return show_budget(row, meters[row.id], agents.get(row.id, 0), await moment(call.tx))


async def _changed(
    call: Call, action: str, budget_id: str, before: BudgetView | None, after: BudgetView | None
) -> None:
    await leave_trail(
        call.tx,
        realm_id=call.caller.realm_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
        action=action,
        subject=budget_id,
        before=before,
        after=after,
    )
