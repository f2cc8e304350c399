"""Making and revoking keys: the same for the API and for the operator's command."""

from dataclasses import replace
from datetime import datetime

from bursar.access import store
from bursar.access.model import KeyRow, NewKey, Scope, key_hash, new_secret
from bursar.access.view import KeyChanged, key_fields, show_key
from bursar.config import Mode
from bursar.db import Tx, moment
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, not_found
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ids import is_id, new_id
from bursar.ledger import lock
from bursar.trail.trail import leave_trail


async def issue_key(
    tx: Tx,
    *,
    realm_id: int,
    mode: Mode,
    scope: Scope,
    agent_id: str | None,
    name: str,
    expires_at: datetime | None,
    actor: str,
    request_id: str,
) -> NewKey:
    """Makes a key. Its secret is in the answer and stored nowhere."""
    faults = key_faults(scope, agent_id, expires_at, await moment(tx))
    if faults:
        raise ValidationFailed(faults)
    if agent_id is not None:
        await _check_agent(tx, realm_id, agent_id)
    secret = new_secret(mode)
    row = await store.insert_key(
        tx,
        key_id=new_id("key"),
        realm_id=realm_id,
        scope=scope,
        agent_id=agent_id,
        name=name,
        key_hash=key_hash(secret),
        expires_at=expires_at,
    )
    await _tell(tx, realm_id, EventType.KEY_CREATED, row, actor)
    await leave_trail(
        tx,
        realm_id=realm_id,
        actor=actor,
        request_id=request_id,
        action="key.created",
        subject=row.id,
        after=show_key(row),
    )
    return NewKey(row, secret)


def key_faults(
    scope: Scope | None, agent_id: str | None, expires_at: datetime | None, now: datetime
) -> list[Fault]:
    """What is wrong with the request for a key; rules of the scope apply only if the scope is
    valid."""
    faults: list[Fault] = []
    if scope is not None and (scope is Scope.AGENT) != (agent_id is not None):
        faults.append(Fault("agentId", "agentId is required for scope agent, and only for it."))
    if expires_at is not None and expires_at <= now:
        faults.append(Fault("expiresAt", "expiresAt must lie in the future."))
    return faults


async def revoke_key(
    tx: Tx, realm_id: int | None, key_id: str, *, actor: str, request_id: str
) -> None:
    """Idempotent: a key that is revoked already stays as it is."""
    found = await store.lock_key(tx, realm_id, key_id) if is_id("key", key_id) else None
    if found is None:
        raise not_found("key")
    key_realm_id, before = found
    if before.revoked_at is not None:
        return
    after = replace(before, revoked_at=await store.revoke_key(tx, key_id))
    await _tell(tx, key_realm_id, EventType.KEY_REVOKED, after, actor)
    await leave_trail(
        tx,
        realm_id=key_realm_id,
        actor=actor,
        request_id=request_id,
        action="key.revoked",
        subject=key_id,
        before=show_key(before),
        after=show_key(after),
    )


async def _tell(tx: Tx, realm_id: int, type_: EventType, row: KeyRow, actor: str) -> None:
    shown = KeyChanged(**key_fields(row), changed_by=actor)
    await emit(tx, [NewEvent(realm_id, type_, None, shown, await moment(tx))])


async def get_key(tx: Tx, realm_id: int, key_id: str) -> KeyRow:
    row = await store.get_key(tx, realm_id, key_id) if is_id("key", key_id) else None
    if row is None:
        raise not_found("key")
    return row


async def _check_agent(tx: Tx, realm_id: int, agent_id: str) -> None:
    """Takes the agent's lock: a key made while a DELETE runs would outlive the agent."""
    locked = await lock.lock_agents(tx, [agent_id], [realm_id]) if is_id("ag", agent_id) else {}
    if agent_id not in locked:
        raise not_found("agent")
    if locked[agent_id].agent_status == "terminated":
        raise ApiError(ErrorCode.AGENT_TERMINATED, "A terminated agent gets no new keys.")
