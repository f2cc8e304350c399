"""Queries on purchases that the worker looks after."""

from collections.abc import Sequence
from typing import Final, Literal

from bursar.db import Tx
from bursar.purchase.model import PurchaseRow
from bursar.purchase.store import purchase_of
from bursar.sql import Query, columns

_COLUMNS: Final = columns(PurchaseRow)

# Ends --------------------------------------------------------------------------------------------

_END = Query(f"""
    UPDATE purchase
       SET status = :status, problem = :problem, updated_at = moment(), busy_until = NULL,
           next_check_at = NULL
     WHERE id = ANY(:purchase_ids) AND status = 'presented'
    RETURNING {_COLUMNS}
""")


async def end_presented(
    tx: Tx, purchase_ids: Sequence[str], status: Literal["paid", "unpaid"], problem: str | None
) -> list[PurchaseRow]:
    """Those that were presented until now; the caller holds their wallets' locks."""
    rows = await _END.rows(tx, purchase_ids=purchase_ids, status=status, problem=problem)
    return [purchase_of(row) for row in rows]
