"""Queries on the networks that are pinned."""

from dataclasses import asdict, dataclass

from bursar.advisory import PINNING
from bursar.config import Mode
from bursar.db import Tx
from bursar.sql import Query, columns, made_or_none


@dataclass(frozen=True, slots=True)
class Pinned:
    mode: Mode
    genesis_hash: str
    mint: str
    decimals: int


_LOCK = Query("SELECT pg_advisory_xact_lock(:number)")
_INSERT = Query(f"""
    INSERT INTO network ({columns(Pinned)})
    VALUES (:mode, :genesis_hash, :mint, :decimals)
""")
_GET = Query(f"SELECT {columns(Pinned)} FROM network WHERE mode = :mode")
_HOLDER = Query("SELECT mode FROM network WHERE genesis_hash = :genesis_hash")


async def pin(tx: Tx, network: Pinned) -> Pinned:
    """The network that this mode is pinned to: the given one on the first start, else the earlier
    one.

    Processes that start at once take turns. A genesis hash that the other mode already has is not
    pinned: see `holder_of`.
    """
    await _LOCK.run(tx, number=PINNING)
    earlier = await pinned(tx, network.mode)
    if earlier is None and await holder_of(tx, network.genesis_hash) is None:
        await _INSERT.run(tx, **asdict(network))
    return earlier or network


async def pinned(tx: Tx, mode: Mode) -> Pinned | None:
    return made_or_none(Pinned, await _GET.row(tx, mode=mode))


async def holder_of(tx: Tx, genesis_hash: str) -> Mode | None:
    """The mode that is pinned to this genesis hash."""
    return await _HOLDER.value(tx, genesis_hash=genesis_hash)
