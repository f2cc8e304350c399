"""What is locked, in which order, by whom; and why a change holds once it was answered.

**A wallet's row is its agent's lock.** Whatever decides about an agent's money or policy takes
it: approvals, expiry, settlement, deposits, withdrawals, policy changes, termination, and spends,
whose write takes it (`write_spends` in the schema). It is held until the commit, and nothing else
has to be, because

- `lock_agents` reads in a statement that begins after the lock is held: what a decision rests on
  is never older than the lock, and nobody changes it before the decision is committed;
- spends are decided before they take the lock, on what a process remembers. Under the lock
  `write_spends` compares what they rest on with what is there, and writes only what still stands;
- every decision and its money are one commit, and the next one begins with the counters it left.

**In which order.** Each kind of row in the order of its ids, and the kinds in this one:

1. an idempotency key (`access/store.py`), by its hash. A spend does not lock its key: two spends
   with one key have the same agent, so the wallet's lock makes them take turns
2. realm: changes of the directory, new webhooks and the stop take turns on it (`recipient/`,
   `webhook/`, `stop/`); what stores a signed payment takes it FOR SHARE (`stop/store.py`,
   `standing_to_sign`, and in `spend/store.py` what is presented with its spend); other spends
   compare its `rules` and do not lock it
3. wallet: here, in `wallet/store.py`, in `spend/refusal_store.py`, in `write_spends` and in
   `standing_to_sign`
   then meter, of budgets and of limits with a recipient: `close_meters`, `release_meters`,
   `write_spends`, and `budget/store.py`, which changes budgets; then budget, by whoever puts
   something under it (FOR KEY SHARE) or deletes it
4. api_key, spend, withdrawal, deposit, purchase, policy, usage: rows of the locked wallet's agent
5. payment, then submission (`settlement/`): claims skip what others hold
6. payee_account, then network_cost (`cost/store.py`): the last that a transaction does

Some rows are locked only by transactions that take none of these: totals (`spend/totals.py`),
deliveries and webhooks (`webhook/store.py`), keys when their use is noted (`access/store.py`),
sealed keys and secrets when they are sealed again (`custody/store.py`). Advisory locks have their
list in `advisory.py`. A deadlock would be a bug that only costs time: PostgreSQL ends one of the
transactions, and `Database.transact` runs it again.

**Why a change is in force for what is requested after its answer.** A change (of a policy, of
the directory, of a key, a termination, a stop) is committed before it is answered, and raises
`rules` of the wallet or of the realm in that commit. A spend that is requested afterwards is
written by a statement that begins afterwards, and under READ COMMITTED a statement sees what was
committed before it began: the rules that it was decided by are not those that it finds, so nothing
is written and it is decided again. What a process remembers is named by these numbers and by the
life of the server (`server_life`), because a failover may forget a number and give it again. A
spend that overlaps the change may fall on either side of it: its caller cannot tell which was
first. Nothing is held beyond the commit, so a pooler between Bursar and PostgreSQL changes nothing
here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bursar.db import Row, Tx
from bursar.ledger.model import LockedWallet
from bursar.policy.model import AgentStatus, PolicyKey
from bursar.sql import Query, made

_LOCK = Query("SELECT * FROM read_agents(:agent_ids, :realm_ids, lock => true)")
# What is read depends on the moment, so it is read after the windows were closed.
_CLOSE_WINDOWS = Query("""
    SELECT closed.at AS closed_at, found.*
      FROM close_windows(:agent_ids, :closed_at) AS closed (at)
      LEFT JOIN LATERAL read_agents(:agent_ids, :realm_ids, lock => closed.at IS NOT NULL) AS found
        ON true
""")
_CLOSE_METERS = Query("SELECT close_meters(:meter_ids, :not_before)")
_READ = Query("SELECT * FROM read_agents(:agent_ids, :realm_ids, lock => false)")


@dataclass(frozen=True, slots=True)
class LockedAgent:
    """All that a decision about an agent rests on: current while `lock_agents` holds the lock; from
    `read_agent`, which locks nothing, only as it was when it was read."""

    wallet: LockedWallet
    agent_status: AgentStatus
    policy_version: int
    # They rise with every change of what the agent, and all agents of its realm, are decided by.
    rules: int
    realm_rules: int
    # A person stopped every agent of the realm.
    stopped: bool
    # Which life of which server these numbers belong to.
    life: str
    # What was used in the day of `windows_at`, the moment of the newest decision; None: none yet.
    windows_at: datetime | None
    day_micros: int
    day_lamports: int
    pending_count: int
    # All that the wallet's meter counts (`policy/limits.py`), in the windows of `windows_at`.
    numbers: tuple[int, ...]
    # The budget that the agent is under.
    budget_id: str | None

    @property
    def policy_key(self) -> PolicyKey:
        return self.wallet.agent_id, self.policy_version, self.life

    @property
    def directory_epoch(self) -> str:
        """Opaque: which state of the directory."""
        return f"{self.life}/{self.realm_rules}"

    @property
    def spent_today_micros(self) -> int:
        return self.day_micros if self._day_runs else 0

    @property
    def network_today_lamports(self) -> int:
        return self.day_lamports if self._day_runs else 0

    @property
    def _day_runs(self) -> bool:
        return self.windows_at is not None and self.windows_at.date() == self.wallet.now.date()


async def lock_agents(
    tx: Tx,
    agent_ids: Sequence[str],
    realm_ids: Sequence[int],
) -> dict[str, LockedAgent]:
    """Locks these agents' wallets, then reads, in a statement of its own after the locks are held.

    Agents that do not exist in these realms are not locked, and missing from the answer.
    """
    rows = await _LOCK.rows(tx, agent_ids=agent_ids, realm_ids=realm_ids)
    return {row["agent_id"]: agent_of(row) for row in rows}


async def close_windows(
    tx: Tx,
    agent_ids: Sequence[str],
    realm_ids: Sequence[int],
    closed_at: datetime | None = None,
) -> tuple[datetime, dict[str, LockedAgent]]:
    """`lock_agents` to decide spends: windows that are over end, and those of the moment that is
    returned begin: of now, or of when their meters were closed."""
    rows = await _CLOSE_WINDOWS.rows(
        tx, agent_ids=agent_ids, realm_ids=realm_ids, closed_at=closed_at
    )
    found = {row["agent_id"]: agent_of(row) for row in rows if row["agent_id"] is not None}
    return rows[0]["closed_at"], found


async def close_meters(tx: Tx, meter_ids: Sequence[str], not_before: datetime) -> datetime:
    """The same for meters, after the wallets that they count for."""
    return await _CLOSE_METERS.value(tx, meter_ids=meter_ids, not_before=not_before)


async def wait_for_locks(tx: Tx, millis: int) -> None:
    """How long the rest of this transaction waits for a lock that others hold."""
    await tx.execute(f"SET LOCAL lock_timeout = {int(millis)}")


async def read_agents(
    tx: Tx, agent_ids: Sequence[str], realm_ids: Sequence[int]
) -> dict[str, LockedAgent]:
    """The same without any lock, for callers that only look."""
    rows = await _READ.rows(tx, agent_ids=agent_ids, realm_ids=realm_ids)
    return {row["agent_id"]: agent_of(row) for row in rows}


async def read_agent(tx: Tx, agent_id: str, realm_id: int) -> LockedAgent | None:
    return (await read_agents(tx, [agent_id], [realm_id])).get(agent_id)


def agent_of(row: Row) -> LockedAgent:
    """Of a row that `read_agents` returned."""
    wallet = made(LockedWallet, row, status=row["wallet_status"], moves=[])
    return made(LockedAgent, row, wallet=wallet, numbers=tuple(row["numbers"]))
