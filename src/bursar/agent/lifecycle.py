"""Creating, changing and terminating agents: each is one transaction, in force once answered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from bursar.access import store as access_store
from bursar.agent import store
from bursar.agent.model import AgentChange, AgentRow, NewAgent, Which
from bursar.agent.view import AgentPolicyUpdated, AgentResumed, show_agent
from bursar.budget import store as budget_store
from bursar.custody.vault import Vault
from bursar.db import Tx, moment
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, not_found
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ids import is_id, new_id
from bursar.ledger import lock
from bursar.policy import store as policy_store
from bursar.policy.engine import RejectCode
from bursar.policy.limits import named_limits
from bursar.policy.model import Policy, PolicyChange
from bursar.policy.view import show_policy
from bursar.spend import store as spend_store
from bursar.spend.close import reject_spends
from bursar.trail.trail import leave_trail, leave_trails
from bursar.wallet import store as wallet_store
from bursar.wallet.model import low
from bursar.wallet.view import show_wallet

# Agents that one change may concern: their wallets are locked until it is committed.
MOST_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Actor:
    """In whose name a change is made, for the audit log."""

    realm_id: int
    name: str
    request_id: str


async def create_agent(tx: Tx, vault: Vault, actor: Actor, wanted: NewAgent, mint: str) -> AgentRow:
    """The agent, version 1 of its policy, and its wallet."""
    await _check_budget(tx, actor.realm_id, wanted.budget_id)
    policy = replace(wanted.policy, limits=named_limits(wanted.policy.limits, ()))
    agent_id = new_id("ag")
    created_at = await store.insert_agent(
        tx,
        agent_id=agent_id,
        realm_id=actor.realm_id,
        name=wanted.name,
        metadata=wanted.metadata,
        policy_id=new_id("pol"),
        budget_id=wanted.budget_id,
    )
    await policy_store.insert_policies(tx, [(agent_id, policy)], actor.name, created_at)
    # A new wallet is low without an event: only later changes are news.
    is_low = low(0, policy.cap_micros_daily)
    key = await vault.new_key(agent_id)
    await wallet_store.insert_wallet(tx, actor.realm_id, key, mint, is_low)
    row = await get_agent(tx, actor.realm_id, agent_id)
    await leave_trail(
        tx,
        realm_id=actor.realm_id,
        actor=actor.name,
        request_id=actor.request_id,
        action="agent.created",
        subject=agent_id,
        after=show_agent(row),
    )
    return row


async def change_agent(tx: Tx, actor: Actor, agent_id: str, change: AgentChange) -> AgentRow:
    """One atomic change.

    Takes the wallet's lock first: a spend is decided wholly before this change or wholly after.
    """
    before = await lock_agent(tx, actor.realm_id, agent_id)
    if change.budget_id is not UNSET:
        await _check_budget(tx, actor.realm_id, change.budget_id)
    return await apply_change(tx, actor, before, _changed(before, change))


async def change_agents(tx: Tx, actor: Actor, which: Which, change: AgentChange) -> tuple[int, int]:
    """The same change of every agent that matches and is not terminated; returns how many there
    are, and how many of them it changed. All of it, or nothing."""
    found = await store.find_agents(
        tx,
        actor.realm_id,
        status=which.status,
        budget_id=which.budget_id,
        metadata=which.metadata,
        limit=MOST_AT_ONCE + 1,
    )
    if len(found) > MOST_AT_ONCE:
        raise ApiError(
            ErrorCode.LIMIT_REACHED,
            f"More than {MOST_AT_ONCE:,} agents match; nothing was changed. Narrow the filter.",
        )
    await wallet_store.lock_wallets(tx, found)
    # Another change may have come first: those that still match, now that nobody changes them.
    matching = [
        agent for agent in await store.get_agents(tx, actor.realm_id, found) if which.matches(agent)
    ]
    if change.budget_id is not UNSET:
        await _check_budget(tx, actor.realm_id, change.budget_id)
    changed = await apply_changes(
        tx, actor, [(before, _changed(before, change)) for before in matching]
    )
    return len(matching), len(changed)


def _changed(before: AgentRow, change: AgentChange) -> AgentRow:
    if before.status == "terminated":
        raise ApiError(
            ErrorCode.AGENT_TERMINATED,
            "This agent is terminated, for good; create a new one instead.",
        )
    if change.seen_version not in (UNSET, before.policy.version):
        raise ApiError(
            ErrorCode.POLICY_VERSION_CONFLICT,
            f"The policy of {before.id} is at version {before.policy.version}, not"
            f" {change.seen_version}. Read it again, then decide whether your change still holds.",
            param="policy.version",
        )
    return replace(
        before,
        name=before.name if change.name is UNSET else change.name,
        status=before.status if change.status is UNSET else change.status,
        metadata=before.metadata if change.metadata is UNSET else change.metadata,
        budget_id=before.budget_id if change.budget_id is UNSET else change.budget_id,
        policy=before.policy.changed(_named(change.policy, before.policy)),
    )


def _named(change: PolicyChange, before: Policy) -> PolicyChange:
    if change.limits is UNSET:
        return change
    limits = named_limits(change.limits, before.limits)
    return msgspec.structs.replace(change, limits=limits)


async def _check_budget(tx: Tx, realm_id: int, budget_id: str | None) -> None:
    """Raises ValidationFailed when there is no such budget here."""
    if budget_id is not None and await budget_store.hold_budget(tx, realm_id, budget_id) is None:
        raise ValidationFailed([Fault("budgetId", "budgetId names no budget of this account.")])


async def terminate_agent(tx: Tx, actor: Actor, agent_id: str) -> AgentRow:
    """Idempotent and permanent. The wallet stays readable and can still be withdrawn from."""
    await get_agent(tx, actor.realm_id, agent_id)
    locked = await lock.lock_agents(tx, [agent_id], [actor.realm_id])
    before = await get_agent(tx, actor.realm_id, agent_id)
    if before.status == "terminated":
        return before
    await access_store.revoke_keys_of_agent(tx, agent_id)
    await reject_spends(
        tx,
        locked[agent_id].wallet,
        [spend.id for spend in await spend_store.pending_of_agent(tx, agent_id)],
        expected="pending",
        code=RejectCode.AGENT_TERMINATED,
        decided_by=actor.name,
        reason=None,
    )
    return await apply_change(tx, actor, before, replace(before, status="terminated"))


async def apply_change(tx: Tx, actor: Actor, before: AgentRow, after: AgentRow) -> AgentRow:
    """Writes what differs, its events, and a line of the audit log. The caller holds the lock."""
    changed = await apply_changes(tx, actor, [(before, after)])
    return changed[0] if changed else before


async def apply_changes(
    tx: Tx, actor: Actor, wanted: Sequence[tuple[AgentRow, AgentRow]]
) -> list[AgentRow]:
    """The same for many, in as many round trips as for one. Returns those that differed."""
    differing = [(before, after) for before, after in wanted if after != before]
    if not differing:
        return []
    now = await moment(tx)
    changes = [(before, _written(after, now)) for before, after in differing]
    await policy_store.insert_policies(
        tx,
        [
            (after.id, after.policy)
            for before, after in changes
            if after.policy is not before.policy
        ],
        actor.name,
        now,
    )
    await store.update_agents(tx, changes)
    await wallet_store.set_low(
        tx,
        [after.wallet for before, after in changes if after.wallet.is_low != before.wallet.is_low],
    )
    await emit(
        tx,
        [
            NewEvent(actor.realm_id, type_, after.id, data, now)
            for before, after in changes
            for type_, data in _events(before, after, actor.name)
        ],
    )
    await leave_trails(
        tx,
        realm_id=actor.realm_id,
        actor=actor.name,
        request_id=actor.request_id,
        lines=[
            (
                "agent.terminated" if after.status == "terminated" else "agent.changed",
                after.id,
                show_agent(before),
                show_agent(after),
            )
            for before, after in changes
        ],
    )
    return [after for _, after in changes]


def _written(after: AgentRow, now: datetime) -> AgentRow:
    is_low = low(after.wallet.balance_micros, after.policy.cap_micros_daily)
    return replace(
        after,
        updated_at=now,
        terminated_at=now if after.status == "terminated" else None,
        wallet=replace(after.wallet, is_low=is_low),
    )


def _events(before: AgentRow, after: AgentRow, by: str) -> list[tuple[EventType, Any]]:
    shown = show_agent(after)
    events: list[tuple[EventType, Any]] = []
    if after.policy is not before.policy:
        updated = AgentPolicyUpdated(
            **msgspec.structs.asdict(shown),
            previous_policy=show_policy(after.policy_id, before.policy),
            changed_by=by,
        )
        events.append((EventType.AGENT_POLICY_UPDATED, updated))
    if after.status == "paused" and before.status == "active":
        events.append((EventType.AGENT_PAUSED, shown))
    if after.status == "active" and before.status == "paused":
        resumed = AgentResumed(**msgspec.structs.asdict(shown), changed_by=by)
        events.append((EventType.AGENT_RESUMED, resumed))
    if after.wallet.is_low and not before.wallet.is_low and after.status != "terminated":
        events.append((EventType.WALLET_LOW_BALANCE, show_wallet(after.wallet)))
    if after.status == "terminated":
        events.append((EventType.AGENT_TERMINATED, shown))
    return events


async def get_agent(tx: Tx, realm_id: int, agent_id: str) -> AgentRow:
    row = await store.get_agent(tx, realm_id, agent_id) if is_id("ag", agent_id) else None
    if row is None:
        raise not_found("agent")
    return row


async def lock_agent(tx: Tx, realm_id: int, agent_id: str) -> AgentRow:
    """The agent as it is under its wallet's lock: no change and no spend until the commit."""
    await get_agent(tx, realm_id, agent_id)
    await wallet_store.lock_wallets(tx, [agent_id])
    return await get_agent(tx, realm_id, agent_id)
