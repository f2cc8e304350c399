"""Writes what was moved on locked accounts, and the news about the wallets that follow from it."""

from collections.abc import Sequence

from bursar.db import Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger import store
from bursar.ledger.model import Account
from bursar.ledger.store import LockedAgent
from bursar.policy.cache import PolicyCache
from bursar.wallet.model import low, show_wallet


async def save(tx: Tx, accounts: Sequence[Account]) -> None:
    """The journal and the counters, in the caller's transaction."""
    moves = [move for account in accounts for move in account.moves]
    if moves:
        await store.insert_transfers(tx, moves)
    await store.update_wallets(tx, accounts)


async def save_balance(tx: Tx, account: Account, cap_micros_daily: int, agent_status: str) -> None:
    """`save_balances` for one of them."""
    await save_balances(tx, [(account, cap_micros_daily, agent_status)])


async def save_balances(tx: Tx, changed: Sequence[tuple[Account, int, str]]) -> None:
    """As `save`, after moves that changed the balances: fires what the contract says they fire.

    Rows of (account, daily cap in force, status of the agent).
    """
    news: list[NewEvent] = []
    for account, cap_micros_daily, agent_status in changed:
        was_low = account.is_low
        account.is_low = low(account.balance_micros, cap_micros_daily)
        if agent_status != "terminated":
            shown = show_wallet(account.wallet())
            news += [
                NewEvent(account.realm_id, type_, account.agent_id, shown, account.now)
                for type_ in _news(account, was_low)
            ]
    await save(tx, [account for account, _, _ in changed])
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


async def deposit(
    tx: Tx,
    policies: PolicyCache,
    agent_id: str,
    realm_id: int,
    payment_id: str,
    amount_micros: int,
) -> Account:
    """Credits a deposit once: a second one with the same id is refused by the database."""
    locked = (await store.lock_agents(tx, [agent_id], [realm_id]))[agent_id]
    await credit(tx, policies, locked, payment_id, amount_micros)
    return locked.account


async def credit(
    tx: Tx, policies: PolicyCache, locked: LockedAgent, payment_id: str, amount_micros: int
) -> None:
    """The same on an agent whose lock is held."""
    locked.account.deposit(payment_id, amount_micros)
    policy = (await policies.get(tx, [locked.policy_key]))[locked.policy_key]
    await save_balance(tx, locked.account, policy.cap_micros_daily, locked.agent_status)
