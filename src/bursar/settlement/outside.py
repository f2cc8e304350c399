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

from bursar.chain.port import Chain, Height, Mention
from bursar.db import Database
from bursar.ids import is_id
from bursar.settlement import submission_store, watch_store
from bursar.settlement.model import Watch

# Rounds whose last attempt is remembered. One would do, but for rounds that commit side by side.
_MARKS: Final = 16
# How often the chain is looked at while there is something to sign.
_LOOK_SECONDS: Final = 30.0
# Pages of 1,000 transactions of the fee payer that the first look reads. What a restore forgot is
# the newest; only strangers who send to the fee payer can come in between.
_MOST_PAGES: Final = 5

_log = structlog.get_logger()


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
        self._newest: str | None = None

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

    async def knows_more(
        self, db: Database, chain: Chain, watch: Watch, fee_payer: str, final: Height
    ) -> bool:
        """Whether an attempt was made that the database does not know. Those that could land until
        the end of the last quiet are explained by it. Raises ChainOutOfReach."""
        explained = watch.quiet_until_height
        marks = [mark.signature for mark in self._marks if mark.last_valid_height > explained]
        if await _unknown(db, marks):
            return True
        if watch.explained_slot is None:
            async with db.connection() as tx:
                await watch_store.put_explained(tx, watch, final.slot)
            return False
        now = asyncio.get_running_loop().time()
        if self._looked_at is not None and now - self._looked_at < _LOOK_SECONDS:
            return False
        page, newest = await self._landed(chain, fee_payer, watch.explained_slot)
        unknown = await _unknown(db, [mention.signature for mention in page])
        # Anybody may send to the fee payer and write any memo; only we can make it pay.
        shown = await chain.transactions(sorted(unknown))
        found = [s for s, landed in shown.items() if landed and landed.fee_payer == fee_payer]
        if not found:
            self._looked_at, self._newest = now, newest
        return bool(found)

    async def _landed(
        self, chain: Chain, fee_payer: str, after_slot: int
    ) -> tuple[list[Mention], str | None]:
        """What looks like attempts of ours and is newer than the last look, and where this one
        ended."""
        found: list[Mention] = []
        newest, before = self._newest, None
        for _ in range(_MOST_PAGES):
            page = await chain.signatures_of(fee_payer, until=self._newest, before=before)
            if page and before is None:
                newest = page[0].signature
            found += [m for m in page if m.slot > after_slot and any(map(_is_ours, m.memos))]
            if not page or page[-1].slot <= after_slot:
                break
            before = page[-1].signature
        return found, newest


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
