"""Ledger against chain, all the time. A wallet that holds less than its ledger says is stopped."""

import asyncio
from collections.abc import AsyncGenerator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from bursar.agent.lifecycle import Actor, apply_change, lock_agent
from bursar.chain import store as chain_store
from bursar.chain.message import token_account
from bursar.chain.port import ChainOutOfReach, Landed
from bursar.chain.solana import Solana
from bursar.chain.store import Pinned
from bursar.config import Mode, variable
from bursar.db import Database, Tx
from bursar.ledger.audit import MAX_NAMED, Finding
from bursar.metrics import Settlement as Metrics
from bursar.money import format_micros
from bursar.settlement import store
from bursar.settlement.deposits import SWEEP_AT_ONCE, DepositWatcher, compare, every_wallet
from bursar.settlement.evidence import pays, took
from bursar.settlement.model import SettledRow, WatchedWallet

# One node may be behind another, so one look proves nothing.
_LOOKS: Final = 3
_LOOK_AGAIN_SECONDS: Final = 1.0
_MEMO_SHOWN: Final = 100
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
    # By held agent: how many in a row found none.
    _whole: dict[str, int] = field(default_factory=dict)

    async def sweep(self) -> int:
        """Credits what came in, then judges what still differs."""
        differing = await self.watcher.sweep()
        differences = await unexplained(self.db, differing)
        short = {wallet.agent_id for wallet, gap in differences if gap < 0}
        self._looks = {w.agent_id: self._looks.get(w.agent_id, 0) + 1 for w, _ in differences}
        Metrics.differences(self.watcher.mode, len(short), len(differences) - len(short))
        for wallet, gap in differences:
            if gap < 0 and self._looks[wallet.agent_id] >= _LOOKS and not wallet.held:
                await self._stop(wallet, gap)
        await self._release_those_in_order(short)
        for wallet, gap in differences:
            if gap > 0 and reads_again(self._looks[wallet.agent_id]):
                await self._look_again(wallet)
        return 0

    async def _look_again(self, wallet: WatchedWallet) -> None:
        """The cursor may have passed what the node listed late."""
        try:
            await self.watcher.look(wallet, from_the_start=True)
        except ChainOutOfReach as problem:  # of this wallet: the others are looked after
            _log.warning("deposits_not_read", agent=wallet.agent_id, problem=str(problem))

    async def _stop(self, wallet: WatchedWallet, gap: int) -> None:
        """Freezes the policy in the system's name and signs nothing more for the wallet."""
        _log.error("wallet_short", agent=wallet.agent_id, missing=format_micros(-gap))

        async def work(tx: Tx) -> None:
            before = await lock_agent(tx, wallet.realm_id, wallet.agent_id)
            await store.hold_wallet(tx, wallet.agent_id, held=True)
            if before.status != "terminated":
                frozen = before.policy.changed({"frozen": True})
                actor = Actor(wallet.realm_id, "system", "reconciliation")
                await apply_change(tx, actor, before, replace(before, policy=frozen))

        await self.db.transact(work)

    async def _release_those_in_order(self, short: Set[str]) -> None:
        """What is whole again, look after look, may be signed for; the policy stays frozen until a
        person looks."""
        async with self.db.read() as tx:
            held = await store.held_wallets(tx, self.watcher.mode)
            whole = {agent_id for agent_id in held if agent_id not in short}
            self._whole = {agent_id: self._whole.get(agent_id, 0) + 1 for agent_id in whole}
            for agent_id, looks in self._whole.items():
                if looks >= _LOOKS:
                    await store.hold_wallet(tx, agent_id, held=False)
                    _log.info("wallet_whole_again", agent=agent_id)


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
    for start in range(0, len(differing), SWEEP_AT_ONCE):
        part = differing[start : start + SWEEP_AT_ONCE]
        async with db.read() as tx:
            ledger = await store.ledger_now(tx, [wallet.agent_id for wallet, _ in part])
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
    async with db.read() as tx:
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
    finding.differences = [_told(wallet, gap) for wallet, gap in gaps[:MAX_NAMED]]
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
    async with db.read() as tx:
        began = await chain_store.pinned(tx, mode) is not None
    unset = f"{variable(f'{mode}_network')} is not set"
    return [Finding(chain_question(mode), problem=unset)] if began else []


async def _left_unknown(db: Database, chain: Solana, mint: str, wallet: WatchedWallet) -> list[str]:
    """The transactions that took money out of the wallet without a line in the books, of the newest
    thousand. What the worker will yet find and settle by itself is not among them."""
    account = token_account(wallet.address, mint)
    mentions = [each for each in await chain.signatures_of(account) if each.error is None]
    async with db.read() as tx:
        known = await store.in_the_books(tx, account, [each.signature for each in mentions])
        ours = await store.still_to_pay(tx, [memo for each in mentions for memo in each.memos])
    lines: list[str] = []
    for mention in mentions:
        if mention.signature in known or ours.intersection(mention.memos):
            continue
        landed = await chain.transaction(mention.signature)
        taken = 0 if landed is None else -landed.moved(account, mint)
        if taken > 0:
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
                if landed is None or not (took if payment.adopted else pays)(landed, payment):
                    finding.difference_count += 1
                    if len(finding.differences) < MAX_NAMED:
                        finding.differences.append(_unpaid(payment, known=landed is not None))
    except ChainOutOfReach as problem:
        finding.problem = f"the chain is out of reach ({problem})"
    return finding


async def _settled(
    db: Database, mode: Mode, everything: bool
) -> AsyncGenerator[Sequence[SettledRow]]:
    after = ""
    while everything:
        async with db.read() as tx:
            payments = await store.settled_after(tx, mode, after, _PAYMENTS_AT_ONCE)
        if not payments:
            return
        yield payments
        after = payments[-1].id
    async with db.read() as tx:
        samples = await store.settled_samples(tx, mode, SAMPLES)
    for start in range(0, len(samples), _PAYMENTS_AT_ONCE):
        yield samples[start : start + _PAYMENTS_AT_ONCE]


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
    async with db.read() as tx:
        wallets = await store.wallets(tx, agent_ids)
    return await unexplained(db, await compare(chain, mint, wallets))


def _told(wallet: WatchedWallet, gap: int) -> str:
    missing = "less" if gap < 0 else "more"
    return (
        f"{wallet.agent_id} holds {format_micros(abs(gap))} USDC {missing} at {wallet.address} than"
        f" the ledger ({format_micros(wallet.balance_micros)}) and what is on its way explain"
    )
