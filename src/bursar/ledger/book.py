"""Writes the moves that were made on locked wallets, and the events that follow from them."""

from collections.abc import Sequence

from bursar.db import Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger import store
from bursar.ledger.lock import LockedAgent
from bursar.ledger.model import LockedWallet
from bursar.policy.cache import PolicyCache
from bursar.wallet.model import low
from bursar.wallet.view import show_wallet


async def save(tx: Tx, wallets: Sequence[LockedWallet]) -> None:
    """Writes the journal and the counters."""
    moves = [move for wallet in wallets for move in wallet.moves]
    if moves:
        await store.insert_transfers(tx, moves)
    await store.update_wallets(tx, wallets)


async def save_balances(tx: Tx, policies: PolicyCache, locked: Sequence[LockedAgent]) -> None:
    """As `save`, after moves that may have changed balances: with the events about them.

    Wallets without a move are left alone.
    """
    moved = [found for found in locked if found.wallet.moves]
    in_force = await policies.get(tx, [found.policy_key for found in moved])
    events: list[NewEvent] = []
    for found in moved:
        wallet = found.wallet
        was_low = wallet.is_low
        wallet.is_low = low(wallet.balance_micros, in_force[found.policy_key].cap_micros_daily)
        if found.agent_status != "terminated":
            shown = show_wallet(wallet.row())
            events += [
                NewEvent(wallet.realm_id, type_, wallet.agent_id, shown, wallet.now)
                for type_ in _events(wallet, was_low)
            ]
    await save(tx, [found.wallet for found in moved])
    await emit(tx, events)


def _events(wallet: LockedWallet, was_low: bool) -> list[EventType]:
    events: list[EventType] = []
    if wallet.moves[-1].kind == "deposit":
        events.append(EventType.WALLET_FUNDED)
    if wallet.is_low and not was_low:
        events.append(EventType.WALLET_LOW_BALANCE)
    if wallet.balance_micros == 0 and wallet.moves[-1].kind == "post":
        events.append(EventType.WALLET_DEPLETED)
    return events
