"""Queries on agents and their metadata labels."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from bursar.agent.model import AgentRow
from bursar.db import Row, Tx
from bursar.policy import store as policy_store
from bursar.policy.model import Policy
from bursar.sql import Filtered, Listing, Query, columns, made
from bursar.wallet import store as wallet_store

_COLUMNS = f"""
           {columns(AgentRow, "a", but=["policy", "wallet"])},
           {columns(Policy, "p")},
           {wallet_store.COLUMNS}
"""
_POLICY_AND_WALLET = """
      JOIN policy p ON p.agent_id = a.id AND p.version = a.policy_version
      JOIN wallet w ON w.agent_id = a.id
"""
_INSERT = Query("""
    INSERT INTO agent (id, realm_id, name, metadata, policy_id, budget_id, created_at, updated_at)
    SELECT :agent_id, :realm_id, :name, :metadata, :policy_id, :budget_id, now.at, now.at
      FROM (SELECT moment() AS at) now
    RETURNING created_at
""")
_GET = Query(f"""
    SELECT {_COLUMNS}
      FROM agent a
      {_POLICY_AND_WALLET}
     WHERE a.id = :agent_id AND a.realm_id = :realm_id
""")
# A page is found on one index, in its order, and only then filled in: whatever the planner believes
# of the filters, the cost does not grow with the number of agents.
_FILLED_IN = f"""
    SELECT {_COLUMNS}
      FROM ({{page}}) AS page
      JOIN agent a ON a.id = page.id
      {_POLICY_AND_WALLET}
     ORDER BY page.created_at DESC, page.id DESC
"""
_LIST = Listing(
    """
    SELECT a.id, a.created_at
      FROM agent a
     WHERE a.realm_id = :realm_id
       AND a.id = :agent_id
       AND a.status = :status
       AND a.budget_id = :budget_id
    """,
    "a.created_at",
    "a.id",
    around=_FILLED_IN,
)
# The index of one label gives the order; each of its agents is then looked at for the rest.
# OFFSET 0 keeps the planner from turning this around.
_LIST_LABELLED = Listing(
    """
    SELECT l.agent_id AS id, l.created_at
      FROM agent_label l
     CROSS JOIN LATERAL (
           SELECT FROM agent a
            WHERE a.id = l.agent_id
              AND a.id = :agent_id
              AND a.status = :status
              AND a.budget_id = :budget_id
              AND a.metadata @> :metadata::jsonb
           OFFSET 0) AS a
     WHERE l.realm_id = :realm_id AND l.name = :label AND l.value_hash = :value_hash
    """,
    "l.created_at",
    "l.agent_id",
    around=_FILLED_IN,
)
# Not a page of the list: in the order of ids, in which they are locked.
_FIND = Filtered("""
    SELECT a.id
      FROM agent a
     WHERE a.realm_id = :realm_id AND a.status <> 'terminated'
       AND a.status = :status
       AND a.budget_id = :budget_id
     ORDER BY a.id
     LIMIT :limit
""")
_FIND_LABELLED = Filtered("""
    SELECT a.id
      FROM agent_label l
      JOIN agent a ON a.id = l.agent_id
     WHERE l.realm_id = :realm_id AND l.name = :label AND l.value_hash = :value_hash
       AND a.status <> 'terminated' AND a.metadata @> :metadata::jsonb
       AND a.status = :status
       AND a.budget_id = :budget_id
     ORDER BY a.id
     LIMIT :limit
""")
_GET_MANY = Query(f"""
    SELECT {_COLUMNS}
      FROM agent a
      {_POLICY_AND_WALLET}
     WHERE a.id = ANY(:agent_ids) AND a.realm_id = :realm_id
     ORDER BY a.id
""")
_UPDATE = Query("""
    UPDATE agent
       SET name = :name, status = :status, metadata = :metadata, budget_id = :budget_id,
           policy_version = :policy_version, updated_at = :updated_at,
           terminated_at = :terminated_at
     WHERE id = :agent_id
""")
_DELETE_LABELS = Query("""
    DELETE FROM agent_label
     WHERE agent_id = :agent_id
""")
_INSERT_LABELS = Query("""
    INSERT INTO agent_label (agent_id, realm_id, name, value_hash, created_at)
    SELECT :agent_id, :realm_id, l.name, l.value_hash, :created_at
      FROM unnest(:names::text[], :value_hashes::bytea[]) AS l (name, value_hash)
""")


async def insert_agent(
    tx: Tx,
    *,
    agent_id: str,
    realm_id: int,
    name: str,
    metadata: Mapping[str, str],
    policy_id: str,
    budget_id: str | None,
) -> datetime:
    """Returns the moment of creation."""
    created_at: datetime = await _INSERT.value(
        tx,
        agent_id=agent_id,
        realm_id=realm_id,
        name=name,
        metadata=_json(metadata),
        policy_id=policy_id,
        budget_id=budget_id,
    )
    await _insert_labels(tx, agent_id, realm_id, metadata, created_at)
    return created_at


async def get_agent(tx: Tx, realm_id: int, agent_id: str) -> AgentRow | None:
    row = await _GET.row(tx, realm_id=realm_id, agent_id=agent_id)
    return None if row is None else _agent(row)


async def list_agents(
    tx: Tx,
    realm_id: int,
    *,
    agent_id: str | None,
    status: str | None,
    budget_id: str | None,
    metadata: Mapping[str, str],
    before: tuple[datetime, str] | None,
    limit: int,
) -> list[AgentRow]:
    """Newest first."""
    filters = {
        "realm_id": realm_id,
        "agent_id": agent_id,
        "status": status,
        "budget_id": budget_id,
    }
    if metadata:
        label, value = next(iter(metadata.items()))
        rows = await _LIST_LABELLED.rows(
            tx,
            before,
            limit,
            **filters,
            metadata=_json(metadata),
            label=label,
            value_hash=_value_hash(value),
        )
    else:
        rows = await _LIST.rows(tx, before, limit, **filters)
    return [_agent(row) for row in rows]


async def find_agents(
    tx: Tx,
    realm_id: int,
    *,
    status: str | None,
    metadata: Mapping[str, str],
    limit: int,
    budget_id: str | None = None,
) -> list[str]:
    """Ids of agents that are not terminated, in their order."""
    filters = {"realm_id": realm_id, "status": status, "budget_id": budget_id}
    if metadata:
        label, value = next(iter(metadata.items()))
        rows = await _FIND_LABELLED.rows(
            tx,
            **filters,
            metadata=_json(metadata),
            label=label,
            value_hash=_value_hash(value),
            limit=limit,
        )
    else:
        rows = await _FIND.rows(tx, **filters, limit=limit)
    return [row["id"] for row in rows]


async def get_agents(tx: Tx, realm_id: int, agent_ids: Sequence[str]) -> list[AgentRow]:
    """In the order of their ids."""
    return [_agent(row) for row in await _GET_MANY.rows(tx, realm_id=realm_id, agent_ids=agent_ids)]


async def update_agents(tx: Tx, changes: Sequence[tuple[AgentRow, AgentRow]]) -> None:
    """Each as it was, and as it is to be."""
    await _UPDATE.run_each(
        tx,
        [
            {
                "agent_id": after.id,
                "name": after.name,
                "status": after.status,
                "metadata": _json(after.metadata),
                "budget_id": after.budget_id,
                "policy_version": after.policy.version,
                "updated_at": after.updated_at,
                "terminated_at": after.terminated_at,
            }
            for _, after in changes
        ],
    )
    relabelled = [after for before, after in changes if after.metadata != before.metadata]
    await _DELETE_LABELS.run_each(tx, [{"agent_id": after.id} for after in relabelled])
    for after in relabelled:
        await _insert_labels(tx, after.id, after.realm_id, after.metadata, after.created_at)


async def _insert_labels(
    tx: Tx, agent_id: str, realm_id: int, metadata: Mapping[str, str], created_at: datetime
) -> None:
    if metadata:
        await _INSERT_LABELS.run(
            tx,
            agent_id=agent_id,
            realm_id=realm_id,
            created_at=created_at,
            names=list(metadata),
            value_hashes=[_value_hash(value) for value in metadata.values()],
        )


def _value_hash(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()[:16]


def _json(value: Mapping[str, str]) -> str:
    return msgspec.json.encode(value).decode()


def _agent(row: Row) -> AgentRow:
    return made(
        AgentRow,
        row,
        metadata=msgspec.json.decode(row["metadata"]),
        policy=policy_store.policy_of(row),
        wallet=wallet_store.wallet_of(row),
    )
