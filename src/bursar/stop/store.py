"""Queries on the stop, which the realm's row says.

Stopping and resuming change the row; whatever signs for an agent takes it FOR SHARE in the
transaction that stores what was signed (`may_sign`). So a stop that holds the unsigned waits until
what is being stored is stored, and from its answer on nothing more is.
"""

from collections.abc import Sequence

from bursar.db import Tx
from bursar.sql import Query, columns, made, made_or_none
from bursar.stop.model import Stop

_GET = Query(f"""
    SELECT {columns(Stop)}
      FROM realm
     WHERE id = :realm_id AND stopped_at IS NOT NULL
""")
_LOCK = Query(f"""
    SELECT {columns(Stop)}
      FROM realm
     WHERE id = :realm_id
       FOR NO KEY UPDATE
""")
_PUT = Query(f"""
    UPDATE realm
       SET stopped_at = coalesce(stopped_at, moment()), stopped_by = :stopped_by,
           stop_reason = :stop_reason, stop_holds_unsigned = :stop_holds_unsigned
     WHERE id = :realm_id
    RETURNING {columns(Stop)}
""")
_CLEAR = Query("""
    UPDATE realm
       SET stopped_at = NULL, stopped_by = NULL, stop_reason = NULL, stop_holds_unsigned = false
     WHERE id = :realm_id
""")
_MAY_SIGN = Query("""
    SELECT id, stop_holds_unsigned
      FROM realm
     WHERE id = ANY(:realm_ids)
     ORDER BY id
       FOR SHARE
""")


async def get_stop(tx: Tx, realm_id: int) -> Stop | None:
    return made_or_none(Stop, await _GET.row(tx, realm_id=realm_id))


async def lock_stop(tx: Tx, realm_id: int) -> Stop | None:
    """The same, and no other stop or resume, and nothing signed, until the commit."""
    row = await _LOCK.one(tx, realm_id=realm_id)
    return None if row["stopped_at"] is None else made(Stop, row)


async def put_stop(
    tx: Tx, realm_id: int, *, stopped_by: str, stop_reason: str, stop_holds_unsigned: bool
) -> Stop:
    """The caller holds the lock. One that stands keeps its beginning."""
    row = await _PUT.one(
        tx,
        realm_id=realm_id,
        stopped_by=stopped_by,
        stop_reason=stop_reason,
        stop_holds_unsigned=stop_holds_unsigned,
    )
    return made(Stop, row)


async def clear_stop(tx: Tx, realm_id: int) -> None:
    await _CLEAR.run(tx, realm_id=realm_id)


async def may_sign(tx: Tx, realm_ids: Sequence[int]) -> set[int]:
    """Those of these realms whose agents' payments may be signed, and it stays so until the commit.

    For the transaction that stores what was signed: before any other lock of it, because a realm's
    comes before a wallet's (`ledger/lock.py`).
    """
    rows = await _MAY_SIGN.rows(tx, realm_ids=realm_ids)
    return {row["id"] for row in rows if not row["stop_holds_unsigned"]}
