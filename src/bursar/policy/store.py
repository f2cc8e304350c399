"""Queries on policy versions."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import msgspec

from bursar.db import Row, Tx
from bursar.errors import check
from bursar.policy.limits import Limit
from bursar.policy.model import Policy
from bursar.sql import Query, columns, made

_encode = msgspec.json.Encoder().encode
decode_limits = msgspec.json.Decoder(tuple[Limit, ...]).decode

_INSERT = Query("""
    INSERT INTO policy (agent_id, version, cap_micros_daily, cap_micros_per_transaction,
                        approval_threshold_micros, allowlist, blocklist, payees, limits, frozen,
                        network_lamports_daily, changed_by, changed_at)
    VALUES (:agent_id, :version, :cap_micros_daily, :cap_micros_per_transaction,
            :approval_threshold_micros, :allowlist, :blocklist, :payees, :limits, :frozen,
            :network_lamports_daily, :changed_by, :changed_at)
""")
# A limit of one recipient that stays, stays as it was counted.
_INSERT_METER = Query("""
    INSERT INTO meter (id, realm_id, created_at)
    SELECT :meter_id, a.realm_id, :at
      FROM agent a
     WHERE a.id = :agent_id
        ON CONFLICT (id) DO NOTHING
""")
_LIST = Query(f"""
    SELECT {columns(Policy)}, changed_by, changed_at
      FROM policy
     WHERE agent_id = :agent_id
       AND (:before_version::integer IS NULL OR version < :before_version)
     ORDER BY version DESC
     LIMIT :limit
""")
_GET = Query(f"""
    SELECT p.agent_id, {columns(Policy, "p")}
      FROM policy p
      JOIN unnest(:agent_ids::text[], :versions::int[]) AS v (agent_id, version)
        ON v.agent_id = p.agent_id AND v.version = p.version
""")


async def insert_policies(
    tx: Tx, policies: Sequence[tuple[str, Policy]], changed_by: str, changed_at: datetime
) -> None:
    """Each with its agent."""
    await _INSERT.run_each(
        tx,
        [
            {
                "agent_id": agent_id,
                "changed_by": changed_by,
                "changed_at": changed_at,
                **asdict(policy),
                "limits": encode_limits(policy.limits),
            }
            for agent_id, policy in policies
        ],
    )
    check(
        all(limit.id for _, policy in policies for limit in policy.limits),
        "a limit is named before it is stored: its meter has that name",
    )
    await _INSERT_METER.run_each(
        tx,
        [
            {"meter_id": limit.id, "agent_id": agent_id, "at": changed_at}
            for agent_id, policy in policies
            for limit in policy.limits
            if limit.recipient is not None
        ],
    )


def encode_limits(limits: Sequence[Limit]) -> str:
    return _encode(limits).decode()


async def list_versions(
    tx: Tx, agent_id: str, before_version: int | None, limit: int
) -> list[tuple[Policy, str, datetime]]:
    """(policy, changed by, changed at), newest first."""
    rows = await _LIST.rows(tx, agent_id=agent_id, before_version=before_version, limit=limit)
    return [(policy_of(row), row["changed_by"], row["changed_at"]) for row in rows]


async def get_versions(
    tx: Tx, versions: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], Policy]:
    """By agent and version."""
    agent_ids, numbers = zip(*versions, strict=True)
    rows = await _GET.rows(tx, agent_ids=agent_ids, versions=numbers)
    return {(row["agent_id"], row["version"]): policy_of(row) for row in rows}


def policy_of(row: Row) -> Policy:
    return made(
        Policy,
        row,
        allowlist=tuple(row["allowlist"]),
        blocklist=tuple(row["blocklist"]),
        limits=decode_limits(row["limits"]),
    )
