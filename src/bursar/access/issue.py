"""Making and revoking keys: the same for the API and for the operator's command."""

from datetime import datetime
from typing import Final

from bursar.access import store
from bursar.access.model import KeyRow, NewKey, Scope, key_hash, new_secret
from bursar.agent import store as agent_store
from bursar.config import Mode
from bursar.db import Tx
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, not_found
from bursar.ids import is_id, new_id
from bursar.wallet import store as wallet_store

AGENT_FAULT: Final = Fault("agentId", "agentId is required for scope agent, and only for it.")


async def issue_key(
    tx: Tx,
    *,
    realm_id: int,
    mode: Mode,
    scope: Scope,
    agent_id: str | None,
    name: str,
    expires_at: datetime | None,
) -> NewKey:
    """A new key; its secret is in the answer and nowhere else."""
    faults: list[Fault] = []
    if (scope is Scope.AGENT) != (agent_id is not None):
        faults.append(AGENT_FAULT)
    if expires_at is not None and expires_at <= await agent_store.moment(tx):
        faults.append(Fault("expiresAt", "expiresAt must lie in the future."))
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
    return NewKey(row, secret)


async def revoke_key(tx: Tx, realm_id: int | None, key_id: str) -> None:
    if not is_id("key", key_id) or not await store.revoke_key(tx, realm_id, key_id):
        raise not_found("key")


async def get_key(tx: Tx, realm_id: int, key_id: str) -> KeyRow:
    row = await store.get_key(tx, realm_id, key_id) if is_id("key", key_id) else None
    if row is None:
        raise not_found("key")
    return row


async def _check_agent(tx: Tx, realm_id: int, agent_id: str) -> None:
    # Under the agent's lock: a key made beside a DELETE would outlive the agent.
    await wallet_store.lock_wallets(tx, [agent_id])
    agent = await agent_store.get_agent(tx, realm_id, agent_id) if is_id("ag", agent_id) else None
    if agent is None:
        raise not_found("agent")
    if agent.status == "terminated":
        raise ApiError(ErrorCode.AGENT_TERMINATED, "A terminated agent gets no new keys.")
