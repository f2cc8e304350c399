"""approved -> settled: spend, ledger, totals and event in one commit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date

from bursar.chain.port import Paid
from bursar.cost import store as cost_store
from bursar.db import Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger.model import LockedWallet
from bursar.spend import store
from bursar.spend.stats import Totals
from bursar.spend.view import show_spend


async def settle_spends(tx: Tx, wallets: Mapping[str, LockedWallet], paid: Sequence[Paid]) -> None:
    """Settles spends of wallets that the caller has locked. Posts to the wallets; the caller saves
    them."""
    if not paid:
        return
    now = max(wallet.now for wallet in wallets.values())
    settled = await store.settle_spends(tx, paid, now)
    spends = [spend for spend, _ in settled]
    costs: defaultdict[tuple[str, date], int] = defaultdict(int)
    for spend, reserved in settled:
        costs[spend.agent_id, spend.day] += spend.network_lamports - reserved
    await cost_store.correct_usage(tx, costs)
    totals = Totals(shard=0)
    for spend in spends:
        wallets[spend.agent_id].post(spend.id, spend.amount_micros)
        totals.settle(spend)
    await totals.write(tx)
    await emit(
        tx,
        [
            NewEvent(s.realm_id, EventType.TRANSACTION_SETTLED, s.agent_id, show_spend(s), now)
            for s in spends
        ],
    )
