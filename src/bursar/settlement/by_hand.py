"""A deposit that nobody could read: into the books, or out of sight, once a person has looked."""

from bursar.chain.message import token_account
from bursar.chain.port import Chain
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.errors import CommandFailed
from bursar.ledger import lock
from bursar.money import format_micros
from bursar.policy.cache import PolicyCache
from bursar.settlement import books_store
from bursar.settlement.deposits import credit
from bursar.settlement.reconcile import unexplained
from bursar.trail.trail import leave_trail
from bursar.wallet import store as wallet_store
from bursar.wallet.model import WatchedWallet


async def credit_by_hand(
    db: Database, chain: Chain, *, mode: Mode, mint: str, agent_id: str, signature: str, micros: int
) -> None:
    """Only what is noted as unreadable, and only as much as the wallet really holds beyond its
    ledger: a slip of the hand cannot credit what is not there. Raises CommandFailed otherwise."""
    wallet = await _wallet(db, mode, agent_id)
    account = token_account(wallet.address, mint)
    held = await chain.token_balances([wallet.address], mint, from_slot=wallet.credited_slot)
    gaps = await unexplained(db, [(wallet, held.micros[wallet.address])])
    surplus = max(0, gaps[0][1]) if gaps else 0
    if micros > surplus:
        raise CommandFailed(
            f"The chain shows {format_micros(surplus)} USDC more at {wallet.address} than the"
            f" ledger explains, less than {format_micros(micros)}. Nothing was credited."
        )

    async def work(tx: Tx) -> None:
        locked = (await lock.lock_agents(tx, [agent_id], [wallet.realm_id]))[agent_id].wallet
        if (locked.credits_posted, locked.debits_posted) != (
            wallet.credits_micros,
            wallet.debits_micros,
        ):
            # The surplus may be credited by now.
            raise CommandFailed("The ledger of this wallet moved just now. Try again.")
        await _take_off(tx, wallet, account, signature)
        if not await credit(
            tx,
            PolicyCache(),
            wallet,
            account,
            signature,
            micros,
            sender=None,
            block_time=None,
            slot=held.slot,
        ):
            raise CommandFailed(f"{signature} is credited already.")
        await _note(tx, wallet, "deposit.credited_by_hand", signature, micros)

    await db.transact(work)


async def dismiss(db: Database, *, mode: Mode, mint: str, agent_id: str, signature: str) -> None:
    """A person has seen that it brought nothing: it is not tried again, nor shown."""
    wallet = await _wallet(db, mode, agent_id)
    account = token_account(wallet.address, mint)

    async def work(tx: Tx) -> None:
        if not await wallet_store.dismiss_unread(tx, signature, account):
            raise _unknown(signature, agent_id)
        await _note(tx, wallet, "deposit.dismissed", signature, 0)

    await db.transact(work)


async def _wallet(db: Database, mode: Mode, agent_id: str) -> WatchedWallet:
    async with db.connection() as tx:
        found = await wallet_store.watched_wallets(tx, [agent_id])
        if found and await books_store.mode_of(tx, agent_id) == mode:
            return found[0]
    raise CommandFailed(f"There is no agent {agent_id} in {mode} mode.")


async def _take_off(tx: Tx, wallet: WatchedWallet, account: str, signature: str) -> None:
    if not await wallet_store.delete_unread(tx, signature, account):
        raise _unknown(signature, wallet.agent_id)


def _unknown(signature: str, agent_id: str) -> CommandFailed:
    return CommandFailed(
        f"{signature} is not among the transactions of {agent_id} that could not be read;"
        " `bursar deposits unread` lists them."
    )


async def _note(tx: Tx, wallet: WatchedWallet, action: str, signature: str, micros: int) -> None:
    await leave_trail(
        tx,
        realm_id=wallet.realm_id,
        actor="system",
        request_id="by hand",
        action=action,
        subject=wallet.agent_id,
        after={"signature": signature, "amount": format_micros(micros)},
    )
