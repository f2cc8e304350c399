"""Queries on withdrawals."""

from dataclasses import asdict
from datetime import datetime

import msgspec

from bursar.chain.port import Paid
from bursar.db import Row, Tx
from bursar.sql import Listing, Query, columns, made
from bursar.wallet.model import Moved
from bursar.withdrawal.model import WithdrawalRow

# With the payment that settlement makes of it.
_INSERT = Query("""
    WITH withdrawn AS (
      INSERT INTO withdrawal (id, realm_id, agent_id, amount_micros, destination, status, memo,
                              metadata, network, created_by, created_at)
      VALUES (:id, :realm_id, :agent_id, :amount_micros, :destination, :status, :memo,
              :metadata, :network, :created_by, :created_at)
      RETURNING *
    )
    INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, leased_until,
                         created_at)
    SELECT w.id, r.mode, w.realm_id, w.agent_id, w.amount_micros, w.destination, clock_timestamp(),
           w.created_at
      FROM withdrawn w
      JOIN realm r ON r.id = w.realm_id
""")
_GET = Query(f"""
    SELECT {columns(WithdrawalRow)}
      FROM withdrawal
     WHERE id = :withdrawal_id AND realm_id = :realm_id
""")
_LIST = Listing(f"""
    SELECT {columns(WithdrawalRow)}
      FROM withdrawal
     WHERE agent_id = :agent_id
""")
_LIST_ALL = Listing(f"""
    SELECT {columns(WithdrawalRow)}
      FROM withdrawal
     WHERE realm_id = :realm_id
       AND agent_id = :agent_id
       AND created_at >= :made_from
       AND created_at < :made_to
""")
_SETTLE = Query(f"""
    UPDATE withdrawal
       SET status = 'settled', signature = :signature, block_time = :block_time,
           fee_lamports = :fee_lamports, rent_lamports = :rent_lamports, settled_at = :at
     WHERE id = :payment_id AND status = 'pending'
    RETURNING {columns(WithdrawalRow)}
""")
_FAIL = Query(f"""
    UPDATE withdrawal
       SET status = 'failed', failure_code = :failure_code
     WHERE id = :withdrawal_id AND status = 'pending'
    RETURNING {columns(WithdrawalRow)}
""")


async def insert_withdrawal(tx: Tx, row: WithdrawalRow) -> None:
    await _INSERT.run(
        tx,
        id=row.id,
        realm_id=row.realm_id,
        agent_id=row.agent_id,
        amount_micros=row.amount_micros,
        destination=row.destination,
        status=row.status,
        memo=row.memo,
        metadata=msgspec.json.encode(row.metadata).decode(),
        network=row.network,
        created_by=row.created_by,
        created_at=row.created_at,
    )


async def get_withdrawal(tx: Tx, realm_id: int, withdrawal_id: str) -> WithdrawalRow | None:
    row = await _GET.row(tx, realm_id=realm_id, withdrawal_id=withdrawal_id)
    return None if row is None else _withdrawal(row)


async def list_all_withdrawals(
    tx: Tx, wanted: Moved, before: tuple[datetime, str] | None, limit: int
) -> list[WithdrawalRow]:
    rows = await _LIST_ALL.rows(tx, before, limit, **asdict(wanted))
    return [_withdrawal(row) for row in rows]


async def list_withdrawals(
    tx: Tx, agent_id: str, before: tuple[datetime, str] | None, limit: int
) -> list[WithdrawalRow]:
    rows = await _LIST.rows(tx, before, limit, agent_id=agent_id)
    return [_withdrawal(row) for row in rows]


async def settle_withdrawal(tx: Tx, paid: Paid, at: datetime) -> WithdrawalRow | None:
    """pending -> settled; None when it no longer was pending."""
    row = await _SETTLE.row(tx, **paid._asdict(), at=at)
    return None if row is None else _withdrawal(row)


async def fail_withdrawal(tx: Tx, withdrawal_id: str, failure_code: str) -> WithdrawalRow | None:
    """pending -> failed; None when it no longer was pending."""
    row = await _FAIL.row(tx, withdrawal_id=withdrawal_id, failure_code=failure_code)
    return None if row is None else _withdrawal(row)


def _withdrawal(row: Row) -> WithdrawalRow:
    return made(WithdrawalRow, row, metadata=msgspec.json.decode(row["metadata"]))
