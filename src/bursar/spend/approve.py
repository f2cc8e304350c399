"""Pending spends: a person approves or denies them, whoever asked cancels them, or they expire."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bursar.budget import store as budget_store
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.errors import ApiError, ErrorCode, check, not_found, present
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ids import is_id
from bursar.ledger import lock
from bursar.ledger.lock import LockedAgent
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import RejectCode, Terms, Used, judge, terms_of
from bursar.policy.limits import BudgetTerms, without
from bursar.policy.model import Bounds
from bursar.recipient import store as directory_store
from bursar.recipient.resolve import Directory
from bursar.spend import store
from bursar.spend.close import reject_spends
from bursar.spend.model import SpendRow
from bursar.spend.store import Expired
from bursar.spend.view import show_spend
from bursar.trail.trail import leave_trail
from bursar.wallet.quarantine import apart

# Spends that one round of the expiry looks at; the next round takes the rest.
_EXPIRE_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Approver:
    """The key that decides, for the spend and the audit log."""

    realm_id: int
    mode: Mode
    key_id: str
    request_id: str
    # Whether the key may approve spends that it requested itself.
    approves_own: bool


async def approve_spend(
    tx: Tx,
    policies: PolicyCache,
    directory: Directory,
    bounds: Bounds,
    approver: Approver,
    spend_id: str,
    reason: str | None,
) -> SpendRow:
    """pending -> approved, if everything but the threshold still holds under today's policy."""
    spend, locked = await _lock(tx, approver, spend_id)
    if spend.created_by == approver.key_id and not approver.approves_own:
        raise ApiError(
            ErrorCode.FORBIDDEN,
            "The key that asked for a spend may not approve it. Use another key of scope admin or"
            " approver.",
        )
    if locked.stopped:
        raise _invalid(
            f"{RejectCode.ACCOUNT_STOPPED.value}: every agent of the account is stopped. This spend"
            " stays pending; approve it once an admin has resumed the account, or deny it."
        )
    wallet = locked.wallet
    expires_at = present(spend.expires_at, "a pending spend has an end")
    if wallet.now >= expires_at:
        raise _invalid(f"This spend expired at {expires_at:%Y-%m-%d %H:%M:%S} UTC.")
    pay_to = await _pay_to(tx, directory, approver, locked, spend)
    if pay_to != spend.pay_to:
        is_plain = spend.purchase_id is None
        code = RejectCode.RECIPIENT_UNRESOLVED if is_plain else RejectCode.PAYEE_MISMATCH
        raise _invalid(
            f"{code.value}: the directory now names another address for"
            f" {spend.recipient}. Deny this spend; the agent may ask again."
        )
    policy = (await policies.get(tx, [locked.policy_key]))[locked.policy_key]
    blocked = await directory.paid_to_blocked(
        tx,
        approver.mode,
        approver.realm_id,
        locked.directory_epoch,
        (locked.policy_key, policy.blocks),
        [] if pay_to is None else [pay_to],
    )
    terms = terms_of(
        policy,
        bounds,
        stopped=locked.stopped,
        agent_status=locked.agent_status,
        wallet_address=wallet.address,
        recipient=spend.recipient,
        pay_to=pay_to,
        pays_blocked_host=pay_to in blocked,
        # Those that it counts in, even if its agent is under others by now.
        budgets=await _budgets(tx, spend),
    )
    # What was used on the day it was requested on, without what is reserved for this spend itself.
    micros, lamports = await store.used_in_day(tx, spend.agent_id, spend.created_at)
    used = Used(
        spent_today_micros=micros - spend.amount_micros,
        available_micros=wallet.available_micros + spend.amount_micros,
        network_today_lamports=lamports - spend.network_lamports,
        network_cost_lamports=spend.network_lamports,
        # An approved spend is not pending, so the bound on pending ones does not apply.
        pending_count=0,
        transfers=wallet.transfers,
        meters=await _meters(tx, locked, spend, terms) if terms.is_metered else (),
    )
    code = judge(terms, used, spend.amount_micros)
    if code is not None:
        raise _invalid(
            f"{code.value}: the policy as it is now does not allow this spend. It"
            " stays pending: change the policy, or deny it."
        )
    moved = await store.move_spends(
        tx,
        [spend.id],
        expected="pending",
        status="approved",
        reject_code=None,
        decided_by=approver.key_id,
        decision_reason=reason,
        at=wallet.now,
    )
    check(len(moved) == 1, "under the wallet's lock the spend stays pending")
    await store.pay(tx, [spend.id], wallet.now)
    await emit(
        tx,
        [
            NewEvent(
                spend.realm_id,
                EventType.TRANSACTION_APPROVED,
                spend.agent_id,
                show_spend(moved[0]),
                wallet.now,
            )
        ],
    )
    await _trail(tx, approver, "transaction.approved", spend, moved[0])
    return moved[0]


async def _budgets(tx: Tx, spend: SpendRow) -> tuple[BudgetTerms, ...]:
    if spend.budget_id is None:
        return ()
    chains = await budget_store.chains(tx, [spend.budget_id])
    return chains[spend.budget_id].budgets


async def _meters(tx: Tx, locked: LockedAgent, spend: SpendRow, terms: Terms) -> tuple[int, ...]:
    """What was used in the windows it was requested in, without the spend itself. What a budget
    counted in windows that are over is not kept, and stands in nobody's way."""
    closed = await store.closed_windows(tx, spend.agent_id, spend.created_at)
    own = without(locked.numbers, locked.windows_at, spend.created_at, spend.amount_micros, closed)
    found = await budget_store.meters(tx, terms.meter_ids)
    counted = set(spend.terms.meter_ids)
    others = (
        without(
            found[meter_id].numbers,
            found[meter_id].windows_at,
            spend.created_at,
            # A limit that was set later has not counted it.
            spend.amount_micros if meter_id in counted else 0,
            {},
        )
        for meter_id in terms.meter_ids
    )
    return (*own, *(number for numbers in others for number in numbers))


async def _pay_to(
    tx: Tx, directory: Directory, approver: Approver, locked: LockedAgent, spend: SpendRow
) -> str | None:
    """Where its recipient is paid now. A purchase has the payee that its seller named, unless the
    directory says otherwise."""
    if spend.purchase_id is not None:
        listed = await directory_store.addresses_of(tx, approver.realm_id, [spend.recipient])
        return listed.get(spend.recipient, spend.pay_to)
    resolved = await directory.resolve(
        tx, approver.mode, approver.realm_id, locked.directory_epoch, [spend.recipient]
    )
    return resolved[spend.recipient]


async def deny_spend(tx: Tx, approver: Approver, spend_id: str, reason: str | None) -> SpendRow:
    """pending -> rejected; the funds are available again, and the day's cap too."""
    spend, locked = await _lock(tx, approver, spend_id)
    return await _reject(
        tx, approver, spend, locked, RejectCode.APPROVAL_DENIED, "transaction.denied", reason
    )


async def cancel_spend(
    tx: Tx, asker: Approver, agent_id: str | None, spend_id: str, reason: str | None
) -> SpendRow:
    """The same by whoever asked for it, or by an admin. `agent_id` is the agent that the key is
    bound to, None for an admin's."""
    spend, locked = await _lock(tx, asker, spend_id, agent_id)
    if agent_id is not None and spend.created_by != asker.key_id:
        raise ApiError(
            ErrorCode.FORBIDDEN,
            "A spend is cancelled by the key that asked for it, or by one of scope admin.",
        )
    return await _reject(
        tx, asker, spend, locked, RejectCode.CANCELLED, "transaction.cancelled", reason
    )


async def _reject(
    tx: Tx,
    by: Approver,
    spend: SpendRow,
    locked: LockedAgent,
    code: RejectCode,
    action: str,
    reason: str | None,
) -> SpendRow:
    (rejected,) = await reject_spends(
        tx,
        locked.wallet,
        [spend.id],
        expected="pending",
        code=code,
        decided_by=by.key_id,
        reason=reason,
    )
    await _trail(tx, by, action, spend, rejected)
    return rejected


async def expire_spends(db: Database) -> int:
    """Rejects pending spends whose time is over, in one transaction per agent; returns how many."""
    async with db.connection() as tx:
        due = await store.expired(tx, _EXPIRE_AT_ONCE)
    count = 0

    async def reject(some: Sequence[Expired]) -> None:
        nonlocal count
        for wallet in some:
            count += await db.transact(partial(_expire, due=wallet))

    await apart(db, "expire", due, reject)
    return count


async def _expire(tx: Tx, due: Expired) -> int:
    locked = await lock.lock_agents(tx, [due.agent_id], [due.realm_id])
    # A spend that was decided while this waited for the lock is no longer pending.
    rejected = await reject_spends(
        tx,
        locked[due.agent_id].wallet,
        due.spend_ids,
        expected="pending",
        code=RejectCode.APPROVAL_EXPIRED,
        decided_by="system",
        reason=None,
    )
    return len(rejected)


async def _lock(
    tx: Tx, approver: Approver, spend_id: str, agent_id: str | None = None
) -> tuple[SpendRow, LockedAgent]:
    """The pending spend as it is under its wallet's lock; with `agent_id` only if it is that
    agent's."""
    spend = (
        await store.get_spend(tx, approver.realm_id, spend_id) if is_id("txn", spend_id) else None
    )
    if spend is None or agent_id not in (None, spend.agent_id):
        raise not_found("transaction")
    locked = await lock.lock_agents(tx, [spend.agent_id], [approver.realm_id])
    spend = present(
        await store.get_spend(tx, approver.realm_id, spend_id), "spends are never deleted"
    )
    if spend.status != "pending":
        raise _invalid(f"This spend is {spend.status}; only a pending one can be decided.")
    return spend, locked[spend.agent_id]


async def _trail(
    tx: Tx, approver: Approver, action: str, before: SpendRow, after: SpendRow
) -> None:
    await leave_trail(
        tx,
        realm_id=approver.realm_id,
        actor=approver.key_id,
        request_id=approver.request_id,
        action=action,
        subject=after.id,
        before=show_spend(before),
        after=show_spend(after),
    )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_STATE, message)
