"""Queries on spends and on what they use of a day's cap."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import msgspec

from bursar.db import Row, Tx
from bursar.policy.engine import Decision, RejectCode
from bursar.spend.model import SpendRow, SpendStatus

_COLUMNS = (
    "id, realm_id, agent_id, amount_micros, recipient, pay_to, status, reject_code, memo,"
    " metadata, policy_version, decision, network, created_by, created_at, expires_at, decided_by,"
    " decided_at, decision_reason, signature, block_time, fee_lamports, settled_at, updated_at,"
    " decision_number"
)
_QUALIFIED = ", ".join(f"spend.{name.strip()}" for name in _COLUMNS.split(","))
# What a new spend has; the rest comes in later life.
_NEW_COLUMNS = (
    "id", "realm_id", "agent_id", "amount_micros", "recipient", "pay_to", "status", "reject_code",
    "memo", "metadata", "policy_version", "decision", "network", "created_by", "created_at",
    "expires_at", "updated_at", "decision_number",
)  # fmt: skip
_decode_decision = msgspec.json.Decoder(Decision).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


async def insert_spends(tx: Tx, spends: Sequence[SpendRow]) -> None:
    """New spends: what only later life brings (a signature, a decider) is not there yet."""
    await tx.copy_records_to_table(
        "spend",
        columns=_NEW_COLUMNS,
        records=[
            (
                s.id,
                s.realm_id,
                s.agent_id,
                s.amount_micros,
                s.recipient,
                s.pay_to,
                s.status,
                s.reject_code,
                s.memo,
                _encode(s.metadata).decode() if s.metadata else "{}",
                s.policy_version,
                _encode(s.decision).decode(),
                s.network,
                s.created_by,
                s.created_at,
                s.expires_at,
                s.updated_at,
                s.decision_number,
            )
            for s in spends
        ],
    )


async def get_spend(tx: Tx, realm_id: int, spend_id: str) -> SpendRow | None:
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS} FROM spend WHERE id = $2 AND realm_id = $1", realm_id, spend_id
    )
    return None if row is None else spend_of(row)


async def list_spends(
    tx: Tx, filters: "SpendFilter", before: tuple[datetime, str] | None, limit: int
) -> list[SpendRow]:
    """Newest first."""
    where, arguments = _where(filters, before)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM spend WHERE {where} ORDER BY created_at DESC, id DESC"
        f" LIMIT {int(limit)}",
        *arguments,
    )
    return [spend_of(row) for row in rows]


async def pending_of_agent(tx: Tx, agent_id: str) -> list[SpendRow]:
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM spend WHERE agent_id = $1 AND status = 'pending' ORDER BY id",
        agent_id,
    )
    return [spend_of(row) for row in rows]


async def expired(tx: Tx, limit: int) -> list[tuple[str, int, str]]:
    """(agent, realm, spend) of pending spends whose time is over, oldest first."""
    rows = await tx.fetch(
        "SELECT agent_id, realm_id, id FROM spend WHERE status = 'pending'"
        " AND expires_at <= moment() ORDER BY expires_at LIMIT $1",
        limit,
    )
    return [(row["agent_id"], row["realm_id"], row["id"]) for row in rows]


async def move_spends(
    tx: Tx,
    spend_ids: Sequence[str],
    *,
    expected: SpendStatus,
    status: SpendStatus,
    reject_code: RejectCode | None,
    decided_by: str | None,
    decision_reason: str | None,
    at: datetime,
) -> list[SpendRow]:
    """Moves those that are still in the expected state; whoever is missing was not.

    With `decided_by` None nobody decides: what is known of an earlier decision stays.
    """
    rows = await tx.fetch(
        "UPDATE spend SET status = $3, reject_code = $4, decided_by = coalesce($5, decided_by),"
        " decided_at = CASE WHEN $5 IS NULL THEN decided_at ELSE $7 END,"
        " decision_reason = CASE WHEN $5 IS NULL THEN decision_reason ELSE $6 END,"
        " updated_at = $7 WHERE id = ANY($1) AND status = $2"
        f" RETURNING {_COLUMNS}",
        spend_ids,
        expected,
        status,
        reject_code,
        decided_by,
        decision_reason,
        at,
    )
    return [spend_of(row) for row in rows]


async def settle_spends(
    tx: Tx, landed: Sequence[tuple[str, str, int | None, int]], at: datetime
) -> list[SpendRow]:
    """Rows of (spend, signature, block time, fee): those that were approved until now."""
    ids, signatures, times, fees = zip(*landed, strict=True)
    rows = await tx.fetch(
        "UPDATE spend SET status = 'settled', signature = l.signature, block_time = l.block_time,"
        " fee_lamports = l.fee, settled_at = $5, updated_at = $5"
        " FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])"
        " AS l (spend_id, signature, block_time, fee)"
        f" WHERE id = l.spend_id AND status = 'approved' RETURNING {_QUALIFIED}",
        ids,
        signatures,
        times,
        fees,
        at,
    )
    return [spend_of(row) for row in rows]


async def finished(tx: Tx, spend_ids: Sequence[str]) -> list[SpendRow]:
    """Those that reached a terminal state."""
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM spend WHERE id = ANY($1) AND status IN ('settled', 'rejected')",
        spend_ids,
    )
    return [spend_of(row) for row in rows]


async def add_usage(tx: Tx, day: date, uses: Mapping[str, tuple[int, int]]) -> None:
    """Adds to what agents used of a day: agent -> (micros, daily cap in force).

    The table's constraint refuses what would pass the cap, whatever was decided.
    """
    await tx.execute(
        "INSERT INTO usage AS u (agent_id, window_kind, window_start, spent_micros, cap_micros)"
        " SELECT d.agent_id, 'day', $1, d.micros, d.cap"
        " FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS d (agent_id, micros, cap)"
        " ON CONFLICT (agent_id, window_kind, window_start) DO UPDATE"
        " SET spent_micros = u.spent_micros + excluded.spent_micros,"
        " cap_micros = excluded.cap_micros",
        day,
        list(uses),
        [micros for micros, _ in uses.values()],
        [cap for _, cap in uses.values()],
    )


async def release_usage(tx: Tx, deltas: Mapping[tuple[str, date], int]) -> None:
    """Gives amounts back to the days they were counted on."""
    keys = sorted(deltas)
    await tx.execute(
        "UPDATE usage u SET spent_micros = u.spent_micros - d.micros"
        " FROM unnest($1::text[], $2::date[], $3::bigint[]) AS d (agent_id, day, micros)"
        " WHERE u.agent_id = d.agent_id AND u.window_kind = 'day' AND u.window_start = d.day",
        [agent_id for agent_id, _ in keys],
        [day for _, day in keys],
        [deltas[key] for key in keys],
    )


async def used_on(tx: Tx, agent_id: str, day: date) -> int:
    spent = await tx.fetchval(
        "SELECT spent_micros FROM usage"
        " WHERE agent_id = $1 AND window_kind = 'day' AND window_start = $2",
        agent_id,
        day,
    )
    return spent or 0


class SpendFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list, the statistics or an export is narrowed to."""

    realm_id: int
    agent_id: str | None = None
    status: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    settled_from: datetime | None = None
    settled_to: datetime | None = None
    recipient: str | None = None


def _where(filters: SpendFilter, before: tuple[datetime, str] | None) -> tuple[str, list[Any]]:
    conditions = [
        ("realm_id = {}", filters.realm_id),
        ("agent_id = {}", filters.agent_id),
        ("status = {}", filters.status),
        ("created_at >= {}", filters.created_from),
        ("created_at < {}", filters.created_to),
        ("settled_at >= {}", filters.settled_from),
        ("settled_at < {}", filters.settled_to),
        ("recipient = {}", filters.recipient),
    ]
    given = [(text, value) for text, value in conditions if value is not None]
    where = [text.format(f"${number}") for number, (text, _) in enumerate(given, 1)]
    arguments: list[Any] = [value for _, value in given]
    if before is not None:
        where.append(
            f"(created_at, id) < (${len(arguments) + 1}::timestamptz, ${len(arguments) + 2}::text)"
        )
        arguments += before
    return " AND ".join(where), arguments


def spend_of(row: Row) -> SpendRow:
    code = row["reject_code"]
    return SpendRow(
        id=row["id"],
        realm_id=row["realm_id"],
        agent_id=row["agent_id"],
        amount_micros=row["amount_micros"],
        recipient=row["recipient"],
        pay_to=row["pay_to"],
        status=row["status"],
        reject_code=None if code is None else RejectCode(code),
        memo=row["memo"],
        metadata=_decode_metadata(row["metadata"]),
        policy_version=row["policy_version"],
        decision=_decode_decision(row["decision"]),
        network=row["network"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        decided_by=row["decided_by"],
        decided_at=row["decided_at"],
        decision_reason=row["decision_reason"],
        signature=row["signature"],
        block_time=row["block_time"],
        fee_lamports=row["fee_lamports"],
        settled_at=row["settled_at"],
        updated_at=row["updated_at"],
        decision_number=row["decision_number"],
    )
