"""Ledger against chain, all the time. A wallet that holds less than its ledger says is stopped."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog

from bursar.agent.lifecycle import Actor, apply_change, lock_agent
from bursar.agent.view import show_agent
from bursar.chain import store as chain_store
from bursar.chain.message import token_account
from bursar.chain.port import ChainOutOfReach, Landed
from bursar.chain.solana import Solana
from bursar.chain.store import Pinned
from bursar.config import Mode, variable
from bursar.db import Database, Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ledger.audit import MAX_NAMED, Finding
from bursar.metrics import Settlement as Metrics
from bursar.money import format_micros
from bursar.policy.model import PolicyChange
from bursar.settlement import books_store
from bursar.settlement.deposits import DepositWatcher, compare
from bursar.settlement.evidence import pays, took, went
from bursar.settlement.model import SettledRow
from bursar.settlement.turns import AT_ONCE, every_wallet
from bursar.wallet import store as wallet_store
from bursar.wallet.model import WatchedWallet
from bursar.wallet.quarantine import alone

# One node may be behind another, so one look proves nothing.
_LOOKS: Final = 3
_LOOK_AGAIN_SECONDS: Final = 1.0
# More than so many wallets of a mode found short in one sweep are not stopped: somebody is told.
MOST_STOPPED_AT_ONCE: Final = 10
_MEMO_SHOWN: Final = 100
# Blocks whose time is asked for again in one go.
_TIMES_AT_ONCE: Final = 100
# Settled payments that an audit looks up on the chain unless it is asked for all: a node answers
# some hundreds a second, so millions would take hours.
SAMPLES: Final = 1_000
_PAYMENTS_AT_ONCE: Final = 500

_log = structlog.get_logger()


@dataclass(slots=True)
class Reconciler:
    db: Database
    watcher: DepositWatcher
    # By agent: how many looks in a row found a difference.
    _looks: dict[str, int] = field(default_factory=dict)
    # By agent whose wallet is frozen: how many in a row found none.
    _whole: dict[str, int] = field(default_factory=dict)

    async def sweep(self) -> int:
        """Credits what came in, then judges what still differs."""
        swept = await self.watcher.sweep(doubtful=self._looks)
        differences = await unexplained(self.db, swept.differing)
        short = {wallet.agent_id for wallet, gap in differences if gap < 0}
        self._looks = {w.agent_id: self._looks.get(w.agent_id, 0) + 1 for w, _ in differences}
        Metrics.differences(self.watcher.mode, len(short), len(differences) - len(short))
        await self._stop_those(
            [
                wallet
                for wallet, gap in differences
                if gap < 0 and self._looks[wallet.agent_id] >= _LOOKS and not wallet.is_frozen
            ]
        )
        await self._release_those_in_order(swept.frozen - short)
        for wallet, gap in differences:
            if gap > 0 and reads_again(self._looks[wallet.agent_id]):
                await self._look_again(wallet)
        return 0

    def forget(self) -> None:
        """Another worker sweeps: what this one saw is of no use when its turn comes again."""
        self._looks.clear()
        self._whole.clear()
        self.watcher.turns.forget()
        Metrics.differences(self.watcher.mode, 0, 0)
        Metrics.too_many_short(self.watcher.mode, False)
        Metrics.unread(self.watcher.mode, 0)

    async def fill_block_times(self) -> int:
        """A node may know a block before it knows when it was made; asked again, it does."""
        mode = self.watcher.mode
        async with self.db.connection() as tx:
            signatures = await books_store.without_block_time(tx, mode, _TIMES_AT_ONCE)
        if not signatures:
            return 0
        shown = await self.watcher.chain.transactions(signatures)
        times = {
            signature: landed.block_time
            for signature, landed in shown.items()
            if landed is not None and landed.block_time is not None
        }
        await self.db.transact(lambda tx: books_store.fill_block_times(tx, times))
        return 0

    async def _look_again(self, wallet: WatchedWallet) -> None:
        """The cursor may have passed what the node listed late."""
        try:
            await alone(
                self.db,
                "deposit",
                wallet.agent_id,
                lambda: self.watcher.look(wallet, from_the_start=True),
            )
        except ChainOutOfReach as problem:  # of this wallet: the others are looked after
            _log.warning("deposits_not_read", agent=wallet.agent_id, problem=str(problem))

    async def _stop_those(self, suspects: Sequence[WatchedWallet]) -> None:
        """Those that every node says are short. Many at once are no thefts but a node or a database
        that is wrong, which a person has to see before all of them stand still."""
        short = await self._said_by_all(suspects, short=True)
        many = len(short) > MOST_STOPPED_AT_ONCE
        Metrics.too_many_short(self.watcher.mode, many)
        if many:
            _log.error("too_many_wallets_short", mode=self.watcher.mode, count=len(short))
            return
        await self._each_alone([w for w in suspects if w.agent_id in short], self._stop)

    async def _said_by_all(self, wallets: Sequence[WatchedWallet], *, short: bool) -> set[str]:
        """Those of which every configured node, no further back than the newest deposit, says that
        they are short, or that they are not. One that does not answer has not said so."""
        agreed = {wallet.agent_id for wallet in wallets}
        for witness in self.watcher.chain.witnesses():
            asked = [wallet for wallet in wallets if wallet.agent_id in agreed]
            for start in range(0, len(asked), AT_ONCE):
                part = asked[start : start + AT_ONCE]
                try:
                    held = await witness.token_balances(
                        [wallet.address for wallet in part],
                        self.watcher.mint,
                        from_slot=max(wallet.credited_slot for wallet in part),
                    )
                except ChainOutOfReach as problem:
                    _log.warning("wallets_not_judged", node=witness.name, problem=str(problem))
                    return set()
                seen = [(wallet, held.micros[wallet.address]) for wallet in part]
                lacking = {w.agent_id for w, gap in await unexplained(self.db, seen) if gap < 0}
                agreed -= {w.agent_id for w in part if (w.agent_id in lacking) != short}
        return agreed

    async def _each_alone(
        self,
        wallets: Sequence[WatchedWallet],
        work: Callable[[WatchedWallet], Awaitable[None]],
    ) -> None:
        """One whose commit raises keeps no other from being stopped or released."""
        if not wallets:
            return
        async with self.db.connection() as tx:
            resting = await wallet_store.resting(tx, [w.agent_id for w in wallets], "stop")
        for wallet in wallets:
            if wallet.agent_id not in resting:
                await alone(self.db, "stop", wallet.agent_id, partial(work, wallet))

    async def _stop(self, wallet: WatchedWallet) -> None:
        """Freezes the policy in the system's name and signs nothing more for the wallet."""
        _log.error("wallet_short", agent=wallet.agent_id)

        async def work(tx: Tx) -> None:
            before = await lock_agent(tx, wallet.realm_id, wallet.agent_id)
            await wallet_store.set_frozen(tx, wallet.agent_id, frozen=True)
            after = before
            if before.status != "terminated":
                frozen = before.policy.changed(PolicyChange(frozen=True))
                actor = Actor(wallet.realm_id, "system", "reconciliation")
                after = await apply_change(tx, actor, before, replace(before, policy=frozen))
            changed = after.policy.version != before.policy.version
            await wallet_store.note_stop(
                tx, wallet.agent_id, after.policy.version if changed else None
            )

        await self.db.transact(work)

    async def _release_those_in_order(self, whole: Set[str]) -> None:
        """What is whole again, look after look and by the word of every node, may be signed for. Of
        a wallet that was not compared nobody knows whether it is."""
        self._whole = {agent_id: self._whole.get(agent_id, 0) + 1 for agent_id in whole}
        ready = [agent_id for agent_id, looks in self._whole.items() if looks >= _LOOKS]
        async with self.db.connection() as tx:
            wallets = await wallet_store.watched_wallets(tx, ready)
        proven = await self._said_by_all(wallets, short=False)
        await self._each_alone([w for w in wallets if w.agent_id in proven], self._release)

    async def _release(self, wallet: WatchedWallet) -> None:
        """If nothing that left was entered into the books meanwhile, the stop was wrong: the policy
        thaws too, unless a person has changed it since. Otherwise it stays frozen until a person
        looks."""

        async def work(tx: Tx) -> bool:
            before = await lock_agent(tx, wallet.realm_id, wallet.agent_id)
            await wallet_store.set_frozen(tx, wallet.agent_id, frozen=False)
            stopped_by = await wallet_store.forget_stop(tx, wallet.agent_id)
            if stopped_by != before.policy.version or before.status == "terminated":
                return False
            thawed = before.policy.changed(PolicyChange(frozen=False))
            actor = Actor(wallet.realm_id, "system", "reconciliation")
            after = await apply_change(tx, actor, before, replace(before, policy=thawed))
            event = NewEvent(
                wallet.realm_id,
                EventType.AGENT_THAWED,
                wallet.agent_id,
                show_agent(after),
                after.updated_at,
            )
            await emit(tx, [event])
            return True

        thawed = await self.db.transact(work)
        _log.info("wallet_whole_again", agent=wallet.agent_id, thawed=thawed)


def reads_again(looks: int) -> bool:
    """Whether so many looks in a row that found too much are worth a whole history: at 3, 6, 12,
    24 and so on. One that could not be read comes back, and one that explains nothing costs less
    and less."""
    times, rest = divmod(looks, _LOOKS)
    return rest == 0 and times.bit_count() == 1


async def unexplained(
    db: Database, differing: Sequence[tuple[WatchedWallet, int]]
) -> list[tuple[WatchedWallet, int]]:
    """What the chain holds beyond what ledger and payments on their way explain: (wallet, gap).

    The wallet's row was read before the chain and is read again now, after it. Credits from before
    are on the chain, and what has left it is posted or alive by now; so whatever happens meanwhile,
    less than the one without the other is missing, and more than the reverse is too much.
    """
    gaps: list[tuple[WatchedWallet, int]] = []
    for start in range(0, len(differing), AT_ONCE):
        part = differing[start : start + AT_ONCE]
        async with db.connection() as tx:
            ledger = await books_store.ledger_now(tx, [wallet.agent_id for wallet, _ in part])
        for wallet, chain_micros in part:
            now = ledger[wallet.agent_id]
            least = wallet.credits_micros - now.debits_micros - now.alive_micros
            most = now.credits_micros - wallet.debits_micros
            if chain_micros > most:
                gaps.append((wallet, chain_micros - most))
            elif chain_micros < least:
                gaps.append((wallet, chain_micros - least))
    return gaps


# The audit ---------------------------------------------------------------------------------------


async def audit_chain(db: Database, chain: Solana, mode: Mode) -> Finding:
    """Every wallet of the mode against the chain; changes nothing. What differs is looked at again,
    because a deposit may be on its way into the books."""
    finding = Finding(chain_question(mode))
    async with db.connection() as tx:
        network = await chain_store.pinned(tx, mode)
    if network is None:
        finding.problem = "the worker has never reached this network"
        return finding
    chain.expect(network.genesis_hash)
    try:
        finding.checked, differing = await _compare_all(db, chain, network)
        gaps = await unexplained(db, differing)
        for _ in range(_LOOKS - 1):
            if not gaps:
                break
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            gaps = await _compare_again(db, chain, network.mint, [w.agent_id for w, _ in gaps])
    except ChainOutOfReach as problem:
        finding.problem = f"the chain is out of reach ({problem})"
        return finding
    finding.difference_count = len(gaps)
    finding.differences = [_difference(wallet, gap) for wallet, gap in gaps[:MAX_NAMED]]
    for wallet, gap in gaps[:MAX_NAMED]:
        if gap < 0:
            try:
                finding.differences += await _left_unknown(db, chain, network.mint, wallet)
            except ChainOutOfReach as problem:
                finding.differences.append(
                    f"{wallet.agent_id}: its history is not shown: {problem}"
                )
    return finding


async def audit_without_chain(db: Database, mode: Mode) -> list[Finding]:
    """For a mode without a network: nothing to say, unless it once began on one."""
    async with db.connection() as tx:
        began = await chain_store.pinned(tx, mode) is not None
    unset = f"{variable(f'{mode}_network')} is not set"
    return [Finding(chain_question(mode), problem=unset)] if began else []


async def _left_unknown(db: Database, chain: Solana, mint: str, wallet: WatchedWallet) -> list[str]:
    """The transactions that took money out of the wallet without a line in the books, of the newest
    thousand. What the worker will yet find and settle by itself is not among them."""
    account = token_account(wallet.address, mint)
    mentions = [each for each in await chain.signatures_of(account) if each.error is None]
    async with db.connection() as tx:
        known = await books_store.in_the_books(tx, account, [each.signature for each in mentions])
        ours = await books_store.still_to_pay(
            tx, [memo for each in mentions for memo in each.memos]
        )
    lines: list[str] = []
    for mention in mentions:
        if mention.signature in known or ours.intersection(mention.memos):
            continue
        landed = await chain.transaction(mention.signature)
        taken = 0 if landed is None else -landed.moved(account, mint)
        if landed is not None and taken > 0 and not await _bought(db, landed):
            # Whoever signed it chose the memo: nothing of it may reach a terminal as it is.
            memos = ascii(", ".join(mention.memos))[1:-1][:_MEMO_SHOWN]
            memo = f" (memo {memos})" if memos else ""
            lines.append(
                f"{wallet.agent_id}: unknown payment of {format_micros(taken)} USDC, transaction"
                f" {mention.signature}{memo}; `bursar adopt` enters it"
            )
        if len(lines) == MAX_NAMED:
            break
    return lines


async def _bought(db: Database, landed: Landed) -> bool:
    """Whether a purchase was signed so that the worker has yet to settle."""
    async with db.connection() as tx:
        return bool(await books_store.presented_with(tx, landed.signatures))


async def audit_payments(db: Database, chain: Solana, mode: Mode, *, everything: bool) -> Finding:
    """Every settled payment, or the newest and some others by chance, against the transaction that
    made it; changes nothing."""
    finding = Finding(payments_question(mode, everything=everything))
    try:
        async for payments in _settled(db, mode, everything):
            shown = await chain.transactions([payment.signature for payment in payments])
            for payment in payments:
                finding.checked += 1
                landed = shown[payment.signature] or await _shown_by_any(chain, payment.signature)
                if landed is None or not _made(landed, payment):
                    finding.difference_count += 1
                    if len(finding.differences) < MAX_NAMED:
                        finding.differences.append(_unpaid(payment, known=landed is not None))
    except ChainOutOfReach as problem:
        finding.problem = f"the chain is out of reach ({problem})"
    return finding


async def _settled(
    db: Database, mode: Mode, everything: bool
) -> AsyncGenerator[Sequence[SettledRow]]:
    for kind in books_store.MADE:
        after = ""
        while everything:
            async with db.connection() as tx:
                payments = await books_store.settled_after(tx, mode, kind, after, _PAYMENTS_AT_ONCE)
            if not payments:
                break
            yield payments
            after = payments[-1].id
        if not everything:
            async with db.connection() as tx:
                samples = await books_store.settled_samples(tx, mode, kind, SAMPLES)
            for start in range(0, len(samples), _PAYMENTS_AT_ONCE):
                yield samples[start : start + _PAYMENTS_AT_ONCE]


def _made(landed: Landed, payment: SettledRow) -> bool:
    """Whether the transaction is what the books say it is."""
    if payment.signed is None:
        return (took if payment.adopted else pays)(landed, payment)
    return payment.signed in landed.signatures and went(
        landed, payment.source, payment.destination, payment.mint, payment.amount_micros
    )


async def _shown_by_any(chain: Solana, signature: str) -> Landed | None:
    """None when every node says that it knows no such transaction."""
    for witness in chain.witnesses():
        landed = await witness.transaction(signature)
        if landed is not None:
            return landed
    return None


def _unpaid(payment: SettledRow, *, known: bool) -> str:
    told = f"{payment.id} is settled with {payment.signature}"
    if not known:
        return f"{told}, which no node knows"
    return (
        f"{told}, which did not move {format_micros(payment.amount_micros)} USDC from"
        f" {payment.source} to {payment.destination}"
    )


def payments_question(mode: Mode, *, everything: bool) -> str:
    which = "" if everything else f" (the newest {SAMPLES:,} and about as many by chance)"
    return f"every settled {mode} payment is on the chain as the books say{which}"


def chain_question(mode: Mode) -> str:
    return f"every {mode} wallet holds on the chain what the ledger says"


async def _compare_all(
    db: Database, chain: Solana, network: Pinned
) -> tuple[int, list[tuple[WatchedWallet, int]]]:
    """(how many there are, those that differ)."""
    checked = 0
    differing: list[tuple[WatchedWallet, int]] = []
    async for wallets in every_wallet(db, network.mode):
        checked += len(wallets)
        differing += await compare(chain, network.mint, wallets)
    return checked, differing


async def _compare_again(
    db: Database, chain: Solana, mint: str, agent_ids: Sequence[str]
) -> list[tuple[WatchedWallet, int]]:
    async with db.connection() as tx:
        wallets = await wallet_store.watched_wallets(tx, agent_ids)
    return await unexplained(db, await compare(chain, mint, wallets))


def _difference(wallet: WatchedWallet, gap: int) -> str:
    missing = "less" if gap < 0 else "more"
    return (
        f"{wallet.agent_id} holds {format_micros(abs(gap))} USDC {missing} at {wallet.address} than"
        f" the ledger ({format_micros(wallet.balance_micros)}) and what is on its way explain"
    )
