"""Rule six for purchases: after a failover or a restore a wallet signs none until every outflow in
its history is in the books (`sign_store.py`). What the database forgot may have been paid."""

from collections.abc import Sequence
from typing import Final

import msgspec

from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.purchase.follow_store import Payer
from bursar.settlement.model import Watch
from bursar.sql import Query, made

_MOST_PROBLEM: Final = 300

_ASK = Query("""
    INSERT INTO outflows_known (agent_id, mode)
    VALUES (:agent_id, :mode)
        ON CONFLICT DO NOTHING
""")
_ASKED = Query("""
    SELECT o.agent_id, w.realm_id, w.address, w.mint
      FROM outflows_known o
      JOIN wallet w ON w.agent_id = o.agent_id
     WHERE o.mode = :mode AND o.timeline <> :timeline AND o.next_look_at <= clock_timestamp()
       AND NOT EXISTS (SELECT FROM quarantine q
                        WHERE q.agent_id = o.agent_id AND q.duty = 'purchase'
                          AND q.next_try_at > clock_timestamp())
     ORDER BY o.next_look_at
     LIMIT :limit
""")
# Another failover or restore may have been noticed meanwhile: then it is not this history that is
# known, even if its name is the same.
_KNOWN = Query("""
    UPDATE outflows_known o
       SET timeline = w.timeline, problem = NULL
      FROM settlement_watch w
     WHERE o.agent_id = ANY(:agent_ids::text[]) AND w.mode = o.mode
       AND w.timeline = :timeline AND w.timeline = history()
       AND w.quiet_until_height = :quiet_until_height
""")
_PROBLEMS = Query("""
    SELECT agent_id, problem
      FROM outflows_known
     WHERE problem IS NOT NULL
     ORDER BY next_look_at
     LIMIT :limit
""")
_NOT_KNOWN = Query("""
    UPDATE outflows_known
       SET problem = :problem,
           next_look_at = clock_timestamp() + make_interval(secs => :seconds)
     WHERE agent_id = :agent_id
""")


async def ask(db: Database, mode: Mode, agent_id: str) -> None:
    """Has a worker compare the wallet's history with the books."""
    async with db.connection() as tx:
        await _ASK.run(tx, mode=mode, agent_id=agent_id)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A wallet whose history is to be compared with the books."""

    agent_id: str
    realm_id: int
    address: str
    mint: str

    @property
    def payer(self) -> Payer:
        return Payer(self.agent_id, self.address, self.mint)


async def asked(tx: Tx, mode: Mode, timeline: str, limit: int) -> list[Asked]:
    """Those that wait the longest."""
    rows = await _ASKED.rows(tx, mode=mode, timeline=timeline, limit=limit)
    return [made(Asked, row) for row in rows]


async def note_known(tx: Tx, agent_ids: Sequence[str], watch: Watch) -> None:
    """In this history of the database, all that left these wallets is in the books."""
    await _KNOWN.run(
        tx,
        agent_ids=agent_ids,
        timeline=watch.timeline,
        quiet_until_height=watch.quiet_until_height,
    )


async def note_problem(tx: Tx, agent_id: str, problem: str, seconds: float) -> None:
    """Looked at again after so many seconds."""
    await _NOT_KNOWN.run(tx, agent_id=agent_id, problem=problem[:_MOST_PROBLEM], seconds=seconds)


async def problems(tx: Tx, limit: int) -> list[tuple[str, str]]:
    """Agents whose wallets sign no purchase, and what stands in the way."""
    rows = await _PROBLEMS.rows(tx, limit=limit)
    return [(row["agent_id"], row["problem"]) for row in rows]
