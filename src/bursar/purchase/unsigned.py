"""Purchases that nothing was signed for and nothing will be: the process that made one is gone, or
one was approved and its agent never came back. They end, and give back what they reserve."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from bursar.db import Database, Tx
from bursar.ledger import lock
from bursar.policy.engine import RejectCode
from bursar.purchase import follow_store
from bursar.purchase.end import give_up
from bursar.purchase.follow_store import Unsigned
from bursar.purchase.model import PurchaseRow
from bursar.wallet.quarantine import apart

# Purchases that one round ends; the next round takes the rest.
_END_AT_ONCE: Final = 200

_log = structlog.get_logger()


async def end_unsigned(db: Database, continue_seconds: int) -> int:
    """One transaction each; returns how many."""
    async with db.connection() as tx:
        due = await follow_store.unsigned(tx, continue_seconds, _END_AT_ONCE)
    count = 0

    async def end(some: Sequence[Unsigned]) -> None:
        nonlocal count
        for item in some:
            work = partial(_end, purchase=item.purchase, continue_seconds=continue_seconds)
            count += await db.transact(work)

    await apart(db, "purchase", due, end)
    return count


async def _end(tx: Tx, purchase: PurchaseRow, continue_seconds: int) -> bool:
    await lock.lock_agents(tx, [purchase.agent_id], [purchase.realm_id])
    found = await follow_store.still_unsigned(tx, purchase.id, continue_seconds)
    if found is None:
        return False
    if found.called_off_by is not None:
        ended = await give_up(
            tx,
            found,
            "interrupted",
            RejectCode.CANCELLED,
            "The account was stopped, and what the stop held was cancelled. Nothing was signed.",
        )
    elif found.status == "open":
        ended = await give_up(
            tx,
            found,
            "interrupted",
            RejectCode.CANCELLED,
            "The service stopped in the middle. Nothing was signed: buy again.",
        )
    else:
        ended = await give_up(
            tx,
            found,
            "not_continued",
            RejectCode.HOLD_EXPIRED,
            "It was approved and not continued in time. Nothing was signed: buy again.",
        )
    if ended is not None:
        _log.info("purchase_given_up", purchase=ended.id, why=ended.failure_code)
    return ended is not None
