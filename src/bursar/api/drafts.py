"""/v1/agents/:id/policy/draft: a policy that is tried on what happens, before it is in force."""

import msgspec

from bursar.access.limits import Category
from bursar.access.model import ADMIN, PEOPLE
from bursar.agent import lifecycle
from bursar.agent.model import AgentChange, AgentRow
from bursar.agent.view import Agent, show_agent
from bursar.api.agents import actor, visible_agent
from bursar.api.backtests import named_change
from bursar.api.call import Answer, Call, Resource, data
from bursar.api.policies import POLICY_CHANGE, policy_change
from bursar.backtest import draft_store as store
from bursar.backtest.model import MOST_DRAFTS, SHOWN_DIFFERENCES, DraftRow
from bursar.backtest.view import DraftView, show_draft
from bursar.db import moment
from bursar.errors import ApiError, ErrorCode, not_found
from bursar.ids import new_id
from bursar.policy import store as policy_store
from bursar.policy.model import Policy, PolicyChange
from bursar.trail.trail import leave_trail

endpoints = Resource("Drafts", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

_PATH = "/v1/agents/:id/policy/draft"


@endpoints.put(
    _PATH,
    "Draft a policy",
    description=(
        "In place of the agent's draft, if it has one. It is in force nowhere: a worker decides"
        " every request from now on a second time, as the draft would have it, within seconds."
    ),
    scopes=ADMIN,
    body=POLICY_CHANGE,
    data=DraftView,
    errors=(
        ErrorCode.AGENT_TERMINATED,
        ErrorCode.POLICY_VERSION_CONFLICT,
        ErrorCode.LIMIT_REACHED,
    ),
)
async def put(call: Call) -> Answer:
    agent = await visible_agent(call, call.params["id"])
    if agent.status == "terminated":
        raise ApiError(ErrorCode.AGENT_TERMINATED, "This agent is terminated, for good.")
    base = agent.policy.version
    if call.body.get("version", base) != base:
        raise _moved(agent, call.body["version"])
    if await store.count_others(call.tx, call.caller.realm_id, agent.id) >= MOST_DRAFTS:
        raise ApiError(
            ErrorCode.LIMIT_REACHED, f"There are {MOST_DRAFTS} drafts, the most an account has."
        )
    row = await store.put_draft(
        call.tx,
        agent.id,
        call.caller.realm_id,
        new_id("dft"),
        base,
        named_change(policy_change(call.body), agent.policy.limits),
        call.caller.key_id,
        await moment(call.tx),
    )
    shown = _shown(row, agent, agent.policy)
    await _trail(call, "draft.written", agent.id, shown)
    return data(shown)


@endpoints.get(
    _PATH,
    "Get the draft of a policy",
    description=(
        f"With the last {SHOWN_DIFFERENCES} requests that it would have decided differently. For"
        " totals, days and rules run a backtest of the same change."
    ),
    scopes=PEOPLE,
    data=DraftView,
)
async def get(call: Call) -> Answer:
    agent = await visible_agent(call, call.params["id"])
    row = await _existing(call, agent)
    base = await policy_store.get_versions(call.tx, [(agent.id, row.base_version)])
    return data(_shown(row, agent, base[agent.id, row.base_version]))


@endpoints.delete(_PATH, "Drop the draft of a policy", scopes=ADMIN, status=204)
async def delete(call: Call) -> Answer:
    agent = await visible_agent(call, call.params["id"])
    if not await store.delete_draft(call.tx, call.caller.realm_id, agent.id):
        raise not_found("draft")
    await _trail(call, "draft.dropped", agent.id, None)
    return Answer(204)


@endpoints.post(
    f"{_PATH}/promote",
    "Put the draft of a policy in force",
    description=(
        "As the next version, in force for every spend requested afterwards. 409 when the policy is"
        " no longer at the version that the draft changes: write the draft again."
    ),
    scopes=ADMIN,
    data=Agent,
    errors=(ErrorCode.AGENT_TERMINATED, ErrorCode.POLICY_VERSION_CONFLICT),
)
async def promote(call: Call) -> Answer:
    agent = await lifecycle.lock_agent(call.tx, call.caller.realm_id, call.params["id"])
    row = await _existing(call, agent)
    if agent.policy.version != row.base_version:
        raise _moved(agent, row.base_version)
    change = AgentChange(
        policy=_to_be_named(row.change, agent.policy), seen_version=row.base_version
    )
    changed = await lifecycle.change_agent(call.tx, actor(call), agent.id, change)
    await store.delete_draft(call.tx, call.caller.realm_id, agent.id)
    return data(show_agent(changed))


async def _existing(call: Call, agent: AgentRow) -> DraftRow:
    row = await store.get_draft(call.tx, call.caller.realm_id, agent.id)
    if row is None:
        raise not_found("draft")
    return row


def _shown(row: DraftRow, agent: AgentRow, base: Policy) -> DraftView:
    return show_draft(row, agent.policy_id, base.changed(row.change))


def _to_be_named(change: PolicyChange, standing: Policy) -> PolicyChange:
    """Its new limits get their names when they are in force: they count from then."""
    if isinstance(change.limits, msgspec.UnsetType):
        return change
    known = {limit.id for limit in standing.limits}
    return msgspec.structs.replace(
        change,
        limits=tuple(
            limit if limit.id in known else msgspec.structs.replace(limit, id="")
            for limit in change.limits
        ),
    )


def _moved(agent: AgentRow, seen: int) -> ApiError:
    return ApiError(
        ErrorCode.POLICY_VERSION_CONFLICT,
        f"The policy of {agent.id} is at version {agent.policy.version}, not {seen}. Read it again,"
        " then write the draft anew.",
        param="version",
    )


async def _trail(call: Call, action: str, agent_id: str, after: DraftView | None) -> None:
    await leave_trail(
        call.tx,
        realm_id=call.caller.realm_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
        action=action,
        subject=agent_id,
        after=after,
    )
