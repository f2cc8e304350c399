"""What is locked, in which order, by whom; and why a change holds once it was answered.

**A wallet's row is its agent's lock.** Every transaction that decides about an agent's money or
policy takes it first: spends in their batches, approvals, expiry, settlement, deposits,
withdrawals, policy changes, termination. It is held until the commit. No other lock is needed,
because

- `lock_agents` reads in a statement that begins after the lock is held: what a decision rests on
  is never older than the lock, and nobody changes it before the decision is committed;
- every decision and its money are one commit, and the next one begins with the counters it left.

**In which order.** Each kind of row in the order of its ids, and the kinds in this one:

1. an idempotency key (`access/store.py`), by its hash. A spend does not lock its key: two spends
   with one key have the same agent, so the wallet's lock makes them take turns
2. realm: changes of the directory and new webhooks take turns on it (`recipient/`, `webhook/`);
   spends read its epoch and do not lock it
3. wallet: here, and `wallet/store.py`
4. api_key, spend, withdrawal, deposit, policy, usage, totals: rows of the locked wallet's agent.
   The account-wide totals are many agents', and sorted
5. payment, then submission (`settlement/`): claims skip what others hold
6. payee_account, then network_cost (`cost/store.py`): the last that a transaction does

Some rows are locked only by transactions that take none of these: deliveries and webhooks
(`webhook/store.py`), keys when their use is noted (`access/store.py`), sealed keys and secrets when
they are sealed again (`custody/store.py`). Advisory locks have their list in `advisory.py`. A
deadlock would be a bug that only costs time: PostgreSQL ends one of the transactions, and
`Database.transact` runs it again.

**Why a change is in force for what is requested after its answer.** A change (of a policy, of
the directory, of a key, a termination) is committed before it is answered. A spend that is
requested afterwards is read by the server afterwards, so its transaction's statements begin
after that commit, and under READ COMMITTED each statement sees what was committed before it
began. `lock_agents` reads the agent's status, the policy's version and the directory's epoch in
such a statement; what a process remembers is named by that version or epoch, and by the history
of the database, so nothing older can be taken for it. A spend that overlaps the change may fall
on either side of it: its caller cannot tell which was first. Nothing is held beyond the commit,
so a pooler between Bursar and PostgreSQL changes nothing here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bursar.db import Row, Tx
from bursar.ledger.model import LockedWallet
from bursar.policy.model import AgentStatus, PolicyKey
from bursar.sql import Query, made

_LOCK = Query("SELECT * FROM read_agents(:agent_ids, :realm_ids, lock => true)")
_READ = Query("SELECT * FROM read_agents(:agent_ids, :realm_ids, lock => false)")


@dataclass(frozen=True, slots=True)
class LockedAgent:
    """All that a decision about an agent rests on: current while `lock_agents` holds the lock; from
    `read_agent`, which locks nothing, only as it was when it was read."""

    wallet: LockedWallet
    agent_status: AgentStatus
    policy_version: int
    spent_today_micros: int
    network_today_lamports: int
    pending_count: int
    # Opaque: names the state of the directory and the history of the database it was read in.
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
