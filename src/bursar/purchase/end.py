"""How a purchase ends, in one commit each with its spend, the ledger and the events: paid or unpaid
once it was signed for, failed where nothing ever was.

Everything here holds the wallet's lock first, then moves the purchase and its spend together: no
purchase is over while its money is still reserved, and none is open that gave its money back.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from bursar.chain.port import Landed, Paid
from bursar.db import Database, Tx
from bursar.errors import check, present
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger import book, lock
from bursar.ledger.model import LockedWallet
from bursar.metrics import Purchases as Metrics
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import RejectCode
from bursar.purchase import follow_store, store
from bursar.purchase.model import FailureCode, PurchaseRow, PurchaseStatus
from bursar.purchase.view import show_purchase
from bursar.spend import store as spend_store
from bursar.spend.close import reject_spends
from bursar.spend.settle import settle_spends

_EVENTS: Final[Mapping[PurchaseStatus, EventType]] = {
    "paid": EventType.PURCHASE_PAID,
    "unpaid": EventType.PURCHASE_UNPAID,
    "failed": EventType.PURCHASE_FAILED,
}
# What a column holds of a problem.
_MOST_PROBLEM: Final = 1_000

_log = structlog.get_logger()


async def settle(
    db: Database, policies: PolicyCache, made: Sequence[tuple[PurchaseRow, Landed]]
) -> None:
    """presented -> paid: the chain shows, final, that what was signed for them has paid. One commit
    for all; what others ended meanwhile is left as it is."""
    landed = {purchase.id: found for purchase, found in made}
    purchases = [purchase for purchase, _ in made]

    async def work(tx: Tx) -> list[PurchaseRow]:
        locked = await lock.lock_agents(
            tx, sorted({p.agent_id for p in purchases}), sorted({p.realm_id for p in purchases})
        )
        ended = await follow_store.end_presented(tx, list(landed), "paid", None)
        wallets = {agent_id: found.wallet for agent_id, found in locked.items()}
        # The seller's side paid what it cost on the chain.
        paid = [
            Paid(_spend_id(p), landed[p.id].signature, landed[p.id].block_time, 0) for p in ended
        ]
        await settle_spends(tx, wallets, paid)
        await book.save_balances(tx, policies, list(locked.values()))
        await _tell(tx, wallets, ended)
        return ended

    for purchase in await db.transact(work):
        Metrics.ended(purchase.mode, "paid")
        _log.info("purchase_paid", purchase=purchase.id, signature=landed[purchase.id].signature)


async def bury(db: Database, purchase: PurchaseRow, why: str) -> None:
    """presented -> unpaid: what was signed for it can never pay any more. Its amount is given
    back."""

    async def work(tx: Tx) -> bool:
        wallet = await _lock(tx, purchase)
        ended = await follow_store.end_presented(tx, [purchase.id], "unpaid", _short(why))
        if not ended:
            return False  # somebody else ended it
        rejected = await reject_spends(
            tx,
            wallet,
            [_spend_id(purchase)],
            expected="approved",
            code=RejectCode.PURCHASE_EXPIRED,
            # Whoever approved it did; that it died is with the purchase.
            decided_by=None,
            reason=None,
        )
        check(len(rejected) == 1, "a presented purchase has an approved spend")
        await _tell(tx, {purchase.agent_id: wallet}, ended)
        return True

    if await db.transact(work):
        Metrics.ended(purchase.mode, "unpaid")
        _log.warning("purchase_unpaid", purchase=purchase.id, why=why)


async def give_up(
    tx: Tx,
    purchase: PurchaseRow,
    failure_code: FailureCode,
    spend_code: RejectCode,
    problem: str | None,
) -> PurchaseRow | None:
    """open | pending -> failed, of a purchase that nothing was signed for: what is reserved for it
    is given back, its spend rejected with `spend_code`.

    Takes the wallet's lock and writes the wallet. A caller that holds the lock already must have
    saved its own moves. None when the purchase was signed for or has ended meanwhile.
    """
    wallet = await _lock(tx, purchase)
    now = present(
        await store.get_purchase(tx, purchase.realm_id, purchase.id), "purchases are never deleted"
    )
    # Before its spend: a pending spend that is rejected would take the purchase along.
    ended = None
    if now.status in ("open", "pending"):
        ended = await store.move_purchase(
            tx,
            now.id,
            expected=now.status,
            status="failed",
            failure_code=failure_code,
            problem=None if problem is None else _short(problem),
        )
    if ended is None:
        return None
    spend = await spend_store.get_spend(tx, ended.realm_id, ended.spend_id or "")
    if spend is not None and spend.status in ("pending", "approved"):
        await reject_spends(
            tx,
            wallet,
            [spend.id],
            expected=spend.status,
            code=spend_code,
            decided_by="system" if spend.status == "pending" else None,
            reason=None,
        )
    await _tell(tx, {ended.agent_id: wallet}, [ended])
    return ended


async def _lock(tx: Tx, purchase: PurchaseRow) -> LockedWallet:
    locked = await lock.lock_agents(tx, [purchase.agent_id], [purchase.realm_id])
    return locked[purchase.agent_id].wallet


async def _tell(tx: Tx, wallets: Mapping[str, LockedWallet], ended: Sequence[PurchaseRow]) -> None:
    spends = await store.spends_of(tx, ended)
    check(
        all(spend.status in ("settled", "rejected") for spend in spends.values()),
        "a purchase and its spend end together",
    )
    await emit(
        tx,
        [
            NewEvent(
                purchase.realm_id,
                _EVENTS[purchase.status],
                purchase.agent_id,
                show_purchase(purchase, spends.get(purchase.spend_id or "")),
                wallets[purchase.agent_id].now,
            )
            for purchase in ended
        ],
    )


def _spend_id(purchase: PurchaseRow) -> str:
    return present(purchase.spend_id, "what was signed has a spend")


def _short(problem: str) -> str:
    return problem[:_MOST_PROBLEM]
