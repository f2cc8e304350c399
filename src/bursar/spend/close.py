"""Rejecting an open spend: releases funds and cap, corrects totals and costs, writes the event."""

from collections.abc import Sequence

from bursar.budget import store as budget_store
from bursar.cost import store as cost_store
from bursar.db import Tx
from bursar.errors import check
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger import book
from bursar.ledger.model import LockedWallet
from bursar.policy.engine import RejectCode
from bursar.spend import store, totals
from bursar.spend.model import MOVES, SpendRow, SpendStatus
from bursar.spend.store import Use
from bursar.spend.view import show_spend


async def reject_spends(
    tx: Tx,
    wallet: LockedWallet,
    spend_ids: Sequence[str],
    *,
    expected: SpendStatus,
    code: RejectCode,
    decided_by: str | None,
    reason: str | None,
    cost_lamports: int = 0,
) -> list[SpendRow]:
    """Rejects those of one locked wallet that are still in the expected state. `cost_lamports` is
    what failed attempts to pay have cost each of them."""
    check("rejected" in MOVES[expected], "only an open spend can be rejected")
    spends = await store.move_spends(
        tx,
        spend_ids,
        expected=expected,
        status="rejected",
        reject_code=code,
        decided_by=decided_by,
        decision_reason=reason,
        at=wallet.now,
    )
    if not spends:
        return []
    for spend in spends:
        wallet.void(spend.id, spend.amount_micros)
    # To the windows it was requested in: rejecting yesterday's spend makes no room today.
    await store.add_to_windows(
        tx,
        [
            Use(s.agent_id, s.created_at, -s.amount_micros, -1, cost_lamports - s.network_lamports)
            for s in spends
        ],
    )
    await budget_store.release(
        tx,
        [
            (meter_id, spend.created_at, spend.amount_micros, spend.id)
            for spend in spends
            for meter_id in spend.terms.meter_ids
        ],
    )
    await cost_store.network_of_rejected(tx, [spend.id for spend in spends], cost_lamports)
    await book.save(tx, [wallet])
    await totals.add(tx, [totals.rejected(spend) for spend in spends])
    await emit(
        tx,
        [
            NewEvent(
                s.realm_id,
                EventType.TRANSACTION_REJECTED,
                s.agent_id,
                show_spend(s),
                wallet.now,
            )
            for s in spends
        ],
    )
    return spends
