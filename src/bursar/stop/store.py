"""Queries on the stop, which the realm's row says.

Stopping and resuming change the row; whatever signs for an agent takes it FOR SHARE in the
transaction that stores what was signed (`may_sign`; of purchases `standing_to_sign`, and
`_WRITE_AND_PRESENT` of `spend/store.py`). So a stop that holds the unsigned waits until
what is being stored is stored, and from its answer on nothing more is.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from bursar.config import Mode
from bursar.db import Tx
from bursar.sql import Query, columns, made, made_or_none
from bursar.stop.model import Stop

# Of the payment `p`: one that a stop holds, until a person resumes.
HELD: Final = """
       (left(p.id, 4) <> 'wdr_' AND p.called_off_by IS NULL AND p.realm_id = ANY (
          ARRAY(SELECT id FROM realm WHERE stop_holds_unsigned)))"""
# Payments that one statement calls off, so that none takes longer than a statement may.
_AT_ONCE: Final = 10_000

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
_PUT = Query("""
    UPDATE realm
       SET stopped_at = :stopped_at, stopped_by = :stopped_by, stop_reason = :stop_reason,
           stop_holds_unsigned = :stop_holds_unsigned
     WHERE id = :realm_id
""")
_CLEAR = Query("""
    UPDATE realm
       SET stopped_at = NULL, stopped_by = NULL, stop_reason = NULL, stop_holds_unsigned = false
     WHERE id = :realm_id
""")
# In the order of their ids. One of which an attempt was signed goes on: only the chain can say that
# it was not paid.
_CALL_OFF = Query(f"""
    UPDATE payment
       SET called_off_by = :by, leased_until = clock_timestamp()
     WHERE id IN (SELECT p.id
                    FROM payment p
                   WHERE p.mode = :mode AND p.realm_id = :realm_id AND p.state = 'waiting'
                     AND p.attempts = 0 AND {HELD}
                   ORDER BY p.id
                   LIMIT :limit
                     FOR UPDATE)
""")
_CALL_OFF_PURCHASES = Query("""
    UPDATE purchase p
       SET called_off_by = :by
      FROM spend s
     WHERE p.realm_id = :realm_id AND p.status IN ('open', 'pending') AND p.signature IS NULL
       AND p.called_off_by IS NULL AND s.id = p.spend_id AND s.status = 'approved'
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


async def put_stop(tx: Tx, realm_id: int, stop: Stop) -> None:
    """The caller holds the lock."""
    await _PUT.run(tx, realm_id=realm_id, **msgspec.structs.asdict(stop))


async def clear_stop(tx: Tx, realm_id: int) -> None:
    await _CLEAR.run(tx, realm_id=realm_id)


async def call_off(tx: Tx, realm_id: int, mode: Mode, by: str) -> int:
    """Those that the stop holds and that nothing was signed for are not paid any more; returns how
    many. The caller holds the lock, so none is signed meanwhile."""
    count = await _CALL_OFF_PURCHASES.count(tx, realm_id=realm_id, by=by)
    while True:
        called_off = await _CALL_OFF.count(tx, realm_id=realm_id, mode=mode, by=by, limit=_AT_ONCE)
        count += called_off
        if called_off < _AT_ONCE:
            return count


async def may_sign(tx: Tx, realm_ids: Sequence[int]) -> set[int]:
    """Those of these realms whose agents' payments may be signed, and it stays so until the commit.

    For the transaction that stores what was signed: before any other lock of it, because a realm's
    comes before a wallet's (`ledger/lock.py`).
    """
    rows = await _MAY_SIGN.rows(tx, realm_ids=realm_ids)
    return {row["id"] for row in rows if not row["stop_holds_unsigned"]}
