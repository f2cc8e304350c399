"""Money that comes in, whoever sent it: noticed when it is final, credited once.

Wallets' token accounts are compared with the ledger, many in one call (`turns.py` says which, and
how often). Where the two differ, the account's history is read from where it was left, and each
transfer into it that is not there yet becomes a deposit. What still differs afterwards is for
`reconcile.py`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from bursar.chain.message import token_account
from bursar.chain.port import Chain, ChainOutOfReach, Landed, Unclear
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.ids import new_id
from bursar.ledger import book, lock
from bursar.metrics import Settlement as Metrics
from bursar.money import MOST_MICROS
from bursar.policy.cache import PolicyCache
from bursar.settlement import books_store
from bursar.settlement.turns import Turns
from bursar.wallet import store as wallet_store
from bursar.wallet.model import WatchedWallet
from bursar.wallet.quarantine import alone

_PAGE: Final = 1_000
# More transactions than an account can have made in years. A node that never ends is ill.
_MOST_PAGES: Final = 100_000
# Wallets whose histories are read side by side.
_LOOKS_AT_ONCE: Final = 4
# So many in a row that no node answers about: it is the nodes, and the look ends until the next.
_MOST_SILENT: Final = 3
# Transactions that could not be read, tried again in one look at a wallet.
_TRIED_AGAIN: Final = 20

_log = structlog.get_logger()


class Swept(NamedTuple):
    """What a sweep found: wallets that differ, with what the chain holds, and those that were
    frozen when they were compared and all of whose history is read."""

    differing: list[tuple[WatchedWallet, int]]
    frozen: set[str]


@dataclass(slots=True)
class DepositWatcher:
    db: Database
    chain: Chain
    policies: PolicyCache
    mode: Mode
    mint: str
    # How often wallets that are not in use are compared.
    cold_seconds: float
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Turns(self.db, self.mode, self.cold_seconds)

    async def sweep(self, doubtful: Iterable[str] = ()) -> Swept:
        """Looks at every wallet whose turn it is, and at the doubtful ones."""
        async with self.db.connection() as tx:
            due = await wallet_store.agents_with_unread_due(tx, self.mode, _TRIED_AGAIN)
            unread = await wallet_store.watched_wallets(tx, due)
        await self._look_at_those(unread)
        differing: list[tuple[WatchedWallet, int]] = []
        frozen: set[str] = set()
        async for wallets in self.turns.next(doubtful):
            some = await compare(self.chain, self.mint, wallets)
            unlike = {wallet.agent_id for wallet, _ in some}
            # Frozen ones too: what came in since may be as much as is missing, and hide it.
            looked_at = await self._look_at_those(
                [w for w in wallets if w.is_frozen or w.agent_id in unlike]
            )
            differing += some
            frozen |= {w.agent_id for w in wallets if w.is_frozen} & looked_at
        async with self.db.connection() as tx:
            Metrics.unread(self.mode, await wallet_store.count_unread(tx, self.mode))
            frozen -= await wallet_store.with_unread(tx, sorted(frozen))
        return Swept(differing, frozen)

    async def look_at(self, agent_id: str) -> None:
        """One wallet, because somebody knows that something came in."""
        async with self.db.connection() as tx:
            found = await wallet_store.watched_wallets(tx, [agent_id])
        for wallet in found:
            await self.look(wallet)

    async def look(self, wallet: WatchedWallet, *, from_the_start: bool = False) -> int:
        """Credits what came in since the last look; returns how many deposits.

        Page by page, and the cursor moves at the very end: it never passes a deposit that is not
        credited. What a look that broke off had credited is known to the next one.
        """
        account = token_account(wallet.address, self.mint)
        credited = await self._try_again(wallet, account)
        cursor: str | None = None
        if not from_the_start:
            async with self.db.connection() as tx:
                cursor = await books_store.deposit_cursor(tx, wallet.agent_id)
        newest: str | None = None
        before: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self.chain.signatures_of(account, until=cursor, before=before, limit=_PAGE)
            successes = [mention.signature for mention in page if mention.error is None]
            credited += await self._credit_page(wallet, account, successes)
            if page and newest is None:
                newest = page[0].signature
            if len(page) < _PAGE:
                break
            before = page[-1].signature
        else:
            raise ChainOutOfReach(f"the history of {account} does not end")
        if newest is not None:
            async with self.db.connection() as tx:
                await books_store.put_deposit_cursor(tx, wallet.agent_id, newest)
        if credited:
            _log.info("deposits_credited", agent=wallet.agent_id, count=credited)
        return credited

    async def _look_at_those(self, wallets: Sequence[WatchedWallet]) -> set[str]:
        """The ids of those whose history was read to its end."""
        looked_at: set[str] = set()
        if not wallets:
            return looked_at
        async with self.db.connection() as tx:
            agent_ids = [wallet.agent_id for wallet in wallets]
            resting = await wallet_store.resting(tx, agent_ids, "deposit")
        turns = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def one(wallet: WatchedWallet) -> None:
            """A wallet whose history cannot be read now, or whose commit raises, does not hold up
            the others."""

            async def look() -> None:
                await self.look(wallet)
                looked_at.add(wallet.agent_id)

            async with turns:
                try:
                    await alone(self.db, "deposit", wallet.agent_id, look)
                except ChainOutOfReach as problem:
                    _log.warning("deposits_put_off", agent=wallet.agent_id, problem=str(problem))

        await asyncio.gather(*(one(w) for w in wallets if w.agent_id not in resting))
        return looked_at

    async def _credit_page(
        self, wallet: WatchedWallet, account: str, signatures: Sequence[str]
    ) -> int:
        """Oldest first. What is ours or credited is not asked about again: between two deposits a
        wallet may have made any number of payments. What cannot be read is noted and passed over:
        whoever makes such a thing must not hide what comes after it."""
        if not signatures:
            return 0
        async with self.db.connection() as tx:
            known = await books_store.accounted_for(tx, wallet.agent_id, account, signatures)
        credited = silent = 0
        for signature in reversed(signatures):
            if signature in known:
                continue
            try:
                credited += await self._read(wallet, account, signature)
                silent = 0
            except ChainOutOfReach as problem:
                async with self.db.connection() as tx:
                    await wallet_store.insert_unread(
                        tx,
                        realm_id=wallet.realm_id,
                        agent_id=wallet.agent_id,
                        token_account=account,
                        signature=signature,
                        problem=str(problem),
                    )
                _log.warning("deposit_unread", agent=wallet.agent_id, transaction=signature)
                silent = 0 if isinstance(problem, Unclear) else silent + 1
                if silent == _MOST_SILENT:
                    raise
        return credited

    async def _try_again(self, wallet: WatchedWallet, account: str) -> int:
        """Those that could not be read and are due; returns how many were deposits."""
        async with self.db.connection() as tx:
            due = await wallet_store.unread_due(tx, wallet.agent_id, _TRIED_AGAIN)
        credited = 0
        for unread in due:
            try:
                credited += await self._read(wallet, account, unread.signature)
            except ChainOutOfReach as problem:
                async with self.db.connection() as tx:
                    await wallet_store.put_off_unread(tx, unread.signature, account, str(problem))
            else:
                async with self.db.connection() as tx:
                    await wallet_store.delete_unread(tx, unread.signature, account)
        return credited

    async def _read(self, wallet: WatchedWallet, account: str, signature: str) -> bool:
        """Whether it was a deposit that is credited now."""
        landed = await self.chain.transaction(signature)
        if landed is None:
            raise Unclear(f"{signature} is mentioned but not shown")
        gained = landed.moved(account, self.mint)
        return gained > 0 and await self._credit(wallet, account, landed, gained)

    async def _credit(
        self, wallet: WatchedWallet, account: str, landed: Landed, gained: int
    ) -> bool:
        """False when another watcher was faster."""
        senders = landed.senders(self.mint)

        async def work(tx: Tx) -> bool:
            return await credit(
                tx,
                self.policies,
                wallet,
                account,
                landed.signature,
                gained,
                sender=senders[0] if senders else None,
                block_time=landed.block_time,
                slot=landed.slot,
            )

        return await self.db.transact(work)


async def credit(
    tx: Tx,
    policies: PolicyCache,
    wallet: WatchedWallet,
    account: str,
    signature: str,
    micros: int,
    *,
    sender: str | None,
    block_time: int | None,
    slot: int,
) -> bool:
    """A deposit into the wallet's books, with its event. False when it is there already. Raises
    Unclear when the wallet would have been given more than a column holds."""
    locked = (await lock.lock_agents(tx, [wallet.agent_id], [wallet.realm_id]))[wallet.agent_id]
    if locked.wallet.credits_posted + micros > MOST_MICROS:
        raise Unclear(f"{signature} brings more than the books can hold")
    row = await wallet_store.insert_deposit(
        tx,
        deposit_id=new_id("dep"),
        realm_id=wallet.realm_id,
        agent_id=wallet.agent_id,
        amount_micros=micros,
        token_account=account,
        signature=signature,
    )
    credited = await wallet_store.credit_deposit(
        tx,
        row.id,
        amount_micros=micros,
        sender=sender,
        block_time=block_time,
        at=locked.wallet.now,
    )
    if credited is None:
        return False
    locked.wallet.deposit(row.id, micros)
    await book.save_balances(tx, policies, [locked])
    await wallet_store.note_credited_slot(tx, wallet.agent_id, slot)
    return True


async def compare(
    chain: Chain, mint: str, wallets: Sequence[WatchedWallet]
) -> list[tuple[WatchedWallet, int]]:
    """Those that hold something else than the ledger says, with what the chain holds. A node that
    has not come as far as the newest deposit among them is not asked."""
    held = await chain.token_balances(
        [wallet.address for wallet in wallets],
        mint,
        from_slot=max(wallet.credited_slot for wallet in wallets),
    )
    compared = [(wallet, held.micros[wallet.address]) for wallet in wallets]
    return [(wallet, micros) for wallet, micros in compared if micros != wallet.balance_micros]
