"""Rule six for purchases: after a failover or a restore a wallet signs none until every outflow in
its history is in the books. What the database forgot may have been paid."""

from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.sql import Query

_MAY_SIGN = Query("""
    SELECT w.timeline = history()
           AND (w.careful_before IS NULL
                OR EXISTS (SELECT FROM outflows_known o
                            WHERE o.agent_id = :agent_id AND o.timeline = w.timeline))
      FROM settlement_watch w
     WHERE w.mode = :mode
""")
_ASK = Query("""
    INSERT INTO outflows_known (agent_id, mode)
    VALUES (:agent_id, :mode)
        ON CONFLICT (agent_id) DO UPDATE
       SET asked_at = clock_timestamp()
""")


async def may_sign(tx: Tx, mode: Mode, agent_id: str) -> bool:
    """Whether nothing that this database forgot can have left the wallet. False too until the
    worker has noted which history this is, which it does when it starts."""
    return bool(await _MAY_SIGN.value(tx, mode=mode, agent_id=agent_id))


async def ask(db: Database, mode: Mode, agent_id: str) -> None:
    """Has a worker compare the wallet's history with the books."""
    async with db.connection() as tx:
        await _ASK.run(tx, mode=mode, agent_id=agent_id)
