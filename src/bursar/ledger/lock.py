"""What is locked, in which order, by whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bursar.db import Row, Tx
from bursar.ledger.model import LockedWallet
from bursar.policy.model import AgentStatus, PolicyKey
from bursar.sql import Query, made

_LOCK = Query("SELECT * FROM lock_agents(:agent_ids, :realm_ids, 'commit')")
_READ = Query("SELECT * FROM lock_agents(:agent_ids, :realm_ids, 'none')")


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
    rows = await _LOCK.rows(tx, agent_ids=agent_ids, realm_ids=realm_ids)
    # One moment for all, and one object: what is computed of it is remembered (`midnight_after`).
    now: datetime | None = rows[0]["now"] if rows else None
    return {row["agent_id"]: _locked(row, now or row["now"]) for row in rows}


async def wait_for_locks(tx: Tx, millis: int) -> None:
    """How long the rest of this transaction waits for a lock that others hold."""
    await tx.execute(f"SET LOCAL lock_timeout = {int(millis)}")


async def read_agent(tx: Tx, agent_id: str, realm_id: int) -> LockedAgent | None:
    """The same without any lock, for callers that only look."""
    row = await _READ.row(tx, agent_ids=[agent_id], realm_ids=[realm_id])
    return None if row is None else _locked(row, row["now"])


def _locked(row: Row, now: datetime) -> LockedAgent:
    wallet = made(LockedWallet, row, status=row["wallet_status"], now=now, moves=[])
    return made(LockedAgent, row, wallet=wallet)
