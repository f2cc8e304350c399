"""Queries on wallets' ledger accounts and the journal."""

from collections.abc import Sequence
from dataclasses import dataclass

from bursar.agent.model import AgentStatus
from bursar.db import Row, Tx
from bursar.ledger.model import Account, Transfer


@dataclass(frozen=True, slots=True)
class LockedAgent:
    """All that a decision about an agent rests on, as fresh as the lock."""

    account: Account
    agent_status: AgentStatus
    policy_version: int
    spent_today_micros: int
    directory_epoch: int
    has_webhooks: bool


async def lock_agents(
    tx: Tx, agent_ids: Sequence[str], realm_ids: Sequence[int]
) -> dict[str, LockedAgent]:
    """Locks these agents' wallets (and their realms' directories, shared), then reads.

    The function behind it reads in a statement of its own, after the locks are held. Agents that
    do not exist in these realms are missing from the answer.
    """
    rows = await tx.fetch("SELECT * FROM lock_agents($1, $2, true)", agent_ids, realm_ids)
    return {row["agent_id"]: _locked(row) for row in rows}


async def read_agent(tx: Tx, agent_id: str, realm_id: int) -> LockedAgent | None:
    """The same without any lock, for those who only look."""
    row = await tx.fetchrow("SELECT * FROM lock_agents($1, $2, false)", [agent_id], [realm_id])
    return None if row is None else _locked(row)


async def insert_transfers(tx: Tx, transfers: Sequence[Transfer]) -> None:
    await tx.execute(
        "INSERT INTO transfer (agent_id, number, kind, payment_id, amount_micros,"
        " credits_posted_after, debits_posted_after, debits_pending_after, created_at)"
        " SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[],"
        " $6::bigint[], $7::bigint[], $8::bigint[], $9::timestamptz[])",
        [t.agent_id for t in transfers],
        [t.number for t in transfers],
        [t.kind for t in transfers],
        [t.payment_id for t in transfers],
        [t.amount_micros for t in transfers],
        [t.credits_posted_after for t in transfers],
        [t.debits_posted_after for t in transfers],
        [t.debits_pending_after for t in transfers],
        [t.created_at for t in transfers],
    )


async def update_wallets(tx: Tx, accounts: Sequence[Account]) -> None:
    await tx.execute(
        "UPDATE wallet w SET status = a.status, credits_posted = a.credits_posted,"
        " debits_posted = a.debits_posted, debits_pending = a.debits_pending,"
        " transfers = a.transfers, decisions = a.decisions, is_low = a.is_low,"
        " last_funded_at = a.last_funded_at"
        " FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],"
        " $6::bigint[], $7::bigint[], $8::boolean[], $9::timestamptz[])"
        " AS a (agent_id, status, credits_posted, debits_posted, debits_pending, transfers,"
        " decisions, is_low, last_funded_at) WHERE w.agent_id = a.agent_id",
        [a.agent_id for a in accounts],
        [a.status for a in accounts],
        [a.credits_posted for a in accounts],
        [a.debits_posted for a in accounts],
        [a.debits_pending for a in accounts],
        [a.transfers for a in accounts],
        [a.decisions for a in accounts],
        [a.is_low for a in accounts],
        [a.last_funded_at for a in accounts],
    )


def _locked(row: Row) -> LockedAgent:
    return LockedAgent(
        account=Account(
            agent_id=row["agent_id"],
            realm_id=row["realm_id"],
            address=row["address"],
            mint=row["mint"],
            status=row["wallet_status"],
            credits_posted=row["credits_posted"],
            debits_posted=row["debits_posted"],
            debits_pending=row["debits_pending"],
            transfers=row["transfers"],
            decisions=row["decisions"],
            is_low=row["is_low"],
            last_funded_at=row["last_funded_at"],
            now=row["now"],
        ),
        agent_status=row["agent_status"],
        policy_version=row["policy_version"],
        spent_today_micros=row["spent_today_micros"],
        directory_epoch=row["directory_epoch"],
        has_webhooks=row["has_webhooks"],
    )
