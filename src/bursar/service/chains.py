"""Chains of a process: opened once, and not used before they have shown that they are the right
ones."""

import asyncio
from typing import Final

import aiohttp
import structlog

from bursar.chain.faucet import LocalnetFaucet
from bursar.chain.networks import usdc_mint
from bursar.chain.node import Node
from bursar.chain.pin import check_network
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.config import Config, Mode
from bursar.db import Database
from bursar.policy.cache import PolicyCache
from bursar.settlement.deposits import DepositWatcher

_RETRY_SECONDS: Final = 1.0

_log = structlog.get_logger()


def open_chain(config: Config, mode: Mode) -> Solana:
    return Solana.open(
        config.rpc_addresses(mode), config.chain_timeout_seconds, config.priority_fee_max_lamports
    )


async def wait_for_network(config: Config, db: Database, chain: Solana, mode: Mode) -> int:
    """Asks until a node answers; returns the token's decimals. Raises CommandFailed on the wrong
    network."""
    while True:
        try:
            return (await check_network(db, chain, mode, usdc_mint(config, mode))).decimals
        except ChainOutOfReach as problem:
            _log.warning("network_out_of_reach", mode=mode, problem=str(problem))
            await asyncio.sleep(_RETRY_SECONDS)


class TestFunds:
    """Faucet and watcher of the test wallets, for the HTTP process."""

    def __init__(self, config: Config, db: Database, policies: PolicyCache) -> None:
        self._config = config
        self._db = db
        self._session = aiohttp.ClientSession(trust_env=False)
        (address,) = config.rpc_addresses("test")
        self._faucet = LocalnetFaucet(Node(self._session, address, config.chain_timeout_seconds))
        self._chain = open_chain(config, "test")
        self._watcher = DepositWatcher(db, self._chain, policies, "test", usdc_mint(config, "test"))
        self._checked = False

    async def close(self) -> None:
        await self._chain.close()
        await self._session.close()

    async def mint(self, owner: str, amount_micros: int) -> str:
        # Before the first one: nothing is credited from a chain that is not ours.
        if not self._checked:
            await check_network(self._db, self._chain, "test", usdc_mint(self._config, "test"))
            self._checked = True
        return await self._faucet.mint(owner, amount_micros)

    async def look_at(self, realm_id: int, agent_id: str, address: str) -> None:
        await self._watcher.look_at(realm_id, agent_id, address)
