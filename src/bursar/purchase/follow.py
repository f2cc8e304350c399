"""Looks after purchases that were presented, until the chain has spoken. The rules it lives by:

1. A purchase is what our signature says, wherever a transaction carries it (`search.py`). What the
   seller claims is a hint where to look. What it answered, or did not, proves nothing.
2. Final without error, and exactly the amount went from our account to the payee's: paid. Final
   with an error, by the word of every node: it can never pay again.
3. What nobody saw is dead only when the final height is past its last valid height with room to
   spare, and so much further that every node had time to list it; and every configured node, asked
   beyond that point, no longer takes its blockhash, shows the whole history of the account since it
   was signed without our signature, and a balance that is not short. No node can be asked for the
   status of a signature that is not a transaction's first. Until then it is in doubt, and its
   amount stays reserved.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from bursar.chain.port import SAFETY_BLOCKS, Chain, ChainOutOfReach, Height, Landed, View
from bursar.config import Mode
from bursar.db import OUT_OF_REACH, Database
from bursar.errors import present
from bursar.metrics import Purchases as Metrics
from bursar.policy.cache import PolicyCache
from bursar.purchase import end, follow_store
from bursar.purchase.follow_store import Followed, Payer
from bursar.purchase.model import PurchaseRow
from bursar.purchase.search import Search
from bursar.settlement import books_store
from bursar.settlement.evidence import went
from bursar.settlement.outside import Outside
from bursar.wallet import store as wallet_store
from bursar.wallet.quarantine import alone

# Purchases that one round looks after, and wallets that it looks at side by side.
FOLLOW_AT_ONCE: Final = 256
_WALLETS_AT_ONCE: Final = 8
# Claims of sellers that are looked up of one wallet; its history shows the others.
_CLAIMS_AT_ONCE: Final = 16
# A node may list a transaction later than newer ones: so many blocks, which are at least as many
# slots. No history is believed to be complete before.
INDEX_BLOCKS: Final = 150
DEAD_BLOCKS: Final = SAFETY_BLOCKS + INDEX_BLOCKS
# How long until the next look, at least: those of a moment are looked at together. A facilitator
# takes seconds, an instant chain does not.
_LOOK_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0)
_DOUBT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 5.0

_log = structlog.get_logger()


@dataclass(slots=True)
class Follower:
    """Follows the purchases of one mode. Any number may run, on any number of machines."""

    db: Database
    chain: Chain
    policies: PolicyCache
    mode: Mode
    outside: Outside = field(default_factory=Outside)
    search: Search = field(init=False)

    def __post_init__(self) -> None:
        self.search = Search(self.db)

    async def follow(self) -> int:
        """One round; returns how many purchases it looked after, or 0 where no more were due: what
        falls due meanwhile is looked after together."""
        claimed = await self.db.alone(lambda tx: follow_store.claim(tx, self.mode, FOLLOW_AT_ONCE))
        if not claimed:
            return 0
        # Known outside of the database too, as early as a worker can: `settlement/outside.py`.
        newest = max(claimed, key=lambda followed: followed.last_valid_height)
        await self.outside.remember(newest.last_valid_height, newest.signature)
        wallets: defaultdict[str, list[Followed]] = defaultdict(list)
        for followed in claimed:
            wallets[followed.purchase.agent_id].append(followed)
        try:
            # Before any history is read: what is final by then has to be in it.
            final = await self.chain.finalized()
            turns = asyncio.Semaphore(_WALLETS_AT_ONCE)

            async def one(agent_id: str) -> None:
                async with turns:
                    await self._follow(agent_id, wallets[agent_id], final)

            await asyncio.gather(*map(one, wallets))
        except ChainOutOfReach as problem:
            _log.warning("chain_out_of_reach", mode=self.mode, problem=str(problem))
            await self._look_again(claimed, _RETRY_SECONDS)
        except asyncio.CancelledError:
            # Stopped: whoever goes on need not wait for the lease to end.
            with suppress(*OUT_OF_REACH):
                await self._look_again(claimed, 0)
            raise
        return len(claimed) if len(claimed) == FOLLOW_AT_ONCE else 0

    async def report(self) -> int:
        """How many are followed and for how long, as metrics."""
        async with self.db.connection() as tx:
            presented, oldest = await follow_store.backlog(tx, self.mode)
        Metrics.backlog(self.mode, presented, oldest)
        return 0

    async def _follow(self, agent_id: str, claimed: Sequence[Followed], final: Height) -> None:
        """One wallet. Whatever happens to it, the others go on."""
        doubts: set[str] = set()

        async def work() -> None:
            doubts.update(await self._look(claimed, final))

        try:
            await alone(self.db, "purchase", agent_id, work)
        except ChainOutOfReach as problem:
            _log.warning("purchases_put_off", agent=agent_id, problem=str(problem))
            doubts.update(followed.purchase.id for followed in claimed)
        async with self.db.connection() as tx:
            await follow_store.look_again(
                tx,
                [
                    (f, _DOUBT_SECONDS if f.purchase.id in doubts else _pause(f.checks))
                    for f in claimed
                ],
            )

    async def _look(self, claimed: Sequence[Followed], final: Height) -> set[str]:
        """Ends what can be ended; returns the ids of those that are in doubt."""
        payer = claimed[0].payer
        found = await self._claimed(payer, [followed.purchase for followed in claimed])
        left = [followed for followed in claimed if followed.purchase.id not in found]
        if left:
            since = min(followed.signed_slot for followed in left)
            searched = await self.search.of_history(self.chain, payer, since, final.slot)
            # Be it of others that this worker does not look after now.
            found |= {purchase.id: (purchase, landed) for purchase, landed in searched.found}
        doubts = await self._conclude(payer, list(found.values()))
        dying = [
            followed
            for followed in left
            if followed.purchase.id not in found
            and final.height > followed.last_valid_height + DEAD_BLOCKS
        ]
        if dying and not await self._bury_if_dead(payer, dying):
            doubts |= {followed.purchase.id for followed in dying}
        return doubts

    async def _claimed(
        self, payer: Payer, purchases: Sequence[PurchaseRow]
    ) -> dict[str, tuple[PurchaseRow, Landed]]:
        """Those of which the seller told the truth, by their ids."""
        found: dict[str, tuple[PurchaseRow, Landed]] = {}
        for purchase in [p for p in purchases if p.claimed is not None][:_CLAIMS_AT_ONCE]:
            # A seller may name anything, even what makes a node refuse the question.
            with suppress(ChainOutOfReach):
                landed = await self.search.of_claim(self.chain, payer, purchase)
                if landed is not None:
                    found[purchase.id] = purchase, landed
        return found

    # Paid, or failed on the chain ----------------------------------------------------------------

    async def _conclude(
        self, payer: Payer, found: Sequence[tuple[PurchaseRow, Landed]]
    ) -> set[str]:
        """Rule 2, on what the transactions say themselves. Returns the ids of the doubtful."""
        paid = [(p, landed) for p, landed in found if bought(landed, p, payer)]
        if paid:
            await end.settle(self.db, self.policies, paid)
        doubts: set[str] = set()
        for purchase, landed in found:
            if landed.error is not None:
                if not await self._bury_failed(purchase, landed):
                    doubts.add(purchase.id)
            elif not bought(landed, purchase, payer):
                # Never to be seen: our own signature on something we did not sign.
                _log.error("purchase_differs_from_chain", purchase=purchase.id)
                doubts.add(purchase.id)
        return doubts

    async def _bury_failed(self, purchase: PurchaseRow, landed: Landed) -> bool:
        """Every node must show that it failed."""
        for witness in self.chain.witnesses():
            shown = await witness.transaction(landed.signature)
            if shown is None or shown.error is None or purchase.signature not in shown.signatures:
                _log.warning("purchase_in_doubt", purchase=purchase.id, node=witness.name)
                return False
        await end.bury(self.db, purchase, f"It failed on the chain: {landed.error}.")
        return True

    # Dead ----------------------------------------------------------------------------------------

    async def _bury_if_dead(self, payer: Payer, dying: Sequence[Followed]) -> bool:
        """Rule 3, for purchases of one wallet. False: they are in doubt. All nodes are asked even
        then: one that shows a payment ends the doubt."""
        proven = True
        for witness in self.chain.witnesses():
            try:
                problem = await self._not_dead_by(witness, payer, dying)
            except ChainOutOfReach as out_of_reach:
                problem = str(out_of_reach)
            if problem is not None:
                proven = False
                _log.warning(
                    "purchases_in_doubt",
                    agent=payer.agent_id,
                    node=witness.name,
                    problem=problem,
                )
        if proven:
            for followed in dying:
                await end.bury(self.db, followed.purchase, "What was signed expired unpaid.")
        return proven

    async def _not_dead_by(
        self, witness: View, payer: Payer, dying: Sequence[Followed]
    ) -> str | None:
        """Why this node does not prove that nothing was paid; None when it does."""
        async with self.db.connection() as tx:
            (wallet,) = await wallet_store.watched_wallets(tx, [payer.agent_id])
        final = await witness.finalized()
        if final.height <= max(f.last_valid_height for f in dying) + DEAD_BLOCKS:
            return "it is behind"
        if final.slot <= max(f.signed_slot for f in dying) + DEAD_BLOCKS:
            return "it counts other slots than the node that was asked before signing"
        for blockhash in {followed.blockhash for followed in dying}:
            # Should the height be wrong that was noted when it was signed.
            if await witness.is_valid(blockhash):
                return "what was signed can still land by its count"
        since = min(followed.signed_slot for followed in dying)
        searched = await self.search.of_history(witness, payer, since, final.slot)
        if searched.found:
            await self._conclude(payer, searched.found)
            return "it shows what others do not"
        if not searched.complete:
            return "its history is still being read"
        if await self._unreadable(payer, dying[0].purchase, searched.unreadable):
            return "it lists what it does not show"
        held = await witness.token_balances([payer.address], payer.mint, from_slot=final.slot)
        async with self.db.connection() as tx:
            now = (await books_store.ledger_now(tx, [payer.agent_id]))[payer.agent_id]
        # Others that may have left explain what is missing; those that are to be buried do not.
        alive = now.alive_micros - sum(followed.amount_micros for followed in dying)
        if held.micros[payer.address] < wallet.credits_micros - now.debits_micros - alive:
            return "the wallet is short"
        return None

    async def _unreadable(
        self, payer: Payer, purchase: PurchaseRow, signatures: Sequence[str]
    ) -> bool:
        """Whether lines are left that no person has looked at. They are listed with the unread
        deposits, where one can."""
        if not signatures:
            return False
        async with self.db.connection() as tx:
            left = set(signatures) - await follow_store.dismissed(tx, payer.account, signatures)
            for signature in sorted(left):
                await wallet_store.insert_unread(
                    tx,
                    realm_id=purchase.realm_id,
                    agent_id=payer.agent_id,
                    token_account=payer.account,
                    signature=signature,
                    problem=f"no node shows it, and it may be what paid for {purchase.id}",
                )
        return bool(left)

    async def _look_again(self, claimed: Sequence[Followed], seconds: float) -> None:
        async with self.db.connection() as tx:
            await follow_store.look_again(tx, [(followed, seconds) for followed in claimed])


def bought(landed: Landed, purchase: PurchaseRow, payer: Payer) -> bool:
    """Whether the transaction is this purchase's: our signature, and exactly its amount from this
    wallet to its payee."""
    payee = present(purchase.pay_to, "what was signed has a payee")
    micros = present(purchase.amount_micros, "what was signed has a price")
    return purchase.signature in landed.signatures and went(
        landed, payer.address, payee, payer.mint, micros
    )


def _pause(checks: int) -> float:
    return _LOOK_SECONDS[min(checks - 1, len(_LOOK_SECONDS) - 1)]
