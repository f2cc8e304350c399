"""Queries on whether what was signed for a purchase may be stored, and so leave."""

import msgspec

from bursar.config import Mode
from bursar.db import Tx
from bursar.sql import Query, made

# The realm's lock comes before the wallet's, so the second is taken for what the first has found.
_LOCK = Query("""
    WITH account AS MATERIALIZED (
      SELECT id, stop_holds_unsigned
        FROM realm
       WHERE id = :realm_id
         FOR SHARE
    )
    SELECT a.stop_holds_unsigned
      FROM account a
     CROSS JOIN LATERAL read_agents(ARRAY[:agent_id::text], ARRAY[a.id], lock => true)
""")
# After a failover or a restore what the database forgot may have been paid: see `outflow_store.py`.
_STANDING = Query("""
    SELECT coalesce(s.status = 'approved', false) AS is_approved, w.is_frozen,
           coalesce((SELECT h.timeline = history() AND h.life = server_life()
                            AND (h.careful_before IS NULL
                                 OR EXISTS (SELECT FROM outflows_known o
                                             WHERE o.agent_id = :agent_id
                                               AND o.timeline = h.timeline))
                       FROM settlement_watch h
                      WHERE h.mode = :mode), false) AS outflows_are_known
      FROM wallet w
      LEFT JOIN spend s ON s.id = :spend_id AND s.agent_id = w.agent_id
     WHERE w.agent_id = :agent_id
""")


class Standing(msgspec.Struct, frozen=True):
    """What a signature of a wallet rests on. `outflows_are_known`: nothing that this database
    forgot can have left it; false too until the worker has noted which history this is, which it
    does when it starts."""

    is_approved: bool
    is_frozen: bool
    outflows_are_known: bool


async def lock(tx: Tx, realm_id: int, agent_id: str) -> bool:
    """Locks the realm, for the stop, then the wallet: before any other lock of the transaction.
    False where a stop holds what is unsigned."""
    return not await _LOCK.value(tx, realm_id=realm_id, agent_id=agent_id)


async def standing(tx: Tx, mode: Mode, agent_id: str, spend_id: str | None) -> Standing:
    """Under these locks it stays so until the commit."""
    row = await _STANDING.one(tx, mode=mode, agent_id=agent_id, spend_id=spend_id)
    return made(Standing, row)
