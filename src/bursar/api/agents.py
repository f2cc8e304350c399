"""/v1/agents."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET

from bursar.access.limits import Category
from bursar.access.model import ADMIN, ANYONE, APPROVERS, Caller, Scope
from bursar.agent import lifecycle, store
from bursar.agent.lifecycle import Actor
from bursar.agent.model import AgentChange, AgentRow, NewAgent, Which
from bursar.agent.view import Agent, BulkChange, show_agent
from bursar.api.call import Answer, Call, DatabaseUse, Resource, data, page, page_fields
from bursar.api.policies import NEW_POLICY, POLICY_CHANGE, new_policy, policy_change
from bursar.chain.networks import usdc_mint
from bursar.clock import iso, iso_or_none
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, not_found
from bursar.form.cursor import Place, bad_cursor
from bursar.form.kinds import ID, Choice, Metadata, Text
from bursar.form.query import MetadataFilter
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.ledger import lock
from bursar.money import format_cents, format_cents_or_none, format_micros
from bursar.policy import store as policy_store
from bursar.policy.engine import Used, terms_of, without_approval
from bursar.policy.engine import budget as budget_of
from bursar.policy.limits import applied, window_end
from bursar.policy.view import PolicyVersion, show_version
from bursar.spend import store as spend_store
from bursar.spend.memory import Memory, Remembered
from bursar.spend.model import bounds_of, midnight_after, midnight_before
from bursar.spend.view import Budget, LimitUse, SpentTodayBy

endpoints = Resource("Agents", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

_NAME = Field("name", Text(1, 100, trim=True), "1 to 100 characters.", required=True)
_METADATA = Field(
    "metadata",
    Metadata(),
    "Up to 50 pairs of your own, string values, 8 KiB in all; the list of agents can be filtered by"
    " them.",
)
_BUDGET = Field(
    "budgetId",
    ID,
    "The budget that the agent is under; null: under none. Its spends must then fit that budget and"
    " every one above it.",
    nullable=True,
)
NEW_AGENT = Record(
    "NewAgent",
    (
        _NAME,
        Field("policy", NEW_POLICY, "What the agent may spend.", required=True),
        _METADATA,
        _BUDGET,
    ),
)
AGENT_CHANGE = Record(
    "AgentChange",
    (
        Field("name", _NAME.kind, _NAME.doc),
        Field(
            "status",
            Choice(
                ("active", "paused"),
                (("terminated", "To terminate an agent for good use DELETE /v1/agents/:id."),),
            ),
            "`paused` stops new spends; `active` lets them go on.",
        ),
        _METADATA,
        _BUDGET,
        Field("policy", POLICY_CHANGE, "Any of its fields; lists are replaced whole."),
    ),
)
_WITH_METADATA = Field(
    "metadata",
    MetadataFilter(),
    'Only agents with these pairs: `metadata[team]=search` or `metadata={"team":"search"}`.',
)
_UNDER = Field("budgetId", ID, "Only agents directly under this budget.")
LIST_QUERY = (
    Field(
        "status",
        Choice(("all", "active", "paused", "terminated")),
        "Only agents in this state; `all` is the default.",
    ),
    _UNDER,
    *page_fields(),
    _WITH_METADATA,
)
BULK_QUERY = (
    Field(
        "status",
        Choice(
            ("all", "active", "paused"),
            (("terminated", "A terminated agent cannot be changed."),),
        ),
        "Only agents in this state; `all` is the default, and no filter.",
    ),
    _UNDER,
    _WITH_METADATA,
)
POLICIES_QUERY = page_fields()
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def permits_change(caller: Caller, body: dict[str, Any]) -> None:
    """An approver may only stop an agent: pause it, freeze its policy, nothing else."""
    if caller.scope is not Scope.APPROVER:
        return
    policy = body.get("policy", {})
    rest = {name for name in body if name not in ("status", "policy")}
    stops = (
        not rest
        and body.get("status", "paused") == "paused"
        and isinstance(policy, dict)
        and set(policy) <= {"frozen", "version"}  # pyright: ignore[reportUnknownArgumentType]
        and policy.get("frozen", True) is True  # pyright: ignore[reportUnknownMemberType]
    )
    if not stops:
        raise ApiError(
            ErrorCode.FORBIDDEN,
            'A key of scope approver may only send status "paused" and policy.frozen true (with'
            " policy.version); everything else needs scope admin.",
        )


@endpoints.post(
    "/v1/agents",
    "Create an agent",
    description="Makes the agent, version 1 of its policy and its wallet.",
    scopes=ADMIN,
    body=NEW_AGENT,
    status=201,
    data=Agent,
)
async def create(call: Call) -> Answer:
    mint = usdc_mint(call.services.config, call.caller.mode)
    wanted = NewAgent(
        name=call.body["name"],
        metadata=call.body.get("metadata", {}),
        policy=new_policy(call.body["policy"], call.caller.mode),
        budget_id=call.body.get("budgetId"),
    )
    row = await lifecycle.create_agent(call.tx, call.services.vault, actor(call), wanted, mint)
    return data(show_agent(row), 201)


@endpoints.get(
    "/v1/agents",
    "List agents",
    description="Newest first. An agent key sees only its own agent.",
    scopes=ANYONE,
    query=LIST_QUERY,
    data=Agent,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    status = call.query.get("status", "all")

    async def read(start: Place | None, limit: int) -> Sequence[AgentRow]:
        return await store.list_agents(
            call.tx,
            call.caller.realm_id,
            agent_id=call.caller.agent_id,
            status=None if status == "all" else status,
            budget_id=call.query.get("budgetId"),
            metadata=call.query.get("metadata", {}),
            before=start,
            limit=limit,
        )

    return await page(call, read, show_agent)


@endpoints.get(
    "/v1/agents/:id",
    "Get an agent",
    scopes=ANYONE,
    data=Agent,
)
async def get(call: Call) -> Answer:
    return data(show_agent(await visible_agent(call, call.params["id"])))


@endpoints.patch(
    "/v1/agents/:id",
    "Change an agent",
    description=(
        "One atomic change, in force for every spend requested afterwards. The policy's version"
        " rises by one when, and only when, the policy really changes. An approver may only"
        " pause the agent or freeze its policy."
    ),
    scopes=APPROVERS,
    body=AGENT_CHANGE,
    permits=permits_change,
    data=Agent,
    errors=(ErrorCode.AGENT_TERMINATED, ErrorCode.POLICY_VERSION_CONFLICT),
)
async def change(call: Call) -> Answer:
    agent_id, wanted = call.params["id"], _wanted(call.body)
    if call.seen is not None:
        before = await lifecycle.lock_agent(call.tx, call.caller.realm_id, agent_id)
        if before.budget_id != wanted.budget_id:
            call.check_seen(
                before.budget_id or "",
                "It was not moved: somebody else moved this agent since you opened the form.",
            )
    row = await lifecycle.change_agent(call.tx, actor(call), agent_id, wanted)
    return data(show_agent(row))


@endpoints.patch(
    "/v1/agents",
    "Change many agents",
    description=(
        "The change of one agent, on every agent that matches and is not terminated, in one commit."
        " At least one filter is needed; `status=all` is none. More than 1,000 that match: 409, and"
        " nothing is changed."
    ),
    scopes=APPROVERS,
    query=BULK_QUERY,
    body=AGENT_CHANGE,
    permits=permits_change,
    data=BulkChange,
    errors=(ErrorCode.LIMIT_REACHED, ErrorCode.POLICY_VERSION_CONFLICT),
)
async def change_many(call: Call) -> Answer:
    status = call.query.get("status", "all")
    which = Which(
        status=None if status == "all" else status,
        budget_id=call.query.get("budgetId"),
        metadata=call.query.get("metadata", {}),
    )
    if which == Which(status=None, budget_id=None, metadata={}):
        raise ValidationFailed(
            [
                Fault(
                    "metadata",
                    "Say which agents: `metadata[team]=search`, `budgetId=bud_…`, `status=paused`,"
                    " or several of them. To change all, stop the account, or change those in each"
                    " status.",
                )
            ]
        )
    matched, changed = await lifecycle.change_agents(
        call.tx, actor(call), which, _wanted(call.body)
    )
    return data(BulkChange(matched=matched, changed=changed))


def _wanted(body: dict[str, Any]) -> AgentChange:
    policy = body.get("policy", {})
    return AgentChange(
        name=body.get("name", UNSET),
        status=body.get("status", UNSET),
        metadata=body.get("metadata", UNSET),
        budget_id=body.get("budgetId", UNSET),
        policy=policy_change(policy),
        seen_version=policy.get("version", UNSET),
    )


@endpoints.delete(
    "/v1/agents/:id",
    "Terminate an agent",
    description=(
        "For good; doing it again changes nothing. Its keys stop working and pending spends"
        " are rejected. The wallet stays readable and can still be withdrawn from."
    ),
    scopes=ADMIN,
    data=Agent,
)
async def terminate(call: Call) -> Answer:
    agent_id = call.params["id"]
    row = await lifecycle.terminate_agent(call.tx, actor(call), agent_id)
    call.after_commit.append(lambda: call.services.guard.forget_agent(agent_id))
    return data(show_agent(row))


@endpoints.get(
    "/v1/agents/:id/policies",
    "List the versions of an agent's policy",
    scopes=ANYONE,
    query=POLICIES_QUERY,
    data=PolicyVersion,
    is_list=True,
)
async def policies(call: Call) -> Answer:
    # A caller can forge a cursor, because its digest has no secret.
    if call.start is not None and _VERSION.fullmatch(call.start[1]) is None:
        raise bad_cursor()
    row = await visible_agent(call, call.params["id"])
    return await page(
        call,
        lambda start, limit: policy_store.list_versions(
            call.tx, row.id, int(start[1]) if start else None, limit
        ),
        lambda item: show_version(row.policy_id, *item),
        lambda item: (item[2], str(item[0].version)),
    )


def actor(call: Call) -> Actor:
    return Actor(call.caller.realm_id, call.caller.key_id, call.request_id)


async def visible_agent(call: Call, agent_id: str) -> AgentRow:
    """The agent, if this key may see it; to any other key it does not exist."""
    if not call.caller.may_see_agent(agent_id):
        raise not_found("agent")
    return await lifecycle.get_agent(call.tx, call.caller.realm_id, agent_id)


@endpoints.get(
    "/v1/agents/:id/budget",
    "Get what an agent may spend now",
    description=(
        "`maxAmountNow` is the most that passes in one spend to an allowed recipient;"
        " `maxWithoutApproval` is how much of it needs no person. `spentTodayBy` splits"
        " `spentToday` into what is paid, what is on its way and what waits for a person."
    ),
    scopes=ANYONE,
    database=DatabaseUse.OWN,
    data=Budget,
)
async def budget(call: Call) -> Answer:
    agent_id, realm_id = call.params["id"], call.caller.realm_id
    if not is_id("ag", agent_id) or not call.caller.may_see_agent(agent_id):
        raise not_found("agent")
    bounds = bounds_of(call.services.config)
    memory = Memory(call.services.policies, call.services.directory, bounds)
    # One moment for all of it: the parts of what was spent today add up.
    async with call.services.db.snapshot() as tx:
        found = await lock.read_agent(tx, agent_id, realm_id)
        if found is None:
            raise not_found("agent")
        agent = (await memory.seen(tx, {agent_id: found}))[agent_id]
        today = midnight_before(found.wallet.now)
        approved, pending = await spend_store.open_micros(tx, realm_id, agent_id, today)
    policy = agent.policy
    # The budget is the same for every recipient, so it is asked for none.
    terms = terms_of(
        policy,
        bounds,
        stopped=found.stopped,
        agent_status=found.agent_status,
        wallet_address=found.wallet.address,
        recipient="",
        pay_to=None,
        pays_blocked_host=False,
        budgets=agent.budgets,
    )
    used = Used(
        found.spent_today_micros,
        found.wallet.available_micros,
        found.network_today_lamports,
        0,
        found.pending_count,
        found.wallet.transfers,
        memory.numbers(agent, terms),
    )
    remaining, most = budget_of(terms, used)
    return data(
        Budget(
            daily_cap=format_cents(policy.cap_micros_daily),
            spent_today=format_micros(found.spent_today_micros),
            spent_today_by=SpentTodayBy(
                settled=format_micros(found.spent_today_micros - approved - pending),
                on_its_way=format_micros(approved),
                waiting=format_micros(pending),
            ),
            remaining_today=format_micros(remaining),
            reserved=format_micros(found.wallet.debits_pending),
            available=format_micros(found.wallet.available_micros),
            max_amount_now=format_micros(most),
            max_without_approval=format_micros(without_approval(terms, most)),
            approval_threshold=format_cents_or_none(policy.approval_threshold_micros),
            allowlist=list(policy.allowlist),
            resets_at=iso(midnight_after(found.wallet.now)),
            status=found.agent_status,
            frozen=policy.frozen,
            account_stopped=found.stopped,
            budget_frozen=any(budget.frozen for budget in agent.budgets),
            policy_version=policy.version,
            daily_network_lamports=policy.network_budget(bounds),
            network_lamports_today=found.network_today_lamports,
            limits=_limits(agent, memory.counted(agent, agent.meter_ids), found.wallet.now),
        )
    )


def _limits(agent: Remembered, numbers: Sequence[int], now: datetime) -> list[LimitUse]:
    """Every limit over the agent, also those of single recipients, in the order of evaluation."""
    return [
        LimitUse(
            limit_id=each.limit.id,
            budget_id=each.budget_id,
            window=each.limit.window,
            recipient=each.limit.recipient,
            amount=format_cents_or_none(each.limit.amount_micros),
            count=each.limit.count,
            used_amount=format_micros(numbers[each.place]),
            used_count=numbers[each.place + 1],
            resets_at=iso_or_none(window_end(each.limit.window, now)),
        )
        for each in applied(agent.policy.limits, agent.budgets)
    ]
