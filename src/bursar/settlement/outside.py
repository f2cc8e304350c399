"""What is known outside the database of the attempts that were stored in it. A database that does
not know one of them is older than its own payments: somebody put a snapshot back (rule 6).

Two places remember. The data folder keeps the last signatures that were stored, written after the
commit and before they are sent; those of purchases, which others send, as soon as a worker looks
for them. The chain keeps everything that landed: it also tells when the
folder went back with the database, as it does in a snapshot of a whole machine.

Attempts are never deleted, and a machine that sleeps forgets none. So nothing else looks like this.
"""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from bursar.chain.port import Chain, ChainOutOfReach, Landed, Mention, Unclear, View
from bursar.db import Database
from bursar.ids import is_id
from bursar.settlement import submission_store, watch_store
from bursar.settlement.model import Watch

# Rounds whose last attempt is remembered. One would do, but for rounds that commit side by side.
_MARKS: Final = 16
# How often the chain is looked at while there is something to sign.
_LOOK_SECONDS: Final = 30.0
# How long each of several nodes may take for a page: payments wait.
_PAGE_SECONDS: Final = 5.0
# Pages of 1,000 transactions of the fee payer that the first look reads. What a restore forgot is
# the newest; only strangers who send to the fee payer can come in between.
_MOST_PAGES: Final = 5

_log = structlog.get_logger()


class _Seen(NamedTuple):
    """What a node lists that looks like attempts of ours, and its newest line."""

    node: str
    attempts: list[Mention]
    newest: str | None


class _Mark(NamedTuple):
    last_valid_height: int
    signature: str


class Outside:
    """One mode's memory. Without a file it lasts as long as the process."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._marks = deque(_read(file), maxlen=_MARKS)
        self._writing = asyncio.Lock()
        self._looked_at: float | None = None
        # By node: where the last look ended.
        self._newest: dict[str, str | None] = {}

    async def remember(self, last_valid_height: int, signature: str) -> None:
        """It is stored, and may be sent once this has returned: no power cut forgets it then."""
        mark = _Mark(last_valid_height, signature)
        if mark in self._marks:
            return
        async with self._writing:
            self._marks.append(mark)
            if self._file is None:
                return
            try:
                await asyncio.to_thread(_write, self._file, tuple(self._marks))
            except OSError as problem:
                # Payments do not wait for it: the chain remembers too, and so do we.
                _log.error("mark_not_written", file=str(self._file), problem=str(problem))

    async def knows_more(self, db: Database, chain: Chain, watch: Watch, fee_payer: str) -> bool:
        """Whether an attempt was made that the database does not know, by the word of any node.
        Those that could land until the end of the last quiet are explained by it. Raises
        ChainOutOfReach when no node answers."""
        explained = watch.quiet_until_height
        marks = [mark.signature for mark in self._marks if mark.last_valid_height > explained]
        if await _unknown(db, marks):
            return True
        if watch.explained_slot is None:
            slot = min(height.slot for height in await chain.heights())
            async with db.connection() as tx:
                await watch_store.put_explained(tx, watch, slot)
            return False
        now = asyncio.get_running_loop().time()
        if self._looked_at is not None and now - self._looked_at < _LOOK_SECONDS:
            return False
        witnesses, after_slot = chain.witnesses(), watch.explained_slot
        seconds = _PAGE_SECONDS if len(witnesses) > 1 else None
        looks = await asyncio.gather(
            *(self._landed(witness, fee_payer, after_slot, seconds) for witness in witnesses)
        )
        told = [seen for seen in looks if seen is not None]
        if not told:
            raise ChainOutOfReach("no node shows what the fee payer paid for")
        listed = {mention.signature for seen in told for mention in seen.attempts}
        unknown = await _unknown(db, sorted(listed))
        # Anybody may send to the fee payer and write any memo; only we can make it pay.
        shown = await chain.transactions(sorted(unknown))
        for signature, landed in shown.items():
            if await _paid_by(chain, signature, landed) == fee_payer:
                return True
        self._looked_at = now
        self._newest |= {seen.node: seen.newest for seen in told}
        return False

    async def _landed(
        self, witness: View, fee_payer: str, after_slot: int, seconds: float | None
    ) -> "_Seen | None":
        """What is newer than the last look; None when the node does not say, or not in time."""
        found: list[Mention] = []
        known = self._newest.get(witness.name)
        newest, before = known, None
        for _ in range(_MOST_PAGES):
            try:
                async with asyncio.timeout(seconds):
                    page = await witness.signatures_of(fee_payer, until=known, before=before)
            except (ChainOutOfReach, TimeoutError):
                return None
            if page and before is None:
                newest = page[0].signature
            found += [m for m in page if m.slot > after_slot and any(map(_is_ours, m.memos))]
            if not page or page[-1].slot <= after_slot:
                break
            before = page[-1].signature
        return _Seen(witness.name, found, newest)


async def _paid_by(chain: Chain, signature: str, landed: Landed | None) -> str | None:
    """Who paid for a transaction that a node lists; None for one that cannot be read, which is none
    of ours. Raises ChainOutOfReach for one that no node shows now: it may be ours."""
    if landed is None:
        try:
            landed = await chain.transaction(signature)
        except Unclear:
            return None
        if landed is None:
            raise ChainOutOfReach(f"{signature} is listed but not shown")
    return landed.fee_payer


async def _unknown(db: Database, signatures: Sequence[str]) -> set[str]:
    if not signatures:
        return set()
    async with db.connection() as tx:
        return set(signatures) - await submission_store.known_attempts(tx, signatures)


def _is_ours(memo: str) -> bool:
    return is_id("txn", memo) or is_id("wdr", memo)


def _read(file: Path | None) -> list[_Mark]:
    """What is there and can be read: a line that was cut tells nothing."""
    try:
        lines = [] if file is None else file.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    parts = [line.split() for line in lines]
    return [_Mark(int(p[0]), p[1]) for p in parts if len(p) == 2 and p[0].isdigit()]


def _write(file: Path, marks: Sequence[_Mark]) -> None:
    new = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.writelines(f"{mark.last_valid_height} {mark.signature}\n" for mark in marks)
        opened.flush()
        os.fsync(descriptor)
    new.replace(file)
