"""Ledger against chain, all the time. A wallet that holds less than its ledger says is stopped."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from bursar.agent.lifecycle import Actor, apply_change, lock_agent
from bursar.db import Database, Tx
from bursar.metrics import Settlement as Metrics
from bursar.money import format_micros
from bursar.settlement import store
from bursar.settlement.deposits import DepositWatcher
from bursar.settlement.model import WatchedWallet

# Payments land and are posted at different moments, so one look proves nothing.
_LOOKS: Final = 3

_log = structlog.get_logger()


@dataclass(slots=True)
class Reconciler:
    db: Database
    watcher: DepositWatcher
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    async def sweep(self) -> int:
        """Credits what came in, then judges what still differs."""
        differing = await self.watcher.sweep()
        differences = await unexplained(self.db, differing)
        short = {wallet.agent_id: gap for wallet, gap in differences if gap < 0}
        for wallet, gap in differences:
            looks, before = self._seen.get(wallet.agent_id, (0, gap))
            looks = looks + 1 if gap == before else 1
            self._seen[wallet.agent_id] = (looks, gap)
            if gap < 0 and looks >= _LOOKS and not wallet.held:
                await self._stop(wallet, gap)
        still = {wallet.agent_id for wallet, _ in differences}
        self._seen = {agent: seen for agent, seen in self._seen.items() if agent in still}
        Metrics.differences(self.watcher.mode, len(short), len(differences) - len(short))
        await self._release_those_in_order(short)
        return 0

    async def _stop(self, wallet: WatchedWallet, gap: int) -> None:
        """Freezes the policy in the system's name and signs nothing more for the wallet."""
        _log.error("wallet_short", agent=wallet.agent_id, missing=format_micros(-gap))

        async def work(tx: Tx) -> None:
            before = await lock_agent(tx, wallet.realm_id, wallet.agent_id)
            await store.hold_wallet(tx, wallet.agent_id, held=True)
            if before.status != "terminated":
                frozen = before.policy.changed({"frozen": True})
                actor = Actor(wallet.realm_id, "system", "reconciliation")
                await apply_change(tx, actor, before, replace(before, policy=frozen))

        await self.db.transact(work)

    async def _release_those_in_order(self, short: dict[str, int]) -> None:
        """What is whole again may be signed for; the policy stays frozen until a person looks."""
        async with self.db.read() as tx:
            for agent_id in await store.held_wallets(tx, self.watcher.mode):
                if agent_id not in short:
                    await store.hold_wallet(tx, agent_id, held=False)
                    _log.info("wallet_whole_again", agent=agent_id)


async def unexplained(
    db: Database, differing: Sequence[tuple[WatchedWallet, int]]
) -> list[tuple[WatchedWallet, int]]:
    """What chain holds beyond what ledger and payments on their way explain: (wallet, gap).

    A payment that is alive may or may not have left yet, so anything between the balance and the
    balance less what is alive is explained. The chain was read between two looks at the ledger: a
    deposit that was credited since is not missing.
    """
    gaps: list[tuple[WatchedWallet, int]] = []
    async with db.read() as tx:
        for wallet, chain_micros in differing:
            balance, alive = await store.balance_and_alive(tx, wallet.agent_id)
            least = min(balance, wallet.balance_micros) - alive
            if chain_micros > balance:
                gaps.append((wallet, chain_micros - balance))
            elif chain_micros < least:
                gaps.append((wallet, chain_micros - least))
    return gaps
