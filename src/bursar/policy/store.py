"""Queries on policy versions."""

from collections.abc import Sequence
from datetime import datetime

from bursar.db import Row, Tx
from bursar.policy.model import Policy

COLUMNS = (
    "p.version, p.cap_micros_daily, p.cap_micros_per_transaction, p.approval_threshold_micros,"
    " p.allowlist, p.blocklist, p.frozen, p.network_lamports_daily"
)


async def insert_policy(
    tx: Tx, agent_id: str, policy: Policy, changed_by: str, changed_at: datetime
) -> None:
    await tx.execute(
        "INSERT INTO policy (agent_id, version, cap_micros_daily, cap_micros_per_transaction,"
        " approval_threshold_micros, allowlist, blocklist, frozen, changed_by, changed_at,"
        " network_lamports_daily) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        agent_id,
        policy.version,
        policy.cap_micros_daily,
        policy.cap_micros_per_transaction,
        policy.approval_threshold_micros,
        policy.allowlist,
        policy.blocklist,
        policy.frozen,
        changed_by,
        changed_at,
        policy.network_lamports_daily,
    )


async def list_versions(
    tx: Tx, agent_id: str, before_version: int | None, limit: int
) -> list[tuple[Policy, str, datetime]]:
    """(policy, changed by, changed at), newest first."""
    rows = await tx.fetch(
        f"SELECT {COLUMNS}, p.changed_by, p.changed_at FROM policy p WHERE p.agent_id = $1"
        " AND ($2::integer IS NULL OR p.version < $2) ORDER BY p.version DESC LIMIT $3",
        agent_id,
        before_version,
        limit,
    )
    return [(policy_of(row), row["changed_by"], row["changed_at"]) for row in rows]


def policy_of(row: Row) -> Policy:
    return Policy(
        version=row["version"],
        cap_micros_daily=row["cap_micros_daily"],
        cap_micros_per_transaction=row["cap_micros_per_transaction"],
        approval_threshold_micros=row["approval_threshold_micros"],
        allowlist=tuple(row["allowlist"]),
        blocklist=tuple(row["blocklist"]),
        frozen=row["frozen"],
        network_lamports_daily=row["network_lamports_daily"],
    )


async def get_versions(
    tx: Tx, versions: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], Policy]:
    agents, numbers = zip(*versions, strict=True)
    rows = await tx.fetch(
        f"SELECT p.agent_id, {COLUMNS} FROM policy p"
        " JOIN unnest($1::text[], $2::int[]) AS v (agent_id, version)"
        " ON v.agent_id = p.agent_id AND v.version = p.version",
        agents,
        numbers,
    )
    return {(row["agent_id"], row["version"]): policy_of(row) for row in rows}
