"""What is locked, in which order, by whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bursar.db import Row, Tx
from bursar.ledger.model import LockedWallet
from bursar.policy.model import AgentStatus, PolicyKey


@dataclass(frozen=True, slots=True)
class LockedAgent:
    """All that a decision about an agent rests on, as fresh as the lock."""

    wallet: LockedWallet
    agent_status: AgentStatus
    policy_version: int
    spent_today_micros: int
    network_today_lamports: int
    pending_count: int
    # Opaque: which state of the directory, of which history of the database.
    directory_epoch: str
    has_webhooks: bool
    history: str

    @property
    def policy_key(self) -> PolicyKey:
        return self.wallet.agent_id, self.policy_version, self.history


async def lock_agents(
    tx: Tx,
    agent_ids: Sequence[str],
    realm_ids: Sequence[int],
) -> dict[str, LockedAgent]:
    """Locks these agents' wallets, then reads, in a statement of its own after the locks are held.

    Agents that do not exist in these realms are not locked, and missing from the answer.
    """
    rows = await tx.fetch("SELECT * FROM lock_agents($1, $2, 'commit')", agent_ids, realm_ids)
    # One moment for all, and the same object: what is made of it is made once.
    now: datetime | None = rows[0]["now"] if rows else None
    return {row["agent_id"]: _locked(row, now or row["now"]) for row in rows}


async def wait_for_locks(tx: Tx, millis: int) -> None:
    """How long the rest of this transaction waits for a lock that others hold."""
    await tx.execute(f"SET LOCAL lock_timeout = {int(millis)}")


async def read_agent(tx: Tx, agent_id: str, realm_id: int) -> LockedAgent | None:
    """The same without any lock, for those who only look."""
    row = await tx.fetchrow("SELECT * FROM lock_agents($1, $2, 'none')", [agent_id], [realm_id])
    return None if row is None else _locked(row, row["now"])


def _locked(row: Row, now: datetime) -> LockedAgent:
    return LockedAgent(
        wallet=LockedWallet(
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
            now=now,
        ),
        agent_status=row["agent_status"],
        policy_version=row["policy_version"],
        spent_today_micros=row["spent_today_micros"],
        network_today_lamports=row["network_today_lamports"],
        pending_count=row["pending_count"],
        directory_epoch=row["directory_epoch"],
        has_webhooks=row["has_webhooks"],
        history=row["history"],
    )
