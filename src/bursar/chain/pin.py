"""The check at every start that each mode still runs on the network it began on."""

from bursar.chain import store
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.chain.store import Pinned
from bursar.config import Mode
from bursar.db import Database
from bursar.errors import CommandFailed

USDC_DECIMALS = 6


async def check_network(db: Database, chain: Solana, mode: Mode, mint: str) -> Pinned:
    """Reads genesis hash and mint, pins them if this is the first start, and makes the chain refuse
    every node of another network from now on.

    Raises CommandFailed when anything differs, and ChainOutOfReach when no node answers: nothing
    may be signed until this check has passed.
    """
    genesis = await _one_genesis(chain, mode)
    decimals = await chain.mint(mint)
    if decimals != USDC_DECIMALS:
        token = "there is no such token" if decimals is None else f"it has {decimals} decimals"
        raise CommandFailed(
            f"The {mode} network {chain.name} (genesis {genesis}) is not the right one: USDC should"
            f" be the token {mint} with {USDC_DECIMALS} decimals, but {token}."
            f" {_setting(mode)}"
        )
    found = Pinned(mode, genesis, mint, decimals)
    async with db.transaction() as tx:
        pinned = await store.pin(tx, found)
        holder = await store.holder_of(tx, genesis)
    if pinned != found:
        raise CommandFailed(
            f"This database's {mode} mode belongs to the network with genesis"
            f" {pinned.genesis_hash} and the token {pinned.mint}, but {chain.name} has genesis"
            f" {genesis} and the token {mint}. {_setting(mode)}"
        )
    if holder != mode:
        raise CommandFailed(
            f"Test and live mode cannot share a network: {chain.name} has the genesis {genesis} of"
            f" {holder} mode. {_setting(mode)}"
        )
    chain.expect(genesis)
    return found


async def _one_genesis(chain: Solana, mode: Mode) -> str:
    """The genesis hash that all answering nodes share. A node that is silent now is checked before
    its first use."""
    seen: dict[str, str] = {}
    problem: ChainOutOfReach | None = None
    for view in chain.witnesses():
        try:
            seen[view.name] = await view.genesis_hash()
        except ChainOutOfReach as out_of_reach:
            problem = out_of_reach
    if problem is not None and not seen:
        raise problem
    if len(set(seen.values())) > 1:
        listed = ", ".join(f"{name} has genesis {genesis}" for name, genesis in seen.items())
        raise CommandFailed(
            f"The addresses of the {mode} network differ: {listed}. {_setting(mode)}"
        )
    return next(iter(seen.values()))


def _setting(mode: Mode) -> str:
    return f"Check BURSAR_{mode.upper()}_NETWORK, or use another database."
