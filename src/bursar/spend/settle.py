"""approved -> settled: spend, ledger, totals and event in one commit."""

from collections.abc import Mapping, Sequence

from bursar.chain.port import Paid
from bursar.db import Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger.model import LockedWallet
from bursar.spend import store, totals
from bursar.spend.store import Use
from bursar.spend.view import show_spend


async def settle_spends(tx: Tx, wallets: Mapping[str, LockedWallet], paid: Sequence[Paid]) -> None:
    """Settles spends of wallets that the caller has locked. Posts to the wallets; the caller saves
    them."""
    if not paid:
        return
    now = max(wallet.now for wallet in wallets.values())
    settled = await store.settle_spends(tx, paid, now)
    spends = [spend for spend, _ in settled]
    # What they cost takes the place of what was reserved for it.
    await store.add_to_windows(
        tx,
        [
            Use(spend.agent_id, spend.created_at, 0, 0, spend.network_lamports - reserved)
            for spend, reserved in settled
            if spend.network_lamports != reserved
        ],
    )
    for spend in spends:
        wallets[spend.agent_id].post(spend.id, spend.amount_micros)
    await totals.add(tx, [totals.settled(spend) for spend in spends])
    await emit(
        tx,
        [
            NewEvent(s.realm_id, EventType.TRANSACTION_SETTLED, s.agent_id, show_spend(s), now)
            for s in spends
        ],
    )
