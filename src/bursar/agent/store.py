"""Queries on agents and their metadata labels."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from bursar.agent.model import AgentRow
from bursar.db import Row, Tx
from bursar.policy import store as policy_store
from bursar.wallet import store as wallet_store

_SELECT = (
    "SELECT a.id, a.realm_id, a.name, a.status, a.metadata, a.policy_id, a.created_at,"
    f" a.updated_at, a.terminated_at, {policy_store.COLUMNS}, {wallet_store.COLUMNS}"
    " FROM agent a JOIN policy p ON p.agent_id = a.id AND p.version = a.policy_version"
    " JOIN wallet w ON w.agent_id = a.id"
)


async def insert_agent(
    tx: Tx,
    *,
    agent_id: str,
    realm_id: int,
    name: str,
    metadata: Mapping[str, str],
    policy_id: str,
) -> datetime:
    """Returns the moment of creation."""
    created_at: datetime = await tx.fetchval(
        "INSERT INTO agent (id, realm_id, name, metadata, policy_id, created_at, updated_at)"
        " SELECT $1, $2, $3, $4, $5, now.at, now.at FROM (SELECT moment() AS at) now"
        " RETURNING created_at",
        agent_id,
        realm_id,
        name,
        _json(metadata),
        policy_id,
    )
    await _insert_labels(tx, agent_id, realm_id, metadata, created_at)
    return created_at


async def get_agent(tx: Tx, realm_id: int, agent_id: str) -> AgentRow | None:
    row = await tx.fetchrow(f"{_SELECT} WHERE a.id = $2 AND a.realm_id = $1", realm_id, agent_id)
    return None if row is None else _agent(row)


async def list_agents(
    tx: Tx,
    realm_id: int,
    *,
    agent_id: str | None,
    status: str | None,
    metadata: Mapping[str, str],
    before: tuple[datetime, str] | None,
    limit: int,
) -> list[AgentRow]:
    """Newest first. The page is found on one index, in its order, and only then filled in: whatever
    the planner believes of the filters, the cost does not grow with the number of agents."""
    arguments: list[Any] = [realm_id, limit]

    def bind(value: Any) -> str:
        arguments.append(value)
        return f"${len(arguments)}"

    about_agent = ""
    if agent_id is not None:
        about_agent += f" AND a.id = {bind(agent_id)}"
    if status is not None:
        about_agent += f" AND a.status = {bind(status)}"
    if metadata:
        # One pair's index gives the order; each of its agents is then looked at for the rest.
        # OFFSET 0 keeps the planner from turning this around.
        name, value = next(iter(metadata.items()))
        page = (
            "SELECT l.agent_id AS id, l.created_at FROM agent_label l CROSS JOIN LATERAL"
            f" (SELECT FROM agent a WHERE a.id = l.agent_id"
            f" AND a.metadata @> {bind(_json(metadata))}::jsonb{about_agent} OFFSET 0) AS a"
            f" WHERE l.realm_id = $1 AND l.name = {bind(name)}"
            f" AND l.value_hash = {bind(_value_hash(value))}"
        )
        age = "l.created_at, l.agent_id"
    else:
        page = f"SELECT a.id, a.created_at FROM agent a WHERE a.realm_id = $1{about_agent}"
        age = "a.created_at, a.id"
    if before is not None:
        page += f" AND ({age}) < ({bind(before[0])}::timestamptz, {bind(before[1])}::text)"
    newest_first = ", ".join(f"{column} DESC" for column in age.split(", "))
    rows = await tx.fetch(
        f"{_SELECT} JOIN ({page} ORDER BY {newest_first} LIMIT $2) AS page ON page.id = a.id"
        " ORDER BY page.created_at DESC, page.id DESC",
        *arguments,
    )
    return [_agent(row) for row in rows]


async def update_agent(
    tx: Tx,
    row: AgentRow,
    *,
    name: str,
    status: str,
    metadata: Mapping[str, str],
    policy_version: int,
    updated_at: datetime,
    terminated_at: datetime | None,
) -> None:
    await tx.execute(
        "UPDATE agent SET name = $2, status = $3, metadata = $4, policy_version = $5,"
        " updated_at = $6, terminated_at = $7 WHERE id = $1",
        row.id,
        name,
        status,
        _json(metadata),
        policy_version,
        updated_at,
        terminated_at,
    )
    if metadata != row.metadata:
        await tx.execute("DELETE FROM agent_label WHERE agent_id = $1", row.id)
        await _insert_labels(tx, row.id, row.realm_id, metadata, row.created_at)


async def _insert_labels(
    tx: Tx, agent_id: str, realm_id: int, metadata: Mapping[str, str], created_at: datetime
) -> None:
    if metadata:
        await tx.execute(
            "INSERT INTO agent_label (agent_id, realm_id, name, value_hash, created_at)"
            " SELECT $1, $2, l.name, l.value_hash, $5"
            " FROM unnest($3::text[], $4::bytea[]) AS l (name, value_hash)",
            agent_id,
            realm_id,
            list(metadata),
            [_value_hash(value) for value in metadata.values()],
            created_at,
        )


def _value_hash(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()[:16]


def _json(value: Mapping[str, str]) -> str:
    return msgspec.json.encode(value).decode()


def _agent(row: Row) -> AgentRow:
    return AgentRow(
        id=row["id"],
        realm_id=row["realm_id"],
        name=row["name"],
        status=row["status"],
        metadata=msgspec.json.decode(row["metadata"]),
        policy_id=row["policy_id"],
        policy=policy_store.policy_of(row),
        wallet=wallet_store.wallet_of(row),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        terminated_at=row["terminated_at"],
    )
