"""Before a payment is signed: what it costs is reserved, by its agent's budget and for its day.

The payee's token account is opened only where the chain says that it is missing, for one payment at
a time, and not without end: a payee that closes it keeps the rent each time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS, fee_lamports, token_account
from bursar.chain.port import Account
from bursar.cost import store as cost_store
from bursar.cost.model import MOST_OPENINGS
from bursar.db import Database, Tx
from bursar.ledger import lock
from bursar.policy.cache import PolicyCache
from bursar.policy.model import Bounds
from bursar.settlement.model import PaymentRow


class Costed(NamedTuple):
    """A payment that may be signed, and what this attempt costs at most."""

    payment: PaymentRow
    opens_account: bool
    lamports: int


class Verdicts(NamedTuple):
    """`waiting` is for another payment to open the same account; `refused` says why."""

    affordable: list[Costed]
    waiting: list[PaymentRow]
    refused: list[tuple[PaymentRow, str]]


async def afford(
    db: Database,
    policies: PolicyCache,
    bounds: Bounds,
    payments: Sequence[PaymentRow],
    accounts: Mapping[str, Account | None],
    priority_fee: int,
) -> Verdicts:
    """`accounts` as the chain has them now, the payees' token accounts among them."""
    verdicts = Verdicts([], [], [])
    missing = {(p.realm_id, p.destination) for p in payments if not _is_open(p, accounts)}
    known: dict[tuple[int, str], cost_store.PayeeAccount] = {}
    if missing:
        async with db.connection() as tx:
            known = await cost_store.closed_payees(tx, list(missing))
    opening: set[tuple[int, str]] = set()
    for payment in payments:
        payee = payment.realm_id, payment.destination
        opens = payee in missing
        lamports = fee_lamports(priority_fee, payment.attempts + 1)
        if opens:
            lamports += TOKEN_ACCOUNT_LAMPORTS
            if known[payee].opened >= MOST_OPENINGS:
                why = f"the payee closed its token account {MOST_OPENINGS} times: it has to open it"
                verdicts.refused.append((payment, why))
                continue
            if payee in opening or known[payee].opener not in (None, payment.id):
                verdicts.waiting.append(payment)
                continue
        if not await _reserved(db, policies, bounds, payment, lamports):
            verdicts.refused.append((payment, "the agent's network budget of the day is used up"))
            continue
        if opens:
            opening.add(payee)
        verdicts.affordable.append(Costed(payment, opens, lamports))
    return verdicts


def _is_open(payment: PaymentRow, accounts: Mapping[str, Account | None]) -> bool:
    account = accounts[token_account(payment.destination, payment.mint)]
    return account is not None and account.token is not None


async def _reserved(
    db: Database, policies: PolicyCache, bounds: Bounds, payment: PaymentRow, lamports: int
) -> bool:
    """Whether all that the spend has cost and will cost with this attempt is reserved; reserves
    more if the budget of its day has it. Withdrawals are an admin's: no agent's budget stops them.
    """
    needed = payment.cost_lamports + lamports
    if payment.is_withdrawal or needed <= payment.reserved_lamports:
        return True

    async def work(tx: Tx) -> bool:
        locked = await lock.lock_agents(tx, [payment.agent_id], [payment.realm_id])
        policy_key = locked[payment.agent_id].policy_key
        policy = (await policies.get(tx, [policy_key]))[policy_key]
        budget = policy.network_budget(bounds)
        # As it is under the lock: another worker may have been here.
        reserved, used = await cost_store.reserved_by(tx, payment.id)
        more = needed - reserved
        if more > 0 and used + more > budget:
            return False
        if more > 0:
            await cost_store.reserve_more(tx, payment.id, more)
        return True

    return await db.transact(work)
