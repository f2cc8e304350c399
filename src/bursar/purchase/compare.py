"""Compares a wallet's whole history with the books, after a failover or a restore: once everything
that left it is known, it may sign purchases again (`outflow_store.py`).

What the database forgot can land until the quiet is over (`settlement_watch`), and a node may take
a while to list it. From then on only what this database knows can take money out of a wallet, so
one pass over the history, from the newest line to the first, is enough, however long it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from bursar.chain.port import Chain, ChainOutOfReach, View
from bursar.config import Mode
from bursar.db import Database
from bursar.money import format_micros
from bursar.purchase import follow_store, outflow_store
from bursar.purchase.follow import INDEX_BLOCKS
from bursar.purchase.outflow_store import Asked
from bursar.purchase.search import shown_by
from bursar.settlement import books_store, watch_store
from bursar.settlement.model import Watch
from bursar.wallet import store as wallet_store
from bursar.wallet.quarantine import alone

# Wallets, lines and transactions that one round reads at most, for each node.
_WALLETS_AT_ONCE: Final = 16
_PAGE: Final = 200
_PAGES_AT_ONCE: Final = 50
_READ_AT_ONCE: Final = 1_000
_LOOK_AGAIN_SECONDS: Final = 10.0

_log = structlog.get_logger()


@dataclass(slots=True)
class OutflowCheck:
    """Of one mode. What it knows of histories that it has read in part lasts as long as the
    process; several at once read the same twice, and no more."""

    db: Database
    chain: Chain
    mode: Mode
    # By wallet and node: the oldest line that was compared, None when all were.
    _places: dict[tuple[str, str], str | None] = field(default_factory=dict)
    _watch: Watch | None = None

    async def compare(self) -> int:
        """One round; returns how many wallets it looked at."""
        async with self.db.connection() as tx:
            timeline = await watch_store.timeline(tx)
            watch = await watch_store.get_watch(tx, self.mode)
        if watch is None or watch.timeline != timeline:
            return 0  # which history this is has to be noted first
        if self._watch != watch:
            self._places, self._watch = {}, watch
        async with self.db.connection() as tx:
            asked = await outflow_store.asked(tx, self.mode, timeline, _WALLETS_AT_ONCE)
            if asked and watch.careful_before is None:
                # Nothing was ever forgotten.
                await outflow_store.note_known(tx, [wallet.agent_id for wallet in asked], watch)
                return len(asked)
        for wallet in asked:
            await self._look(wallet, watch)
        return len(asked)

    async def _look(self, wallet: Asked, watch: Watch) -> None:
        """One wallet. Whatever happens to it, the others go on."""
        # Where the comparison raises, none of what it would have found is known.
        told: list[str | None] = []

        async def work() -> None:
            told.append(await self._compare(wallet, watch))

        try:
            await alone(self.db, "purchase", wallet.agent_id, work)
        except ChainOutOfReach as out_of_reach:
            told.append(str(out_of_reach))
        problem = told[0] if told else "the books of this wallet cannot be read"
        async with self.db.connection() as tx:
            if problem is None:
                await outflow_store.note_known(tx, [wallet.agent_id], watch)
            else:
                _log.warning("outflows_unknown", agent=wallet.agent_id, problem=problem)
                await outflow_store.note_problem(tx, wallet.agent_id, problem, _LOOK_AGAIN_SECONDS)
        if problem is None:
            self._places = {k: v for k, v in self._places.items() if k[0] != wallet.agent_id}

    async def _compare(self, wallet: Asked, watch: Watch) -> str | None:
        """What stands in the way, if anything; every node has to show the same."""
        for witness in self.chain.witnesses():
            final = await witness.finalized()
            if final.height <= watch.quiet_until_height + INDEX_BLOCKS:
                return "quiet after a failover or restore"
            problem = await self._read(witness, wallet, final.slot)
            if problem is not None:
                return problem
        return None

    async def _read(self, witness: View, wallet: Asked, from_slot: int) -> str | None:
        """Goes on where the last round broke off."""
        key = wallet.agent_id, witness.name
        if key in self._places and self._places[key] is None:
            return None
        read = 0
        for _ in range(_PAGES_AT_ONCE):
            page = await witness.signatures_of(
                wallet.payer.account, before=self._places.get(key), limit=_PAGE, from_slot=from_slot
            )
            if not page:
                self._places[key] = None
                return None
            # What failed took nothing.
            lines = [mention.signature for mention in page if mention.error is None]
            compared, problem = await self._strange(witness, wallet, lines)
            if problem is not None:
                return problem
            self._places[key] = page[-1].signature
            read += compared
            if read >= _READ_AT_ONCE:
                break
        return "the history of this wallet is still being read"

    async def _strange(
        self, witness: View, wallet: Asked, lines: Sequence[str]
    ) -> tuple[int, str | None]:
        """(how many transactions were read, what of them is missing in the books)."""
        payer = wallet.payer
        async with self.db.connection() as tx:
            known = await books_store.in_the_books(tx, payer.account, lines)
        strange = [line for line in lines if line not in known]
        landed, unreadable = await shown_by(witness, strange)
        took = [shown for shown in landed if shown.moved(payer.account, payer.mint) < 0]
        signatures = [signature for shown in took for signature in shown.signatures]
        async with self.db.connection() as tx:
            signed = await follow_store.signed_with(tx, payer.agent_id, signatures)
            unread = set(unreadable) - await follow_store.dismissed(tx, payer.account, unreadable)
        # One that was presented is settled when its own look comes.
        ours = {s for s, purchase in signed.items() if purchase.status in ("presented", "paid")}
        for shown in took:
            if ours.isdisjoint(shown.signatures):
                micros = -shown.moved(payer.account, payer.mint)
                return len(strange), (
                    f"{shown.signature} took {format_micros(micros)} USDC out of the wallet and is"
                    " not in the books; `bursar adopt` enters it"
                )
        if unread:
            await self._show_unread(wallet, sorted(unread))
            return len(strange), (
                f"no node shows {min(unread)}, which may have taken money; look at it, then say so"
                " with `bursar deposits dismiss`"
            )
        return len(strange), None

    async def _show_unread(self, wallet: Asked, signatures: Sequence[str]) -> None:
        async with self.db.connection() as tx:
            for signature in signatures:
                await wallet_store.insert_unread(
                    tx,
                    realm_id=wallet.realm_id,
                    agent_id=wallet.agent_id,
                    token_account=wallet.payer.account,
                    signature=signature,
                    problem="no node shows it, and it may have taken money out of the wallet",
                )
