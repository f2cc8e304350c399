"""Test money for the HTTP process: mints it on the localnet, then credits the deposit."""

from bursar.chain.networks import usdc_mint
from bursar.chain.pin import check_network
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.config import Config
from bursar.db import Database
from bursar.errors import CommandFailed
from bursar.policy.cache import PolicyCache
from bursar.settlement.deposits import DepositWatcher


class TestFunds:
    """The localnet's faucet, and the watcher that credits what it gave."""

    def __init__(self, config: Config, db: Database, policies: PolicyCache, chain: Solana) -> None:
        self._config = config
        self._db = db
        self._chain = chain
        self._watcher = DepositWatcher(
            db,
            self._chain,
            policies,
            "test",
            usdc_mint(config, "test"),
            config.cold_sweep_seconds,
        )
        self._checked = False

    async def mint(self, owner: str, amount_micros: int, reference: str | None) -> str:
        # Checked before the first deposit: nothing may be credited from a chain that is not the
        # pinned one.
        if not self._checked:
            try:
                await check_network(self._db, self._chain, "test", usdc_mint(self._config, "test"))
            except CommandFailed as problem:
                raise ChainOutOfReach(str(problem)) from None
            self._checked = True
        return await self._chain.mint_test_money(owner, amount_micros, reference)

    async def look_at(self, agent_id: str) -> None:
        await self._watcher.look_at(agent_id)
