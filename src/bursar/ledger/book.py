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
    """The journal and the counters, in the caller's transaction."""
    moves = [move for wallet in wallets for move in wallet.moves]
    if moves:
        await store.insert_transfers(tx, moves)
    await store.update_wallets(tx, wallets)


async def save_balances(tx: Tx, policies: PolicyCache, locked: Sequence[LockedAgent]) -> None:
    """As `save`, after moves that changed the balances: fires what the contract says they fire.

    Agents on whose wallets nothing moved are left alone.
    """
    moved = [found for found in locked if found.wallet.moves]
    in_force = await policies.get(tx, [found.policy_key for found in moved])
    news: list[NewEvent] = []
    for found in moved:
        wallet = found.wallet
        was_low = wallet.is_low
        wallet.is_low = low(wallet.balance_micros, in_force[found.policy_key].cap_micros_daily)
        if found.agent_status != "terminated":
            shown = show_wallet(wallet.row())
            news += [
                NewEvent(wallet.realm_id, type_, wallet.agent_id, shown, wallet.now)
                for type_ in _news(wallet, was_low)
            ]
    await save(tx, [found.wallet for found in moved])
    await emit(tx, news)


def _news(wallet: LockedWallet, was_low: bool) -> list[EventType]:
    news: list[EventType] = []
    if wallet.moves[-1].kind == "deposit":
        news.append(EventType.WALLET_FUNDED)
    if wallet.is_low and not was_low:
        news.append(EventType.WALLET_LOW_BALANCE)
    if wallet.balance_micros == 0 and wallet.moves[-1].kind == "post":
        news.append(EventType.WALLET_DEPLETED)
    return news
