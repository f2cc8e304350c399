"""Money that comes in, whoever sent it: noticed when it is final, credited once.

Every wallet's token account is compared with the ledger, many in one call. Where the two differ,
the account's history is read from where it was left, and each transfer into it that is not there
yet becomes a deposit. What still differs afterwards is for `reconcile.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from bursar.chain.message import token_account
from bursar.chain.port import Chain, ChainOutOfReach, Landed, Mention
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.ids import new_id
from bursar.ledger import book
from bursar.ledger import store as ledger_store
from bursar.policy.cache import PolicyCache
from bursar.settlement import store
from bursar.settlement.model import WatchedWallet
from bursar.wallet import store as wallet_store

# Wallets that are compared in one go.
SWEEP_AT_ONCE: Final = 1_000
_PAGE: Final = 1_000
# More transactions than an account can have made in years. A node that never ends is ill.
_MOST_PAGES: Final = 100_000
# Wallets whose histories are read side by side.
_LOOKS_AT_ONCE: Final = 4

_log = structlog.get_logger()


@dataclass(slots=True)
class DepositWatcher:
    db: Database
    chain: Chain
    policies: PolicyCache
    mode: Mode
    mint: str

    async def sweep(self) -> list[tuple[WatchedWallet, int]]:
        """Looks at every wallet once; returns those that differ, with what the chain holds."""
        differing: list[tuple[WatchedWallet, int]] = []
        async for wallets in every_wallet(self.db, self.mode):
            some = await compare(self.chain, self.mint, wallets)
            await self._look_at_those([wallet for wallet, _ in some])
            differing += some
        return differing

    async def look_at(self, agent_id: str) -> None:
        """One wallet, because somebody knows that something came in."""
        async with self.db.read() as tx:
            found = await store.wallets(tx, [agent_id])
        for wallet in found:
            await self.look(wallet)

    async def look(self, wallet: WatchedWallet, *, from_the_start: bool = False) -> int:
        """Credits what came in since the last look; returns how many deposits.

        Page by page, and the cursor moves at the very end: it never passes a deposit that is not
        credited. What a look that broke off had credited is known to the next one.
        """
        account = token_account(wallet.address, self.mint)
        cursor: str | None = None
        if not from_the_start:
            async with self.db.read() as tx:
                cursor = await store.deposit_cursor(tx, wallet.agent_id)
        newest: str | None = None
        before: str | None = None
        credited = 0
        for _ in range(_MOST_PAGES):
            page = await self.chain.signatures_of(account, until=cursor, before=before, limit=_PAGE)
            credited += await self._credit_page(wallet, account, page)
            if page and newest is None:
                newest = page[0].signature
            if len(page) < _PAGE:
                break
            before = page[-1].signature
        else:
            raise ChainOutOfReach(f"the history of {account} does not end")
        if newest is not None:
            async with self.db.read() as tx:
                await store.put_deposit_cursor(tx, wallet.agent_id, newest)
        if credited:
            _log.info("deposits_credited", agent=wallet.agent_id, count=credited)
        return credited

    async def _look_at_those(self, wallets: Sequence[WatchedWallet]) -> None:
        turns = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def one(wallet: WatchedWallet) -> None:
            """A wallet whose history cannot be read now does not hold up the others."""
            async with turns:
                try:
                    await self.look(wallet)
                except ChainOutOfReach as problem:
                    _log.warning("deposits_put_off", agent=wallet.agent_id, problem=str(problem))

        await asyncio.gather(*(one(wallet) for wallet in wallets))

    async def _credit_page(
        self, wallet: WatchedWallet, account: str, page: Sequence[Mention]
    ) -> int:
        """Oldest first. What is ours or credited is not asked about again: between two deposits a
        wallet may have made any number of payments."""
        successes = [mention for mention in page if mention.error is None]
        if not successes:
            return 0
        async with self.db.read() as tx:
            known = await store.accounted_for(
                tx, wallet.agent_id, account, [mention.signature for mention in successes]
            )
        credited = 0
        for mention in reversed(successes):
            if mention.signature not in known:
                landed = await self._landed(mention)
                gained = landed.moved(account, self.mint)
                if gained > 0 and await self._credit(wallet, account, landed, gained):
                    credited += 1
        return credited

    async def _landed(self, mention: Mention) -> Landed:
        landed = await self.chain.transaction(mention.signature)
        if landed is None:
            raise ChainOutOfReach(f"{mention.signature} is mentioned but not shown")
        return landed

    async def _credit(
        self, wallet: WatchedWallet, account: str, landed: Landed, gained: int
    ) -> bool:
        """False when another watcher was faster."""
        senders = landed.senders(self.mint)

        async def work(tx: Tx) -> bool:
            locked = (await ledger_store.lock_agents(tx, [wallet.agent_id], [wallet.realm_id]))[
                wallet.agent_id
            ]
            row = await wallet_store.insert_deposit(
                tx,
                deposit_id=new_id("dep"),
                realm_id=wallet.realm_id,
                agent_id=wallet.agent_id,
                amount_micros=gained,
                token_account=account,
                signature=landed.signature,
            )
            credited = await wallet_store.credit_deposit(
                tx,
                row.id,
                amount_micros=gained,
                sender=senders[0] if senders else None,
                block_time=landed.block_time,
                at=locked.account.now,
            )
            if credited is not None:
                locked.account.deposit(row.id, gained)
                await book.save_balances(tx, self.policies, [locked])
            return credited is not None

        return await self.db.transact(work)


async def every_wallet(db: Database, mode: Mode) -> AsyncGenerator[list[WatchedWallet]]:
    """All wallets of a mode, as many at once as are compared in one go."""
    after = ""
    while True:
        async with db.read() as tx:
            wallets = await store.wallets_after(tx, mode, after, SWEEP_AT_ONCE)
        if wallets:
            yield wallets
            after = wallets[-1].agent_id
        if len(wallets) < SWEEP_AT_ONCE:
            return


async def compare(
    chain: Chain, mint: str, wallets: Sequence[WatchedWallet]
) -> list[tuple[WatchedWallet, int]]:
    """Those that hold something else than the ledger says, with what the chain holds."""
    held = await chain.token_balances([wallet.address for wallet in wallets], mint)
    compared = [(wallet, held.micros[wallet.address]) for wallet in wallets]
    return [(wallet, micros) for wallet, micros in compared if micros != wallet.balance_micros]
