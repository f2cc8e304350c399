"""The tamper-evident chain over the journal, written off the hot path.

Each link hashes the link before it and the transfers it covers, so a journal that was changed
afterwards no longer fits its chain. Transfers are taken in the order of the database transactions
that wrote them, and only below the oldest transaction that still runs: one that commits late has a
number that is not sealed yet, so no transfer is missed.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from bursar.db import Database, Tx
from bursar.ledger import store
from bursar.ledger.store import SealedTransfer

# Transfers that one link covers at most, unless one transaction alone wrote more.
MAX_TRANSFERS: Final = 10_000
GENESIS: Final = hashlib.sha256(b"bursar journal").digest()


async def seal_journal(db: Database) -> int:
    """Adds one link if there is anything to seal; returns how many transfers it covers."""
    return await db.transact(_seal)


def link(previous: bytes, transfers: Iterable[SealedTransfer]) -> bytes:
    """The hash of one link: the one before it, then each transfer as a line of text."""
    digest = hashlib.sha256(previous)
    for transfer in transfers:
        digest.update(transfer.line().encode())
    return digest.digest()


async def _seal(tx: Tx) -> int:
    # One process seals at a time, on any number of machines; the others have nothing to do.
    if not await store.lock_seal(tx):
        return 0
    last = await store.last_seal(tx)
    number, start, previous = (0, 0, GENESIS) if last is None else last
    end = await store.oldest_running(tx)
    transfers = await store.transfers_between(tx, start, end, MAX_TRANSFERS + 1)
    if len(transfers) > MAX_TRANSFERS:
        # Cut between two transactions: the last one may not have been read in full.
        end = transfers[-1].xact
        whole = [transfer for transfer in transfers if transfer.xact < end]
        if not whole:
            end += 1
            whole = await store.transfers_between(tx, start, end, None)
        transfers = whole
    if not transfers:
        return 0
    await store.insert_seal(tx, number + 1, end, len(transfers), link(previous, transfers))
    return len(transfers)
