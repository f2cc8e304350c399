"""Pays what was approved, each payment once. The rules it lives by:

1. What is signed is stored and committed before it is sent; one live attempt per payment.
2. The same bytes are sent again; only a status with history search is believed. No answer, a reset
   or an error of the node means "unknown", never "failed". Blocks are counted, not seconds.
3. Final without error: settled. Final with an error: that attempt is dead, nothing was paid.
4. An attempt that nobody saw is dead only when the final height is past its last valid height with
   room to spare, and every configured node, asked beyond that point, no longer takes its blockhash
   and finds neither its signature nor the payment's memo on the source account. Until then it is in
   doubt: nothing new is signed.
5. Another attempt is signed only when every earlier one is dead. A payment fails only when all are
   dead and the failure can never change, or when too many expired.
6. After a failover or a restore nothing is signed until what was forgotten can no longer land, and
   payments from before are looked for on the chain first. A restore shows in the timeline of the
   database or, if a snapshot was put back, in attempts that are known outside of it alone.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

import structlog

from bursar.chain.message import (
    EMPTY_ACCOUNT_LAMPORTS,
    SYSTEM,
    Payment,
    token_account,
)
from bursar.chain.port import (
    SAFETY_BLOCKS,
    Account,
    Chain,
    ChainOutOfReach,
    Landed,
    RefusalKind,
    Refused,
    Sent,
    Unknown,
)
from bursar.chain.refusal import kind_of_text
from bursar.config import Mode
from bursar.custody import store as custody_store
from bursar.custody.model import SealedKey
from bursar.custody.vault import KeyUnusable, Vault
from bursar.db import OUT_OF_REACH, Database
from bursar.errors import present
from bursar.metrics import Settlement as Metrics
from bursar.policy.cache import PolicyCache
from bursar.policy.model import Bounds
from bursar.settlement import evidence, outcome, payment_store, submission_store, watch_store
from bursar.settlement.afford import Costed, afford
from bursar.settlement.model import (
    Look,
    NewSubmission,
    PaymentRow,
    SubmissionRow,
    Watch,
)
from bursar.settlement.outside import Outside
from bursar.wallet.quarantine import apart

T = TypeVar("T")
R = TypeVar("R")

# Payments that one round signs, and attempts that one round looks after.
SIGN_AT_ONCE: Final = 128
FOLLOW_AT_ONCE: Final = 256
# Wallets whose locks one commit holds at most.
SETTLE_AT_ONCE: Final = 64
CALLS_AT_ONCE: Final = 16
# How long until the next look: at first soon, because an instant chain is done by then.
_LOOK_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_DOUBT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 5
# How long a payment waits for another one to open the same payee's token account.
_OPENING_SECONDS: Final = 1
_ACCOUNT_SPENT: Final = "the account's network budget of the day is used up"

_SYSTEM_PROGRAM: Final = str(SYSTEM)

_log = structlog.get_logger()


@dataclass(slots=True)
class Settler:
    """Settles the payments of one mode. Any number may run, on any number of machines."""

    db: Database
    chain: Chain
    vault: Vault
    policies: PolicyCache
    mode: Mode
    decimals: int
    bounds: Bounds
    histories: evidence.Histories = field(default_factory=evidence.Histories)
    outside: Outside = field(default_factory=Outside)
    # The life of the server in which this worker has compared what it knows with the database.
    _life: str = ""

    async def work(self) -> int:
        """One round; returns how many payments or attempts it touched."""
        signed = await self.sign()
        return signed + await self.follow()

    # Signing -------------------------------------------------------------------------------------

    async def sign(self) -> int:
        """Rules 1, 5 and 6: sign for payments of which nothing is alive, store, then send."""
        claimed = await self.db.alone(
            lambda tx: payment_store.claim_payments(tx, self.mode, SIGN_AT_ONCE)
        )
        if not claimed:
            return 0
        try:
            watch = await self.watch()
            await apart(self.db, "settle", claimed, lambda some: self._sign(some, watch))
        except ChainOutOfReach as problem:
            # Nothing was stored, so nothing was sent: they are free again after a while.
            await self._give_back(claimed, str(problem))
        except asyncio.CancelledError:
            # Stopped: whoever goes on need not wait for the lease to end.
            with suppress(*OUT_OF_REACH):
                await self._give_back(claimed, None, after_seconds=0)
            raise
        return len(claimed)

    async def _sign(self, claimed: Sequence[PaymentRow], watch: Watch) -> None:
        if await self._is_quiet(watch):
            await self._give_back(claimed, "quiet after a failover or restore")
            return
        async with self.db.connection() as tx:
            made = await custody_store.fee_payer_key(tx, self.mode)
        fee_payer = present(made, "the fee payer is made when the service starts")
        if await self._is_older(watch, fee_payer.address):
            await self._give_back(claimed, "quiet after a failover or restore", after_seconds=0)
            return
        unpaid = await self._adopt_forgotten(claimed, watch)
        unpaid = await self._drop_called_off(unpaid)
        if not unpaid:
            return
        async with self.db.connection() as tx:
            wallet_keys = await custody_store.wallet_keys(tx, [p.agent_id for p in unpaid])
        fee, accounts, blockhash = await asyncio.gather(
            self.chain.priority_fee(sorted({token_account(p.source, p.mint) for p in unpaid})),
            self._accounts(
                fee_payer.address,
                *(p.destination for p in unpaid),
                *(token_account(p.destination, p.mint) for p in unpaid),
            ),
            self.chain.latest_blockhash(),
        )
        payable = await self._refuse_bad_destinations(unpaid, accounts)
        affordable = await self._affordable(payable, accounts, fee)
        affordable = await self._within_means(affordable, accounts[fee_payer.address])
        if not affordable:
            return

        async def submission(costed: Costed) -> NewSubmission | None:
            payment = costed.payment
            attempt = payment.attempts + 1
            try:
                signed = await self.vault.sign(
                    self._message(costed, attempt, blockhash.hash, fee_payer, fee),
                    wallet_keys[payment.agent_id],
                    fee_payer,
                )
            except KeyUnusable as problem:  # of this wallet: the others go on
                _log.error("key_unusable", payment=payment.id, problem=str(problem))
                await self._give_back([payment], str(problem))
                return None
            return NewSubmission(
                payment=payment,
                attempt=attempt,
                raw=signed.raw,
                signature=signed.signature,
                blockhash=blockhash.hash,
                last_valid_height=blockhash.last_valid_height,
                signed_slot=blockhash.slot,
                opens_account=costed.opens_account,
                network_lamports=costed.lamports,
            )

        signed = [s for s in await _gather(submission, affordable) if s is not None]
        if not signed:
            return
        stored = await self.db.transact(
            lambda tx: submission_store.insert_submissions(
                tx, signed, watch.timeline, self.bounds.account_network_lamports
            )
        )
        # Only what is committed is sent; what another worker was faster with never leaves here.
        kept = [s for s in signed if s.payment.id in stored.ids]
        await self._send(kept)
        await self._refuse_cost(
            [(s.payment, _ACCOUNT_SPENT) for s in signed if s.payment.id in stored.over_budget]
        )

    async def _accounts(self, fee_payer: str, *others: str) -> Mapping[str, Account | None]:
        """From a node that knows the fee payer, if any does: one that has lost its accounts would
        have every payment wait for SOL, and every payee's token account opened again."""
        addresses = sorted({fee_payer, *others})
        found = await self.chain.accounts(addresses)
        for witness in self.chain.witnesses() if found[fee_payer] is None else ():
            with suppress(ChainOutOfReach):
                told = await witness.accounts(addresses)
                if told[fee_payer] is not None:
                    return told
        return found

    def _message(
        self,
        costed: Costed,
        attempt: int,
        blockhash: str,
        fee_payer: SealedKey,
        priority_fee: int,
    ) -> Payment:
        payment = costed.payment
        return Payment(
            id=payment.id,
            attempt=attempt,
            amount_micros=payment.amount_micros,
            source=payment.source,
            destination=payment.destination,
            mint=payment.mint,
            decimals=self.decimals,
            blockhash=blockhash,
            fee_payer=fee_payer.address,
            priority_fee=priority_fee,
            opens_account=costed.opens_account,
        )

    async def _refuse_bad_destinations(
        self, unpaid: Sequence[PaymentRow], accounts: Mapping[str, Account | None]
    ) -> list[PaymentRow]:
        """A destination is absent or owned by the System program; nothing else is ever paid."""
        payable: list[PaymentRow] = []
        for payment in unpaid:
            account = accounts[payment.destination]
            if account is None or (account.owner == _SYSTEM_PROGRAM and not account.executable):
                payable.append(payment)
            else:
                await outcome.fail(
                    self.db, payment, "destination_invalid", "the destination is no wallet"
                )
        return payable

    async def _affordable(
        self,
        payable: Sequence[PaymentRow],
        accounts: Mapping[str, Account | None],
        priority_fee: int,
    ) -> list[Costed]:
        """Those whose cost is held and whose payee's token account is there or may be opened."""
        found = await afford(self.db, self.policies, self.bounds, payable, accounts, priority_fee)
        if found.waiting:
            await self._give_back(
                found.waiting, "another payment opens the token account", _OPENING_SECONDS
            )
        await self._refuse_cost(found.refused)
        return found.affordable

    async def _refuse_cost(self, refused: Sequence[tuple[PaymentRow, str]]) -> None:
        for payment, why in refused:
            await outcome.fail(self.db, payment, "network_cost_exceeded", why)

    async def _within_means(
        self, affordable: Sequence[Costed], fee_payer: Account | None
    ) -> list[Costed]:
        """As many as the fee payer can pay for. The others wait: attempts that no node takes would
        be counted against them."""
        spare = (0 if fee_payer is None else fee_payer.lamports) - EMPTY_ACCOUNT_LAMPORTS
        total = itertools.accumulate(costed.lamports for costed in affordable)
        count = sum(1 for _ in itertools.takewhile(lambda sum_: sum_ <= spare, total))
        if count < len(affordable):
            await self._give_back(
                [costed.payment for costed in affordable[count:]],
                "the fee payer has too little SOL",
            )
        return list(affordable[:count])

    async def _adopt_forgotten(
        self, claimed: Sequence[PaymentRow], watch: Watch
    ) -> list[PaymentRow]:
        """Rule 6: a payment from before the restore may have been made; if so, it is settled."""
        before = watch.careful_before
        if before is None:
            return list(claimed)

        by_wallet: defaultdict[str, list[PaymentRow]] = defaultdict(list)
        for payment in claimed:
            if payment.asked_at <= before:
                by_wallet[payment.source].append(payment)
        not_now: set[str] = set()

        async def look(payments: Sequence[PaymentRow]) -> None:
            found = await evidence.made_before(self.histories, self.chain, payments, watch)
            not_now.update(found)
            made: list[tuple[PaymentRow, Landed]] = []
            for payment in payments:
                match found.get(payment.id):
                    case Landed() as landed:
                        _log.warning("payment_found_on_chain", payment=payment.id)
                        made.append((payment, landed))
                    case ChainOutOfReach() as problem:  # it holds up no other
                        await self._give_back([payment], str(problem))
                    case None:
                        pass
            if made:
                await outcome.settle(self.db, self.policies, made)

        await _gather(look, list(by_wallet.values()))
        return [payment for payment in claimed if payment.id not in not_now]

    async def _drop_called_off(self, unpaid: Sequence[PaymentRow]) -> list[PaymentRow]:
        """Nothing was signed for them, neither here nor in what a restore may have forgotten."""
        by_wallet: defaultdict[tuple[str, str], list[PaymentRow]] = defaultdict(list)
        for payment in unpaid:
            if payment.called_off_by is not None:
                by_wallet[payment.agent_id, payment.called_off_by].append(payment)
        for payments in by_wallet.values():
            await outcome.call_off(self.db, payments)
        return [payment for payment in unpaid if payment.called_off_by is None]

    async def watch(self) -> Watch:
        """Notices a failover or restore by the database's timeline (rule 6)."""
        async with self.db.connection() as tx:
            timeline = await watch_store.timeline(tx)
            known = await watch_store.get_watch(tx, self.mode)
        if known is not None and known.timeline == timeline:
            return known
        quiet_until = 0
        if known is not None:
            # Whatever was signed until now has this blockhash or an older one.
            newest = await self.chain.latest_blockhash()
            quiet_until = newest.last_valid_height + SAFETY_BLOCKS
            _log.warning("database_history_changed", mode=self.mode, quiet_until=quiet_until)
        async with self.db.connection() as tx:
            return await watch_store.put_watch(
                tx, self.mode, timeline, quiet_until, careful=known is not None
            )

    async def _is_quiet(self, watch: Watch) -> bool:
        """Rule 6. One node that is ahead of the others does not end it."""
        if watch.quiet_until_height == 0:
            return False
        heights = await self.chain.heights()
        return min(height.height for height in heights) <= watch.quiet_until_height

    async def note_history(self) -> None:
        """Rule 6 for purchases, which are signed elsewhere: notes which history this is and, in
        every life of the server, that nothing outside of the database knows more."""
        watch = await self.watch()
        async with self.db.connection() as tx:
            life = await watch_store.life(tx)
            made = await custody_store.fee_payer_key(tx, self.mode)
        if life == self._life:
            return
        if await self._is_quiet(watch):
            return  # nothing is signed anyway
        fee_payer = present(made, "the fee payer is made when the service starts")
        if await self._is_older(watch, fee_payer.address):
            return
        async with self.db.connection() as tx:
            await watch_store.put_life(tx, watch, life)
        self._life = life

    async def _is_older(self, watch: Watch, fee_payer: str) -> bool:
        """Whether the database is older than its own payments: then it is taken for a restored
        one."""
        if not await self.outside.knows_more(self.db, self.chain, watch, fee_payer):
            return False
        _log.warning("database_older_than_its_payments", mode=self.mode)
        async with self.db.connection() as tx:
            await watch_store.forget_timelines(tx, self.mode)
        return True

    # Following -----------------------------------------------------------------------------------

    async def follow(self) -> int:
        """Rules 2, 3 and 4: look after what is signed until it is settled or provably dead."""
        alive = await self.db.alone(
            lambda tx: submission_store.claim_submissions(tx, self.mode, FOLLOW_AT_ONCE)
        )
        if not alive:
            return 0
        try:
            await apart(self.db, "settle", alive, self._follow)
        except ChainOutOfReach as problem:
            _log.warning("chain_out_of_reach", mode=self.mode, problem=str(problem))
            await self._look_again([Look(s, _RETRY_SECONDS, in_doubt=s.in_doubt) for s in alive])
        except asyncio.CancelledError:
            with suppress(*OUT_OF_REACH):
                await self._look_again([Look(s, 0, in_doubt=s.in_doubt) for s in alive])
            raise
        return len(alive)

    async def _follow(self, alive: Sequence[SubmissionRow]) -> None:
        statuses = await self.chain.statuses([s.signature for s in alive])
        unseen: list[SubmissionRow] = []
        landed: list[SubmissionRow] = []
        waiting: list[SubmissionRow] = []
        for submission in alive:
            status = statuses.found[submission.signature]
            if status is None:
                unseen.append(submission)
            elif status.finalized:
                landed.append(submission)
            else:
                waiting.append(submission)
        await self._look_again([Look(s, _pause(s)) for s in waiting])
        await self._conclude(landed)
        if unseen:
            final = await self.chain.finalized()
            expired = [s for s in unseen if final.height > s.last_valid_height + SAFETY_BLOCKS]
            young = [s for s in unseen if final.height <= s.last_valid_height + SAFETY_BLOCKS]
            await self._resend(young)
            await _gather(self._bury_if_dead, expired)

    async def _conclude(self, landed: Sequence[SubmissionRow]) -> None:
        """Rule 3, on what the transaction itself says."""
        found = await self._shown([s.signature for s in landed])
        paid: list[tuple[PaymentRow, Landed]] = []
        for submission in landed:
            transaction = found[submission.signature]
            if transaction is None:  # the node that answered is behind the one that knew it
                long_since = submission.checks > len(_LOOK_SECONDS)
                await self._look_again([Look(submission, _pause(submission), in_doubt=long_since)])
            elif transaction.error is not None:
                await self._bury_failed(submission, transaction.error)
            elif not evidence.pays(transaction, submission.payment):
                # Never to be seen: our own signature on something we did not sign.
                _log.error("payment_differs_from_chain", payment=submission.payment.id)
                await self._look_again([Look(submission, _DOUBT_SECONDS, in_doubt=True)])
            else:
                paid.append((submission.payment, transaction))
        for start in range(0, len(paid), SETTLE_AT_ONCE):
            await outcome.settle(self.db, self.policies, paid[start : start + SETTLE_AT_ONCE])

    async def _shown(self, signatures: Sequence[str]) -> Mapping[str, Landed | None]:
        return await self.chain.transactions(signatures) if signatures else {}

    async def _resend(self, unseen: Sequence[SubmissionRow]) -> None:
        """Rule 2: the same bytes again."""
        if unseen:
            await self._remember(unseen)  # whoever stored them may have died at once
        results = await _gather(lambda s: self.chain.send(s.raw, everywhere=True), unseen)
        looks: list[Look] = []
        for submission, result in zip(unseen, results, strict=True):
            refusal = submission.refusal
            match result:
                case Sent():
                    refusal = None  # what a node once had against it has passed
                case Refused(kind, reason):
                    Metrics.refused(self.mode, kind.name.lower())
                    if kind is RefusalKind.PAYMENT:
                        refusal = reason
                    elif kind is RefusalKind.BUG:
                        # Nothing of it can land, so nothing is lost; it is for a person to read.
                        _log.error(
                            "payment_unreadable", payment=submission.payment.id, problem=reason
                        )
                case Unknown():
                    pass
            looks.append(Look(submission, _pause(submission), refusal=refusal))
        await self._look_again(looks)

    async def _send(self, submissions: Sequence[NewSubmission]) -> None:
        """The first time. Whatever comes back, the status tells the truth."""
        if not submissions:
            return
        await self._remember(submissions)
        raws: Sequence[bytes] = [s.raw for s in submissions]
        await _gather(self.chain.send, await self.chain.send_many(raws) if len(raws) > 1 else raws)
        async with self.db.connection() as tx:
            await submission_store.look_now(tx, [s.payment.id for s in submissions])

    async def _remember(self, stored: Sequence[NewSubmission | SubmissionRow]) -> None:
        """Rule 6: nothing is sent that is known inside the database alone. The newest will do: a
        database that knows it knows those before."""
        newest = max(stored, key=lambda s: s.last_valid_height)
        await self.outside.remember(newest.last_valid_height, newest.signature)

    async def _bury_failed(self, submission: SubmissionRow, error: str) -> None:
        """Rule 3: it is final with an error. Every node must show it so."""
        fee: int | None = None
        try:
            for witness in self.chain.witnesses():
                landed = await witness.transaction(submission.signature)
                if landed is None or landed.error is None:
                    raise ChainOutOfReach(f"{witness.name} does not show that it failed")
                fee = landed.fee_lamports
        except ChainOutOfReach as problem:
            await self._doubt(submission, problem)
            return
        final = kind_of_text(error) is RefusalKind.PAYMENT
        await outcome.bury(self.db, submission, error, fee, final=final)

    async def _bury_if_dead(self, submission: SubmissionRow) -> None:
        """Rule 4. Every node must say so; one that cannot be asked leaves the attempt in doubt."""
        payment = submission.payment
        try:
            for witness in self.chain.witnesses():
                seen_until = await evidence.never_saw(witness, submission)
                if seen_until is None:
                    await self._look_again([Look(submission, _pause(submission), in_doubt=True)])
                    return
                found = await evidence.find_by_memo(
                    self.histories, witness, [payment], submission.signed_slot, seen_until.slot
                )
                landed = found.get(payment.id)
                if isinstance(landed, ChainOutOfReach):
                    raise landed
                if landed is not None:
                    # By bytes that this database forgot, or the node denied a status it has.
                    _log.warning("payment_found_on_chain", payment=payment.id)
                    await outcome.settle(self.db, self.policies, [(payment, landed)])
                    return
        except ChainOutOfReach as problem:
            await self._doubt(submission, problem)
            return
        refusal = submission.refusal
        await outcome.bury(
            self.db, submission, refusal or "expired", None, final=refusal is not None
        )

    async def _doubt(self, submission: SubmissionRow, problem: ChainOutOfReach) -> None:
        _log.warning("payment_in_doubt", payment=submission.payment.id, problem=str(problem))
        await self._look_again([Look(submission, _DOUBT_SECONDS, in_doubt=True)])

    async def _look_again(self, looks: Sequence[Look]) -> None:
        if looks:
            async with self.db.connection() as tx:
                await submission_store.look_again(tx, looks)

    async def _give_back(
        self, claimed: Sequence[PaymentRow], why: str | None, after_seconds: int = _RETRY_SECONDS
    ) -> None:
        async with self.db.connection() as tx:
            await payment_store.release_payments(tx, [p.id for p in claimed], after_seconds, why)

    async def report(self) -> int:
        """Backlog, age of the oldest and doubts, as metrics."""
        async with self.db.connection() as tx:
            row = await payment_store.backlog(tx, self.mode)
        Metrics.backlog(self.mode, row["waiting"], row["live"], row["in_doubt"], row["oldest"])
        return 0


def _pause(submission: SubmissionRow) -> float:
    return _LOOK_SECONDS[min(submission.checks - 1, len(_LOOK_SECONDS) - 1)]


async def _gather(call: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """As `asyncio.gather`, with a bound on how many run at once; when one raises, the others end
    before it is told."""
    turns = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(item: T) -> R:
        async with turns:
            return await call(item)

    ended = await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
    for problem in ended:
        if isinstance(problem, BaseException):
            raise problem
    return cast("list[R]", ended)
