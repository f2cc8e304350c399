"""Queries on the networks that are pinned."""

from dataclasses import dataclass
from typing import Final

from bursar.config import Mode
from bursar.db import Tx

# Any fixed number; it names "pinning a network" among advisory locks.
_LOCK: Final = 17_482


@dataclass(frozen=True, slots=True)
class Pinned:
    mode: Mode
    genesis_hash: str
    mint: str
    decimals: int


async def pin(tx: Tx, network: Pinned) -> Pinned:
    """What this mode is pinned to: the network given if it is the first, else the earlier one.

    Two processes that start at once take turns. A genesis hash that the other mode has is not
    pinned: see `holder_of`.
    """
    await tx.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    earlier = await pinned(tx, network.mode)
    if earlier is None and await holder_of(tx, network.genesis_hash) is None:
        await tx.execute(
            "INSERT INTO network (mode, genesis_hash, mint, decimals) VALUES ($1, $2, $3, $4)",
            network.mode,
            network.genesis_hash,
            network.mint,
            network.decimals,
        )
    return earlier or network


async def pinned(tx: Tx, mode: Mode) -> Pinned | None:
    row = await tx.fetchrow(
        "SELECT mode, genesis_hash, mint, decimals FROM network WHERE mode = $1", mode
    )
    return None if row is None else Pinned(**row)


async def holder_of(tx: Tx, genesis_hash: str) -> Mode | None:
    """The mode that is pinned to this genesis hash."""
    return await tx.fetchval("SELECT mode FROM network WHERE genesis_hash = $1", genesis_hash)
