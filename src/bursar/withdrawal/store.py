"""Queries on withdrawals."""

from datetime import datetime

import msgspec

from bursar.chain.port import Paid
from bursar.db import Row, Tx
from bursar.withdrawal.model import WithdrawalRow

_WITHDRAWAL = ", ".join(WithdrawalRow.__struct_fields__)


async def insert_withdrawal(tx: Tx, row: WithdrawalRow) -> None:
    await tx.execute(
        "INSERT INTO withdrawal (id, realm_id, agent_id, amount_micros, destination, status, memo,"
        " metadata, network, created_by, created_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        row.id,
        row.realm_id,
        row.agent_id,
        row.amount_micros,
        row.destination,
        row.status,
        row.memo,
        msgspec.json.encode(row.metadata).decode(),
        row.network,
        row.created_by,
        row.created_at,
    )


async def get_withdrawal(tx: Tx, realm_id: int, withdrawal_id: str) -> WithdrawalRow | None:
    row = await tx.fetchrow(
        f"SELECT {_WITHDRAWAL} FROM withdrawal WHERE id = $2 AND realm_id = $1",
        realm_id,
        withdrawal_id,
    )
    return None if row is None else _withdrawal(row)


async def list_withdrawals(
    tx: Tx, agent_id: str, before: tuple[datetime, str] | None, limit: int
) -> list[WithdrawalRow]:
    rows = await tx.fetch(
        f"SELECT {_WITHDRAWAL} FROM withdrawal WHERE agent_id = $1"
        " AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3::text))"
        " ORDER BY created_at DESC, id DESC LIMIT $4",
        agent_id,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [_withdrawal(row) for row in rows]


async def settle_withdrawal(tx: Tx, paid: Paid, at: datetime) -> WithdrawalRow | None:
    """pending -> settled; None when it no longer was pending."""
    row = await tx.fetchrow(
        "UPDATE withdrawal SET status = 'settled', signature = $2, block_time = $3,"
        " fee_lamports = $4, rent_lamports = $5, settled_at = $6"
        " WHERE id = $1 AND status = 'pending'"
        f" RETURNING {_WITHDRAWAL}",
        *paid,
        at,
    )
    return None if row is None else _withdrawal(row)


async def fail_withdrawal(tx: Tx, withdrawal_id: str, code: str) -> WithdrawalRow | None:
    """pending -> failed; None when it no longer was pending."""
    row = await tx.fetchrow(
        "UPDATE withdrawal SET status = 'failed', failure_code = $2"
        f" WHERE id = $1 AND status = 'pending' RETURNING {_WITHDRAWAL}",
        withdrawal_id,
        code,
    )
    return None if row is None else _withdrawal(row)


def _withdrawal(row: Row) -> WithdrawalRow:
    values = dict(row.items())
    return WithdrawalRow(**{**values, "metadata": msgspec.json.decode(values["metadata"])})
