"""Which wallets a sweep compares with the chain: hot ones every time, cold ones in turn."""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Final

from bursar.config import Mode
from bursar.db import Database
from bursar.wallet import store
from bursar.wallet.model import WatchedWallet

# Wallets that are compared in one go.
AT_ONCE: Final = 1_000


@dataclass(slots=True)
class Turns:
    """A walk over all wallets takes `cold_seconds`, evenly, sweep by sweep; those that are hot were
    compared already and are passed over. The first walk is one sweep: nobody knows for how long no
    worker looked."""

    db: Database
    mode: Mode
    cold_seconds: float
    _began: float = -math.inf
    _after: str = ""
    _walked: int = 0
    # Of the walk before.
    _total: int = 0

    async def next(self, doubtful: Iterable[str]) -> AsyncGenerator[list[WatchedWallet]]:
        """Those to compare now, `doubtful` ones among them. A page that its caller could not deal
        with comes again."""
        async with self.db.connection() as tx:
            hot = {*await store.hot_wallets(tx, self.mode), *doubtful}
        ids = sorted(hot)
        for start in range(0, len(ids), AT_ONCE):
            async with self.db.connection() as tx:
                wallets = await store.watched_wallets(tx, ids[start : start + AT_ONCE])
            yield wallets
        now = asyncio.get_running_loop().time()
        while (limit := self._due(now)) > 0:
            async with self.db.connection() as tx:
                wallets = await store.watched_after(tx, self.mode, self._after, limit)
            if cold := [wallet for wallet in wallets if wallet.agent_id not in hot]:
                yield cold
            self._walked += len(wallets)
            if len(wallets) < limit:
                self._began, self._after = now, ""
                self._total, self._walked = self._walked, 0
                return
            self._after = wallets[-1].agent_id

    def forget(self) -> None:
        """As if no walk had been made."""
        self._began, self._after, self._walked = -math.inf, "", 0

    def _due(self, now: float) -> int:
        elapsed = now - self._began
        if elapsed >= self.cold_seconds:
            return AT_ONCE
        # The last one stays for the end of the walk, which is there when none is left.
        goal = int((self._total - 1) * elapsed / self.cold_seconds)
        return min(goal - self._walked, AT_ONCE)


async def every_wallet(db: Database, mode: Mode) -> AsyncGenerator[list[WatchedWallet]]:
    """All wallets of a mode, as many at once as are compared in one go."""
    after = ""
    while True:
        async with db.connection() as tx:
            wallets = await store.watched_after(tx, mode, after, AT_ONCE)
        if wallets:
            yield wallets
            after = wallets[-1].agent_id
        if len(wallets) < AT_ONCE:
            return
