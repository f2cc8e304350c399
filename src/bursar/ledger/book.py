"""Writes what was moved on locked accounts, and the news about the wallets that follow from it."""

from collections.abc import Sequence

from bursar.db import Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger import store
from bursar.ledger.lock import LockedAgent
from bursar.ledger.model import Account
from bursar.policy.cache import PolicyCache
from bursar.wallet.model import low
from bursar.wallet.view import show_wallet


async def save(tx: Tx, accounts: Sequence[Account]) -> None:
    """The journal and the counters, in the caller's transaction."""
    moves = [move for account in accounts for move in account.moves]
    if moves:
        await store.insert_transfers(tx, moves)
    await store.update_wallets(tx, accounts)


async def save_balances(tx: Tx, policies: PolicyCache, locked: Sequence[LockedAgent]) -> None:
    """As `save`, after moves that changed the balances: fires what the contract says they fire.

    Agents on whose accounts nothing moved are left alone.
    """
    moved = [found for found in locked if found.account.moves]
    in_force = await policies.get(tx, [found.policy_key for found in moved])
    news: list[NewEvent] = []
    for found in moved:
        account = found.account
        was_low = account.is_low
        account.is_low = low(account.balance_micros, in_force[found.policy_key].cap_micros_daily)
        if found.agent_status != "terminated":
            shown = show_wallet(account.wallet())
            news += [
                NewEvent(account.realm_id, type_, account.agent_id, shown, account.now)
                for type_ in _news(account, was_low)
            ]
    await save(tx, [found.account for found in moved])
    await emit(tx, news)


def _news(account: Account, was_low: bool) -> list[EventType]:
    news: list[EventType] = []
    if account.moves[-1].kind == "deposit":
        news.append(EventType.WALLET_FUNDED)
    if account.is_low and not was_low:
        news.append(EventType.WALLET_LOW_BALANCE)
    if account.balance_micros == 0 and account.moves[-1].kind == "post":
        news.append(EventType.WALLET_DEPLETED)
    return news
