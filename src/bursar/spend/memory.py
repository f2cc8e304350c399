"""What a process remembers of agents between their spends.

It may be out of date at any moment. That costs time only: the write compares what a decision rests
on with what the database has (`write_spends`), and what did not hold is read and decided again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from bursar.budget import store as budget_store
from bursar.budget.model import Chain, MeterRow
from bursar.config import Mode
from bursar.cost.payees import Payees
from bursar.db import Tx, quoted
from bursar.errors import present
from bursar.ledger import lock
from bursar.ledger.lock import LockedAgent
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import Terms, terms_of
from bursar.policy.limits import BudgetTerms, meter_ids, numbers_at
from bursar.policy.model import Bounds, Policy
from bursar.recipient.resolve import Directory

_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_RECIPIENTS: Final = 20
# About as many as the agents that fit have of their own. Where there are more, all are read anew.
_MOST_METERS: Final = 30_000
# Estimates: of an agent with so many recipients, its policy aside; of each way in which its rules
# see recipients, taken to be one and one for each recipient that a limit names; and of a limit of
# everybody, the policy's or a budget's, in each of these.
_AGENT_BYTES: Final = 10_000
_KIND_BYTES: Final = 1_000
_LIMIT_BYTES: Final = 450
_encode = msgspec.json.Encoder().encode


class Known(NamedTuple):
    """A recipient as the rules of one agent see it."""

    terms: Terms
    # As a spend keeps them, and `quoted`, once for all that are alike.
    stored_terms: str
    pay_to: str | None

    @property
    def shown_pay_to(self) -> str | None:
        """What a spend keeps and shows of the address."""
        return None if self.terms.host_refused else self.pay_to


def known_by(terms: Terms, pay_to: str | None) -> Known:
    return Known(terms, quoted(_encode(terms).decode()), pay_to)


@dataclass(slots=True)
class Remembered:
    """An agent as it was when last read or written."""

    agent_id: str
    realm_id: int
    wallet_address: str
    stopped: bool
    agent_status: str
    policy: Policy
    policy_key: tuple[str, int, str]
    directory_epoch: str
    rules: int
    realm_rules: int
    life: str
    # The hour that its windows are of; None until its first decision.
    hour: datetime | None
    # Whether that is the hour of the database's clock as well.
    hour_runs: bool
    spent_micros: int
    available_micros: int
    network_lamports: int
    pending_count: int
    # What its own meter counts, and the budgets above it, the nearest first.
    numbers: tuple[int, ...] = ()
    budgets: tuple[BudgetTerms, ...] = ()
    # Of the budgets' meters, as they were when the budgets were read.
    budget_rules: tuple[int, ...] = ()
    recipients: dict[str, Known] = field(default_factory=dict)
    # Whether limits or budgets stand: then more is counted than the day and the funds.
    is_metered: bool = field(init=False)
    # How each write begins that rests on it: whom it is about, by which rules, in which hour.
    record: str = field(init=False)

    def __post_init__(self) -> None:
        self.is_metered = bool(self.policy.limits or self.budgets)
        hour = "" if self.hour is None else self.hour.isoformat()
        self.record = f"{self.agent_id},{self.realm_id},{self.rules},{self.realm_rules},{hour}"

    @property
    def meter_ids(self) -> tuple[str, ...]:
        """All that may count its spends beside its own."""
        return meter_ids(self.policy.limits, self.budgets)

    @property
    def bytes_in_memory(self) -> int:
        named = sum(limit.recipient is not None for limit in self.policy.limits)
        limits = len(self.policy.limits) - named
        limits += sum(len(budget.limits) for budget in self.budgets)
        kind_bytes = _KIND_BYTES + _LIMIT_BYTES * limits
        return _AGENT_BYTES + self.policy.bytes_in_memory + (1 + named) * kind_bytes

    def trim(self) -> None:
        """Forgets recipients when there are many. Never while a batch is decided, which needs those
        that it has just learned."""
        if len(self.recipients) > _MOST_RECIPIENTS:
            self.recipients = {}


class Memory:
    """Bounded in bytes; forgets first the agents that it read first."""

    def __init__(self, policies: PolicyCache, directory: Directory, bounds: Bounds) -> None:
        self._policies = policies
        self._directory = directory
        self._bounds = bounds
        self._payees = Payees()
        self._agents: dict[str, Remembered] = {}
        # Of all agents, and shared by them.
        self._meters: dict[str, MeterRow] = {}
        self._bytes = 0
        # Of all that is remembered.
        self._life = ""

    def get(self, agent_id: str, realm_id: int) -> Remembered | None:
        found = self._agents.get(agent_id)
        return found if found is not None and found.realm_id == realm_id else None

    def forget(self, agent_ids: Iterable[str]) -> None:
        for agent_id in agent_ids:
            forgotten = self._agents.pop(agent_id, None)
            if forgotten is not None:
                self._bytes -= forgotten.bytes_in_memory

    async def read(self, tx: Tx, agents: Sequence[tuple[str, int]]) -> dict[str, Remembered]:
        """Reads agents of these realms; those that do not exist are missing."""
        ids, realms = zip(*agents, strict=True)
        found = await lock.read_agents(tx, sorted(set(ids)), sorted(set(realms)))
        return await self.put(tx, found)

    async def put(
        self, tx: Tx, found: dict[str, LockedAgent], *, windows_are_new: bool = False
    ) -> dict[str, Remembered]:
        """Remembers agents as they were just read, `windows_are_new` where their windows were
        closed just before, under the same locks."""
        seen = await self.seen(tx, found, windows_are_new=windows_are_new)
        for agent_id, now in seen.items():
            if now.life != self._life:
                # The server is another one: its numbers may repeat what the old ones meant.
                self._agents, self._meters, self._bytes, self._life = {}, {}, 0, now.life
            before = self._agents.get(agent_id)
            self.forget([agent_id])
            if before is not None and (
                (before.rules, before.realm_rules, before.budgets)
                == (now.rules, now.realm_rules, now.budgets)
            ):
                now.recipients = before.recipients
                now.trim()
            self._agents[agent_id] = now
            self._bytes += now.bytes_in_memory
        while self._bytes > _MOST_BYTES and len(self._agents) > 1:
            self.forget([next(iter(self._agents))])
        return seen

    async def seen(
        self, tx: Tx, found: dict[str, LockedAgent], *, windows_are_new: bool = False
    ) -> dict[str, Remembered]:
        """Agents as they were just read, with their policies; not remembered."""
        policies = await self._policies.get(tx, [agent.policy_key for agent in found.values()])
        lowest = sorted({agent.budget_id for agent in found.values() if agent.budget_id})
        chains = await budget_store.chains(tx, lowest) if lowest else {}
        seen = {
            agent_id: _remembered(
                agent,
                policies[agent.policy_key],
                chains.get(agent.budget_id or "", Chain()),
                windows_are_new,
            )
            for agent_id, agent in found.items()
        }
        meters = sorted({id_ for agent in seen.values() for id_ in agent.meter_ids})
        if meters:
            if len(self._meters) > _MOST_METERS:
                self._meters = {}
            read = await budget_store.meters(tx, meters)
            if not windows_are_new:
                now = max(agent.wallet.now for agent in found.values())
                read = {id_: meter.at(now) for id_, meter in read.items()}
            self._meters |= read
        return seen

    def meter(self, meter_id: str) -> MeterRow | None:
        return self._meters.get(meter_id)

    def numbers(self, agent: Remembered, terms: Terms) -> tuple[int, ...]:
        """What its meters count, as `Used.meters` has it."""
        return self.counted(agent, terms.meter_ids)

    def counted(self, agent: Remembered, meter_ids: Sequence[str]) -> tuple[int, ...]:
        """What its own meter counts, then these."""
        if not agent.is_metered:
            return ()
        meters = [present(self.meter(id_), "they were just read") for id_ in meter_ids]
        return (*agent.numbers, *(number for meter in meters for number in meter.numbers))

    def meters_run(self, agent: Remembered) -> bool:
        """Whether its meters are remembered, and in the hour of its windows: otherwise they have to
        be closed first."""
        meters = [self._meters.get(meter_id) for meter_id in agent.meter_ids]
        return all(
            meter is not None
            and meter.windows_at is not None
            and hour_of(meter.windows_at) == agent.hour
            for meter in meters
        )

    def remember_meter(self, meter_id: str, numbers: tuple[int, ...]) -> None:
        """What it counts after a batch."""
        known = self._meters.get(meter_id)
        if known is not None:
            self._meters[meter_id] = msgspec.structs.replace(known, numbers=numbers)

    def forget_meters(self, meter_ids: Iterable[str]) -> None:
        for meter_id in meter_ids:
            self._meters.pop(meter_id, None)

    def knows(self, agent: Remembered, recipient: str) -> bool:
        """Whether a spend to this recipient can be decided without a look at the database. What
        follows from what is remembered is worked out here."""
        known = agent.recipients.get(recipient)
        if known is None:
            pay_to = self._directory.remembered(agent.realm_id, agent.directory_epoch, recipient)
            if pay_to is None or agent.policy.blocks.names_hosts:
                return False
            known = self._learn(agent, recipient, pay_to, pays_blocked_host=False)
        return known.pay_to is None or self._payees.is_open(agent.realm_id, known.pay_to)

    async def read_recipients(
        self, tx: Tx, mode: Mode, wanted: Sequence[tuple[Remembered, str]]
    ) -> set[tuple[str, str]]:
        """Reads how the rules of agents see these recipients; returns the (agent, address) whose
        payment has to reserve the rent of a token account."""
        for agent, recipient in wanted:
            if recipient in agent.recipients:
                continue
            place = mode, agent.realm_id, agent.directory_epoch
            pay_to = (await self._directory.resolve(tx, *place, [recipient]))[recipient]
            blocked = await self._directory.paid_to_blocked(
                tx,
                *place,
                (agent.policy_key, agent.policy.blocks),
                [] if pay_to is None else [pay_to],
            )
            self._learn(agent, recipient, pay_to, pays_blocked_host=pay_to in blocked)
        paid = {
            (agent.agent_id, agent.realm_id, pay_to)
            for agent, recipient in wanted
            if (pay_to := agent.recipients[recipient].pay_to) is not None
        }
        return await self._payees.need_rent(tx, paid)

    def _learn(
        self, agent: Remembered, recipient: str, pay_to: str | None, *, pays_blocked_host: bool
    ) -> Known:
        terms = terms_of(
            agent.policy,
            self._bounds,
            stopped=agent.stopped,
            agent_status=agent.agent_status,
            wallet_address=agent.wallet_address,
            recipient=recipient,
            pay_to=pay_to,
            pays_blocked_host=pays_blocked_host,
            budgets=agent.budgets,
        )
        # The rules see most recipients alike: these share what is kept of it.
        alike = next((known for known in agent.recipients.values() if known.terms == terms), None)
        known = known_by(terms, pay_to) if alike is None else alike._replace(pay_to=pay_to)
        agent.recipients[recipient] = known
        return known


async def lock_to_decide(
    tx: Tx, memory: Memory, agent_ids: Sequence[str], realm_ids: Sequence[int]
) -> tuple[datetime, dict[str, LockedAgent]]:
    """Locks these agents' wallets and all that counts their spends, and ends windows that are over;
    returns the moment of it. What is read after this can no longer change."""
    locked_at, locked = await lock.close_windows(tx, agent_ids, realm_ids)
    seen = await memory.seen(tx, locked, windows_are_new=True)
    meters = sorted({id_ for agent in seen.values() for id_ in agent.meter_ids})
    if meters:
        now = max(agent.wallet.now for agent in locked.values())
        # One moment for all of them, and no earlier than what any has reached.
        closed_at = await lock.close_meters(tx, meters, max(now, locked_at))
        locked_at, locked = await lock.close_windows(tx, agent_ids, realm_ids, closed_at)
    return locked_at, locked


def _remembered(
    found: LockedAgent, policy: Policy, chain: Chain, windows_are_new: bool
) -> Remembered:
    """`windows_are_new`: the windows count as they are, even if midnight came since."""
    wallet = found.wallet
    hour = None if found.windows_at is None else hour_of(found.windows_at)
    spent, lamports = found.spent_today_micros, found.network_today_lamports
    if windows_are_new:
        spent, lamports = found.day_micros, found.day_lamports
    return Remembered(
        agent_id=wallet.agent_id,
        realm_id=wallet.realm_id,
        wallet_address=wallet.address,
        stopped=found.stopped,
        agent_status=found.agent_status,
        policy=policy,
        policy_key=found.policy_key,
        directory_epoch=found.directory_epoch,
        rules=found.rules,
        realm_rules=found.realm_rules,
        life=found.life,
        hour=hour,
        hour_runs=windows_are_new or hour == hour_of(wallet.now),
        spent_micros=spent,
        available_micros=wallet.available_micros,
        network_lamports=lamports,
        pending_count=found.pending_count,
        numbers=found.numbers
        if windows_are_new
        else numbers_at(found.numbers, found.windows_at, wallet.now),
        budgets=chain.budgets,
        budget_rules=chain.rules,
    )


def hour_of(moment: datetime) -> datetime:
    return datetime(moment.year, moment.month, moment.day, moment.hour, tzinfo=UTC)
