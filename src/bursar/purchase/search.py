"""Finds what was signed for purchases in the history of the account that pays.

A facilitator signs a purchase too, and its signature, which nobody knows beforehand, is the
transaction's id. So each transaction that mentions the account is read once, and known by our own
signature among its signatures. Memos decide nothing: sellers choose them, or allow none.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from bursar.chain.port import Landed, Unclear, View
from bursar.db import Database
from bursar.purchase import follow_store
from bursar.purchase.follow_store import Payer
from bursar.purchase.model import PurchaseRow
from bursar.settlement import books_store
from bursar.settlement.evidence import Histories

# Anybody can mention an account, at the price of a transaction each: so many are read in one look,
# and the next one goes on.
READ_AT_ONCE: Final = 200
_CALLS_AT_ONCE: Final = 8
# Lines that are looked up in the books with one query.
_COMPARED_AT_ONCE: Final = 2_000
# Lines that are remembered as read, twice: about as many as a history may have to be searched.
_MOST_REMEMBERED: Final = 250_000

_log = structlog.get_logger()


class Searched(NamedTuple):
    """What a look at a history found: transactions that carry a signature of ours, whether every
    line from then on was read, and those that the node does not show."""

    found: list[tuple[PurchaseRow, Landed]]
    complete: bool
    unreadable: list[str]


@dataclass(slots=True)
class Search:
    db: Database
    histories: Histories = field(default_factory=Histories)
    _read: "_Lines" = field(default_factory=lambda: _Lines())
    _unreadable: "_Lines" = field(default_factory=lambda: _Lines())

    async def of_history(
        self, view: View, payer: Payer, since_slot: int, from_slot: int
    ) -> Searched:
        """What is new in the account's history since `since_slot`, by the word of a node that has
        come to `from_slot`. Raises ChainOutOfReach."""
        account = payer.account
        mentions = await self.histories.read(
            view, account, from_slot, lambda mention: mention.slot < since_slot
        )
        # The oldest first: what is left for the next look is the newest.
        lines = [m.signature for m in reversed(mentions) if m.slot >= since_slot]
        unread = [line for line in lines if not self._read.has(view, account, line)]
        # What could not be read the last time keeps nothing from being read.
        unread.sort(key=lambda line: self._unreadable.has(view, account, line))
        compared = unread[:_COMPARED_AT_ONCE]
        async with self.db.connection() as tx:
            known = await books_store.in_the_books(tx, account, compared)
        self._read.add(view, account, known)
        strange = [line for line in compared if line not in known]
        asked = strange[:READ_AT_ONCE]
        landed, unreadable = await shown_by(view, asked)
        self._unreadable.add(view, account, unreadable)
        found = await self._ours(view, payer, landed)
        complete = len(compared) == len(unread) and len(asked) == len(strange)
        return Searched(found, complete, unreadable)

    async def of_claim(self, view: View, payer: Payer, purchase: PurchaseRow) -> Landed | None:
        """The transaction that the seller names, if it is this purchase's. One that is another is
        asked for once."""
        line = purchase.claimed
        if line is None or self._read.has(view, payer.account, line):
            return None
        landed, _ = await shown_by(view, [line])
        found = await self._ours(view, payer, landed)
        return next((shown for bought, shown in found if bought.id == purchase.id), None)

    async def _ours(
        self, view: View, payer: Payer, landed: Sequence[Landed]
    ) -> list[tuple[PurchaseRow, Landed]]:
        """Those that carry a signature of a purchase of this wallet that is not over. The others
        are read for good: whatever was signed was stored before it left."""
        if not landed:
            return []
        signatures = [signature for shown in landed for signature in shown.signatures]
        async with self.db.connection() as tx:
            signed = await follow_store.signed_with(tx, payer.agent_id, signatures)
        found: list[tuple[PurchaseRow, Landed]] = []
        for shown in landed:
            purchase = next((signed[s] for s in shown.signatures if s in signed), None)
            if purchase is not None and purchase.status == "presented":
                found.append((purchase, shown))
                continue
            if purchase is not None and purchase.status == "unpaid" and shown.error is None:
                # Never to be seen: it was proven dead. The wallet is found short and stopped.
                _log.error("unpaid_purchase_on_chain", purchase=purchase.id, line=shown.signature)
            self._read.add(view, payer.account, [shown.signature])
        return found


async def shown_by(view: View, signatures: Sequence[str]) -> tuple[list[Landed], list[str]]:
    """(those that the node shows, those that it does not show so that they can be read)."""
    turns = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def one(signature: str) -> Landed | None:
        async with turns:
            try:
                return await view.transaction(signature)
            except Unclear:
                return None

    shown = await asyncio.gather(*(one(signature) for signature in signatures))
    unreadable = [s for s, landed in zip(signatures, shown, strict=True) if landed is None]
    return [landed for landed in shown if landed is not None], unreadable


class _Lines:
    """Lines of histories, as a node shows them, that something is known of for good. Half of them
    are forgotten when there are too many, and then found out again."""

    def __init__(self) -> None:
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def has(self, view: View, account: str, signature: str) -> bool:
        line = hash((view.name, account, signature))
        return line in self._newer or line in self._older

    def add(self, view: View, account: str, signatures: Iterable[str]) -> None:
        if len(self._newer) >= _MOST_REMEMBERED:
            self._newer, self._older = set(), self._newer
        self._newer.update(hash((view.name, account, signature)) for signature in signatures)
