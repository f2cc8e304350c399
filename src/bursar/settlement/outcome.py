"""How a payment ends, in one commit each: settled, failed, or tried again after a dead attempt."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import structlog

from bursar.chain.port import Landed, Paid
from bursar.cost import store as cost_store
from bursar.cost.model import Charge
from bursar.db import Database, Tx
from bursar.errors import check
from bursar.ledger import book, lock
from bursar.ledger.model import LockedWallet
from bursar.metrics import Settlement as Metrics
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import RejectCode
from bursar.settlement import payment_store, submission_store
from bursar.settlement.model import MOST_ATTEMPTS, Ended, PaymentRow, SubmissionRow
from bursar.spend.close import reject_spends
from bursar.spend.settle import settle_spends
from bursar.withdrawal.model import FailureCode
from bursar.withdrawal.withdraw import fail_withdrawal, settle_withdrawals

# What a spend says that was approved and is not paid after all.
_REJECT_CODES: Final[dict[FailureCode, RejectCode]] = {
    "destination_invalid": RejectCode.SETTLEMENT_FAILED,
    "settlement_failed": RejectCode.SETTLEMENT_FAILED,
    "network_cost_exceeded": RejectCode.NETWORK_COST_EXCEEDED,
}
_log = structlog.get_logger()


async def settle(
    db: Database, policies: PolicyCache, made: Sequence[tuple[PaymentRow, Landed]]
) -> None:
    """One commit for the payments of a mode, their spends and withdrawals, the ledger, totals and
    events."""
    payments = [payment for payment, _ in made]
    paid = {
        payment.id: Paid(
            payment.id,
            landed.signature,
            landed.block_time,
            landed.fee_lamports,
            landed.rent_lamports,
        )
        for payment, landed in made
    }

    async def work(tx: Tx) -> int:
        locked = await lock.lock_agents(
            tx,
            sorted({payment.agent_id for payment in payments}),
            sorted({payment.realm_id for payment in payments}),
        )
        settled = await payment_store.settle_payments(tx, list(paid.values()))
        ended = await submission_store.settle_submissions(tx, list(paid.values()), settled)
        wallets = {agent_id: found.wallet for agent_id, found in locked.items()}
        open_ones = [payment for payment in payments if payment.id in settled]
        spends = [paid[payment.id] for payment in open_ones if not payment.is_withdrawal]
        await settle_spends(tx, wallets, spends)
        withdrawals = [paid[payment.id] for payment in open_ones if payment.is_withdrawal]
        await settle_withdrawals(tx, wallets, withdrawals)
        await book.save_balances(tx, policies, list(locked.values()))
        if open_ones:
            opened: defaultdict[tuple[int, str], int] = defaultdict(int)
            for payment in open_ones:
                rent = paid[payment.id].rent_lamports
                opened[payment.realm_id, payment.destination] += rent > 0
            await cost_store.note_open(tx, opened)
            await cost_store.charge_accounts(tx, _charges(open_ones, paid, ended, wallets))
        return len(settled)

    Metrics.settled(payments[0].mode, await db.transact(work))


def _charges(
    payments: Sequence[PaymentRow],
    paid: Mapping[str, Paid],
    ended: Sequence[Ended],
    wallets: Mapping[str, LockedWallet],
) -> Iterable[Charge]:
    """What the payments cost, in place of what was charged for their attempts."""
    days = {attempt.payment_id: attempt.day for attempt in ended}
    realms = {payment.id: payment.realm_id for payment in payments}
    for payment in payments:
        cost = paid[payment.id].fee_lamports + paid[payment.id].rent_lamports
        # One that was found on the chain had no attempt here.
        day = days.get(payment.id, wallets[payment.agent_id].now.date())
        yield Charge(payment.realm_id, day, cost)
    for attempt in ended:
        yield Charge(realms[attempt.payment_id], attempt.day, -attempt.charged_lamports)


async def bury(
    db: Database, submission: SubmissionRow, why: str, fee_lamports: int | None, final: bool
) -> None:
    """The attempt is dead. The payment is tried again, or fails if that can never help."""
    payment = submission.payment
    give_up = final or submission.attempt >= MOST_ATTEMPTS

    async def work(tx: Tx) -> tuple[bool, bool]:
        failed = False
        # The wallet's lock first, as everywhere.
        locked = await lock.lock_agents(tx, [payment.agent_id], [payment.realm_id])
        ended = await submission_store.bury_submission(
            tx, payment.id, submission.attempt, why, fee_lamports
        )
        if ended is None:
            return False, False
        fee = fee_lamports or 0
        if give_up:
            cost = payment.cost_lamports + fee
            failed = await _close(tx, payment, locked, "settlement_failed", why, "live", cost)
        else:
            await payment_store.let_payment_wait(tx, payment.id, why)
        change = fee - ended.charged_lamports
        await cost_store.charge_accounts(tx, [Charge(payment.realm_id, ended.day, change)])
        return True, failed

    buried, failed = await db.transact(work)
    if not buried:
        return  # somebody else ended it
    Metrics.dead(payment.mode)
    if failed:
        Metrics.failed(payment.mode)
    _log.warning("attempt_dead", payment=payment.id, attempt=submission.attempt, why=why)


async def fail(db: Database, payment: PaymentRow, code: FailureCode, why: str) -> None:
    """Before anything was signed, or with every attempt dead."""

    async def work(tx: Tx) -> bool:
        locked = await lock.lock_agents(tx, [payment.agent_id], [payment.realm_id])
        return await _close(tx, payment, locked, code, why, "waiting", payment.cost_lamports)

    if not await db.transact(work):
        return  # somebody else ended it, or an attempt lives
    Metrics.failed(payment.mode)
    _log.warning("payment_failed", payment=payment.id, why=why)


async def call_off(db: Database, payments: Sequence[PaymentRow]) -> None:
    """Payments of one wallet that a person called off before anything was signed."""
    agent_id, realm_id = payments[0].agent_id, payments[0].realm_id

    async def work(tx: Tx) -> int:
        locked = await lock.lock_agents(tx, [agent_id], [realm_id])
        failed = await payment_store.fail_called_off(tx, [payment.id for payment in payments])
        rejected = await reject_spends(
            tx,
            locked[agent_id].wallet,
            failed,
            expected="approved",
            code=RejectCode.CANCELLED,
            decided_by=payments[0].called_off_by,
            reason=None,
        )
        check(len(rejected) == len(failed), "a payment and its spend end together")
        return len(failed)

    _log.info("payments_called_off", agent=agent_id, count=await db.transact(work))


async def _close(
    tx: Tx,
    payment: PaymentRow,
    locked: Mapping[str, lock.LockedAgent],
    code: FailureCode,
    why: str,
    was: Literal["waiting", "live"],
    cost_lamports: int,
) -> bool:
    """False when there was nothing left to fail. `cost_lamports`: what its attempts have cost."""
    if not await payment_store.fail_payment(tx, payment.id, why, was):
        return False
    wallet = locked[payment.agent_id].wallet
    if payment.is_withdrawal:
        await fail_withdrawal(tx, wallet, payment.id, code)
    else:
        await reject_spends(
            tx,
            wallet,
            [payment.id],
            expected="approved",
            code=_REJECT_CODES[code],
            # Whoever approved it did; why it was not paid is with the payment.
            decided_by=None,
            reason=None,
            cost_lamports=cost_lamports,
        )
    return True
