"""Money that comes in, whoever sent it: noticed when it is final, credited once.

Every wallet's token account is compared with the ledger, many in one call. Where the two differ,
the account's history is read from where it was left, and each transfer into it that is not there
yet becomes a deposit. What still differs afterwards is for `reconcile.py`.
"""

from collections.abc import Sequence
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
_MOST_PAGES: Final = 50

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
        after = ""
        while True:
            async with self.db.read() as tx:
                wallets = await store.wallets_after(tx, self.mode, after, SWEEP_AT_ONCE)
            if wallets:
                differing += await self._compare(wallets)
                after = wallets[-1].agent_id
            if len(wallets) < SWEEP_AT_ONCE:
                return differing

    async def look_at(self, realm_id: int, agent_id: str, address: str) -> None:
        """One wallet, because somebody knows that something came in."""
        wallet = WatchedWallet(
            agent_id=agent_id, realm_id=realm_id, address=address, balance_micros=0, held=False
        )
        await self.look(wallet)

    async def look(self, wallet: WatchedWallet) -> int:
        """Credits what came in since the last look; returns how many deposits."""
        account = token_account(wallet.address, self.mint)
        async with self.db.read() as tx:
            cursor = await store.deposit_cursor(tx, wallet.agent_id)
        news = await self._history(account, cursor)
        credited = 0
        # Oldest first, one commit each: the cursor never passes a deposit that is not credited.
        for mention in reversed(news):
            landed = await self._landed(mention)
            gained = 0 if landed is None else landed.moved(account, self.mint)
            if landed is not None and gained > 0:
                await self._credit(wallet, account, landed, gained)
                credited += 1
            elif mention is news[0]:
                async with self.db.read() as tx:
                    await store.put_deposit_cursor(tx, wallet.agent_id, mention.signature)
        return credited

    async def _compare(self, wallets: Sequence[WatchedWallet]) -> list[tuple[WatchedWallet, int]]:
        held = await self.chain.token_balances([w.address for w in wallets], self.mint)
        differing: list[tuple[WatchedWallet, int]] = []
        for wallet in wallets:
            micros = held.micros[wallet.address]
            if micros != wallet.balance_micros:
                try:
                    credited = await self.look(wallet)
                except ChainOutOfReach as problem:  # of one history: the other wallets go on
                    _log.warning("history_unreadable", agent=wallet.agent_id, problem=str(problem))
                    credited = 0
                if credited:
                    _log.info("deposits_credited", agent=wallet.agent_id, count=credited)
                differing.append((wallet, micros))
        return differing

    async def _history(self, account: str, cursor: str | None) -> list[Mention]:
        """Everything newer than the cursor, newest first."""
        news: list[Mention] = []
        before: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self.chain.signatures_of(account, until=cursor, before=before, limit=_PAGE)
            news += page
            if len(page) < _PAGE:
                return news
            before = page[-1].signature
        raise ChainOutOfReach(f"the history of {account} since the last look is too long")

    async def _landed(self, mention: Mention) -> Landed | None:
        """None for one that failed: it moved nothing."""
        if mention.error is not None:
            return None
        landed = await self.chain.transaction(mention.signature)
        if landed is None:
            raise ChainOutOfReach(f"{mention.signature} is mentioned but not shown")
        return landed

    async def _credit(
        self, wallet: WatchedWallet, account: str, landed: Landed, gained: int
    ) -> None:
        senders = landed.senders(self.mint)

        async def work(tx: Tx) -> None:
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
                await book.credit(tx, self.policies, locked, row.id, gained)
            await store.put_deposit_cursor(tx, wallet.agent_id, landed.signature)

        await self.db.transact(work)
