"""Deciding spends: many requests, one guarded write.

A batch is decided on what this process remembers of its agents, and written by one call of
`write_spends`, a transaction of its own that writes only the wallets on which every decision still
stands. The others are read and decided again; those that miss twice, or whose windows have to be
closed first, are decided under their locks, where nothing can move. Answers are made from the
values that the write found.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import asyncpg
import msgspec

from bursar.access import idempotency
from bursar.access.idempotency import StoredAnswer
from bursar.access.model import IdempotencyKey
from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.errors import ApiError, check, not_found
from bursar.ids import new_id
from bursar.ledger import lock
from bursar.metrics import Spends as Metrics
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import Decision, RejectCode, Used, Verdict, decide, judge, waits
from bursar.policy.guard import Guard
from bursar.policy.model import Bounds, Policy
from bursar.recipient.resolve import Directory
from bursar.spend import store
from bursar.spend.batches import Batches, Waiting
from bursar.spend.memory import Known, Memory, Remembered
from bursar.spend.model import SpendRow, midnight_after
from bursar.spend.store import Decided, Found, Touched
from bursar.spend.view import show_spend

# How often what is remembered is read again before the locks are taken.
_TRIES: Final = 2
# How long a request waits for its locks when its batch could not get them all. Short, because the
# batch has waited already, and its requests now wait one after the other.
_HURRIED_MILLIS: Final = 50
# How many keys each of two sets remembers: about a megabyte per set.
MAX_RECENT_KEYS: Final = 20_000
_encode = msgspec.json.Encoder().encode


class SpendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request to spend."""

    realm_id: int
    mode: Mode
    agent_id: str
    amount_micros: int
    recipient: str
    memo: str | None
    metadata: dict[str, str]
    created_by: str
    network: str
    key: IdempotencyKey | None


class Authorised(msgspec.Struct, frozen=True):
    """The answer: `{"data": …}` as it was committed, now or when the key was first used."""

    body: bytes
    replayed: bool


_Waiting = Waiting[SpendRequest, Authorised]


class Authoriser:
    def __init__(
        self,
        db: Database,
        policies: PolicyCache,
        directory: Directory,
        bounds: Bounds,
        *,
        approval_seconds: int,
        always_lock: bool = False,
    ) -> None:
        self._db = db
        self._bounds = bounds
        self._approval_seconds = approval_seconds
        # For tests: the locked way is what the other one is compared with.
        self._always_lock = always_lock
        self._memory = Memory(policies, directory, bounds)
        self._recent = _RecentKeys()
        self._batches = Batches(self._write)

    async def authorise(self, request: SpendRequest) -> Authorised:
        """Decides, reserves and stores the spend, or finds it again by its idempotency key."""
        return await self._batches.submit(request)

    async def preview(self, tx: Tx, request: SpendRequest) -> tuple[Policy, str | None, Decision]:
        """What `authorise` would decide now: under which policy, to which address. Writes
        nothing."""
        found = await lock.read_agents(tx, [request.agent_id], [request.realm_id])
        # Of its own: what a batch remembers changes while this waits for the database.
        agent = (await self._memory.seen(tx, found)).get(request.agent_id)
        if agent is None:
            raise not_found("agent")
        wanted = [(agent, request.recipient)]
        rents = await self._memory.read_recipients(tx, request.mode, wanted)
        made = _Wallet(agent, self._bounds, rents).decide(request)
        known = agent.recipients[request.recipient]
        now = found[request.agent_id].wallet.now
        used = made.used(_as_remembered(agent, now))
        decision = decide(
            known.terms,
            used,
            request.amount_micros,
            request.recipient,
            known.shown_pay_to,
            midnight_after(now),
        )
        return agent.policy, known.shown_pay_to, decision

    async def _write(self, batch: Sequence[_Waiting], hurried: bool) -> None:
        """Answers each request of the batch as soon as it is written. What raises has answered
        none of those that are still waiting."""
        left = await self._answer_known(batch, every_key=hurried)
        for _ in range(0 if hurried or self._always_lock else _TRIES):
            if not left:
                return
            try:
                left = await self._try(left)
            except asyncpg.UniqueViolationError as problem:
                left = await self._after_conflict(left, problem)
            except asyncpg.InvalidTransactionStateError as problem:
                # Another isolation level is this database's default: only a transaction that
                # begins by saying which it wants may write. Its subclasses mean other things.
                if type(problem) is not asyncpg.InvalidTransactionStateError:
                    raise
                break
        if left:
            try:
                await self._under_locks(left, hurried)
            except asyncpg.UniqueViolationError as problem:
                left = await self._after_conflict(left, problem)
                await self._under_locks(left, hurried)

    async def _after_conflict(
        self, left: Sequence[_Waiting], problem: asyncpg.UniqueViolationError
    ) -> list[_Waiting]:
        """Another process used one of the keys, or this one did long ago. Nothing was written."""
        if problem.constraint_name != store.KEY_CONSTRAINT:
            raise problem
        return await self._answer_known(left, every_key=True)

    async def _answer_known(self, batch: Sequence[_Waiting], *, every_key: bool) -> list[_Waiting]:
        """Answers those whose key was used before; returns the others. Keys are looked up only
        where this process may have seen one: a look-up for every key would cost a tenth of the
        whole, and the database refuses a key that was used elsewhere."""
        keys = [w.request.key for w in batch if w.request.key is not None]
        known = every_key or self._recent.has_any(keys)
        self._recent.add(keys)
        if not known or not keys:
            return list(batch)
        # A transaction, because only that says what its commit waits for.
        async with self._db.transaction() as tx:
            named = [(key.realm_id, key.agent_id, key.key) for key in keys]
            found = await store.find_by_keys(tx, named)
            if found:
                # It may be committed here but on no standby yet, because the request that wrote
                # it gave up waiting for one. So it is told only once a standby has it.
                await idempotency.wait_for_standbys(tx)
        left: list[_Waiting] = []
        for waiting in batch:
            key = waiting.request.key
            stored = None if key is None else found.get((key.realm_id, key.agent_id, key.key))
            if key is None or stored is None:
                left.append(waiting)
                continue
            spend, fingerprint = stored
            waiting.answer_with(_replay(key, fingerprint, _body(spend.as_created)))
        return left

    async def _try(self, batch: Sequence[_Waiting]) -> list[_Waiting]:
        """Decides on what is remembered and writes what stands; returns what has to be decided
        again."""
        agents = await self._remember(batch)
        ready: list[_Waiting] = []
        for waiting in batch:
            agent = _of(agents, waiting.request)
            if agent is None:
                waiting.answer_with(not_found("agent"))
            # Under the locks only: windows that are over have to be closed, and the payment may
            # have to open the payee's token account.
            elif agent.hour_runs and self._memory.knows(agent, waiting.request.recipient):
                ready.append(waiting)
        if len({agents[waiting.request.agent_id].life for waiting in ready}) > 1:
            # The server changed while some were read. Numbers of another life mean nothing.
            self._memory.forget(agents)
            ready = []
        if ready:
            deciding = _Deciding(self._bounds, set())
            for waiting in ready:
                deciding.add(waiting, agents[waiting.request.agent_id])
            async with self._db.connection() as tx:
                found = await deciding.write(tx, None, self._approval_seconds)
            self._memory.forget(deciding.agent_ids - found.keys())
            deciding.answer(found)
            Metrics.decided("remembered", sum(waiting.answered for waiting in ready))
            Metrics.again(sum(not waiting.answered for waiting in ready))
        return [waiting for waiting in batch if not waiting.answered]

    async def _remember(self, batch: Sequence[_Waiting]) -> dict[str, Remembered]:
        """The agents of the batch as they are remembered, or read now; those that do not exist are
        missing. What the batch rests on is kept here, whatever else is forgotten meanwhile."""
        agents: dict[str, Remembered] = {}
        unknown: list[tuple[str, int]] = []
        for request in (waiting.request for waiting in batch):
            found = self._memory.get(request.agent_id, request.realm_id)
            if found is None:
                unknown.append((request.agent_id, request.realm_id))
            else:
                agents[request.agent_id] = found
        if unknown:
            async with self._db.connection() as tx:
                agents |= await self._memory.read(tx, unknown)
        strange: defaultdict[Mode, list[tuple[Remembered, str]]] = defaultdict(list)
        for request in (waiting.request for waiting in batch):
            agent = _of(agents, request)
            if agent is not None and not self._memory.knows(agent, request.recipient):
                strange[request.mode].append((agent, request.recipient))
        if strange:
            async with self._db.connection() as tx:
                for mode, wanted in strange.items():
                    await self._memory.read_recipients(tx, mode, wanted)
        return agents

    async def _under_locks(self, batch: Sequence[_Waiting], hurried: bool) -> None:
        """Decides under the wallets' locks: nothing that counts can change before it is
        written."""

        async def work(tx: Tx) -> "tuple[_Deciding, dict[str, Found]]":
            if hurried:
                await lock.wait_for_locks(tx, _HURRIED_MILLIS)
            agent_ids = sorted({w.request.agent_id for w in batch})
            realm_ids = sorted({w.request.realm_id for w in batch})
            locked_at = await lock.close_windows(tx, agent_ids)
            locked = await lock.lock_agents(tx, agent_ids, realm_ids)
            agents = await self._memory.put(tx, locked, windows_are_new=True)
            wanted: defaultdict[Mode, list[tuple[Remembered, str]]] = defaultdict(list)
            for request in (waiting.request for waiting in batch):
                agent = _of(agents, request)
                if agent is not None:
                    wanted[request.mode].append((agent, request.recipient))
            rents: set[tuple[str, str]] = set()
            for mode, some in wanted.items():
                rents |= await self._memory.read_recipients(tx, mode, some)
            deciding = _Deciding(self._bounds, rents)
            for waiting in batch:
                agent = _of(agents, waiting.request)
                if agent is None:
                    waiting.answer_with(not_found("agent"))
                else:
                    deciding.add(waiting, agent)
            found = await deciding.write(tx, locked_at, self._approval_seconds)
            # Before the commit: what was written is answered, and what is not answered was not
            # written, or it would be written again.
            check(deciding.agent_ids == found.keys(), "under its lock every wallet's guard holds")
            return deciding, found

        deciding, found = await self._db.transact(work)
        deciding.answer(found)
        Metrics.decided("locked", len(batch))


def _of(agents: dict[str, Remembered], request: SpendRequest) -> Remembered | None:
    """The agent of a request; None when there is none in its realm."""
    agent = agents.get(request.agent_id)
    return agent if agent is not None and agent.realm_id == request.realm_id else None


class _Made(NamedTuple):
    """A decided request, and what its batch had added to its wallet before it."""

    request: SpendRequest
    known: Known
    spend_id: str
    verdict: Verdict
    reject_code: RejectCode | None
    cost_lamports: int
    decisions_before: int
    moves_before: int
    micros_before: int
    lamports_before: int
    pendings_before: int

    def used(self, found: Found) -> Used:
        """The numbers that it was judged on, from those of its wallet before the batch."""
        return Used(
            found.spent_micros + self.micros_before,
            found.available_micros - self.micros_before,
            found.network_lamports + self.lamports_before,
            self.cost_lamports,
            found.pending_count + self.pendings_before,
            found.transfers + self.moves_before,
        )


@dataclass(slots=True)
class _Wallet:
    """One agent while the requests of a batch are decided one after the other."""

    agent: Remembered
    bounds: Bounds
    # The (agent, address) whose payment reserves the rent of a token account: once for all open
    # spends of the agent.
    rents: set[tuple[str, str]]
    guard: Guard = field(default_factory=Guard)
    decisions: int = 0
    moves: int = 0
    micros: int = 0
    lamports: int = 0
    pendings: int = 0

    def decide(self, request: SpendRequest) -> _Made:
        agent = self.agent
        known = agent.recipients[request.recipient]
        terms, amount = known.terms, request.amount_micros
        rent = known.pay_to is not None and (agent.agent_id, known.pay_to) in self.rents
        cost = self.bounds.payment_lamports + (TOKEN_ACCOUNT_LAMPORTS if rent else 0)
        used = Used(
            agent.spent_micros + self.micros,
            agent.available_micros - self.micros,
            agent.network_lamports + self.lamports,
            cost,
            agent.pending_count + self.pendings,
            0,
        )
        code = judge(terms, used, amount)
        added = Used(self.micros, 0, self.lamports, 0, self.pendings, 0)
        self.guard.hold(terms, amount, cost, code, added)
        verdict: Verdict = "rejected" if code else "pending" if waits(terms, amount) else "approved"
        made = _Made(
            request,
            known,
            new_id("txn"),
            verdict,
            code,
            cost,
            self.decisions,
            self.moves,
            self.micros,
            self.lamports,
            self.pendings,
        )
        self.decisions += 1
        if code is None:
            self.moves += 1
            self.micros += amount
            self.lamports += cost
            self.pendings += verdict == "pending"
            if rent and known.pay_to is not None:
                self.rents.discard((agent.agent_id, known.pay_to))
        return made

    def touched(self) -> Touched:
        agent = self.agent
        return Touched(
            agent_id=agent.agent_id,
            realm_id=agent.realm_id,
            rules=agent.rules,
            realm_rules=agent.realm_rules,
            hour=agent.hour,
            decisions=self.decisions,
            moves=self.moves,
            micros=self.micros,
            lamports=self.lamports,
            pendings=self.pendings,
            cap_micros=agent.policy.cap_micros_daily,
            cap_lamports=agent.policy.network_budget(self.bounds),
            guard=self.guard,
        )

    def remember(self, found: Found) -> None:
        """What the wallet has after the batch."""
        agent = self.agent
        agent.spent_micros = found.spent_micros + self.micros
        agent.available_micros = found.available_micros - self.micros
        agent.network_lamports = found.network_lamports + self.lamports
        agent.pending_count = found.pending_count + self.pendings
        agent.trim()


class _Deciding:
    """A batch while it is decided, written and answered."""

    def __init__(self, bounds: Bounds, rents: set[tuple[str, str]]) -> None:
        self._bounds = bounds
        self._rents = rents
        self._wallets: dict[str, _Wallet] = {}
        self._made: list[tuple[_Waiting, _Made]] = []
        # Requests with the key of an earlier one of this batch get the answer of that.
        self._first: dict[tuple[int, str, str, str], _Waiting] = {}
        self._repeats: list[tuple[_Waiting, _Waiting]] = []

    @property
    def agent_ids(self) -> set[str]:
        return set(self._wallets)

    def add(self, waiting: _Waiting, agent: Remembered) -> None:
        request = waiting.request
        if request.key is not None:
            first = self._first.setdefault(request.key.place, waiting)
            if first is not waiting:
                self._repeats.append((waiting, first))
                return
        wallet = self._wallets.get(agent.agent_id)
        if wallet is None:
            wallet = self._wallets[agent.agent_id] = _Wallet(agent, self._bounds, self._rents)
        self._made.append((waiting, wallet.decide(request)))

    async def write(
        self, tx: Tx, locked_at: datetime | None, approval_seconds: int
    ) -> dict[str, Found]:
        """The wallets whose decisions stand, as they were before the batch."""
        if not self._made:
            return {}
        life = next(iter(self._wallets.values())).agent.life
        touched = [wallet.touched() for wallet in self._wallets.values()]
        decided = [_decided(made, self._wallets[made.request.agent_id]) for _, made in self._made]
        self._approval = timedelta(seconds=approval_seconds)
        return await store.write_spends(tx, life, locked_at, approval_seconds, touched, decided)

    def answer(self, found: dict[str, Found]) -> None:
        """Answers what was written. Nothing of it may be left without an answer, whatever goes
        wrong here: it would be taken for not written."""
        for waiting, made in self._made:
            wallet = found.get(made.request.agent_id)
            if wallet is not None:
                policy = self._wallets[made.request.agent_id].agent.policy
                try:
                    spend = _spend(made, wallet, policy.version, self._approval)
                    waiting.answer_with(Authorised(_body(spend), replayed=False))
                except Exception as problem:  # noqa: BLE001 - the spend stands; its key finds it
                    waiting.answer_with(problem)
        for agent_id, wallet in found.items():
            self._wallets[agent_id].remember(wallet)
        for waiting, first in self._repeats:
            key, first_key = waiting.request.key, first.request.key
            outcome = first.outcome
            if key is not None and first_key is not None and isinstance(outcome, Authorised):
                waiting.answer_with(_replay(key, first_key.fingerprint, outcome.body))


def _decided(made: _Made, wallet: _Wallet) -> Decided:
    request, known = made.request, made.known
    key = request.key
    return Decided(
        id=made.spend_id,
        agent_id=request.agent_id,
        amount_micros=request.amount_micros,
        recipient=request.recipient,
        pay_to=known.shown_pay_to,
        verdict=made.verdict,
        reject_code=made.reject_code,
        memo=request.memo,
        metadata=request.metadata,
        policy_version=wallet.agent.policy.version,
        terms=known.stored_terms,
        network=request.network,
        created_by=request.created_by,
        cost_lamports=made.cost_lamports,
        decisions_before=made.decisions_before,
        moves_before=made.moves_before,
        micros_before=made.micros_before,
        lamports_before=made.lamports_before,
        pendings_before=made.pendings_before,
        # Refused ones count under one name: an agent could name a new one each time.
        total_recipient="" if made.verdict == "rejected" else request.recipient,
        key="" if key is None else key.key,
        fingerprint=b"" if key is None else key.fingerprint,
    )


async def authorise_purchase(
    tx: Tx,
    request: SpendRequest,
    purchase_id: str,
    agent: Remembered,
    known: Known,
    bounds: Bounds,
    locked_at: datetime,
    approval_seconds: int,
) -> SpendRow:
    """Decides and writes the spend of a purchase, in a transaction that closed the wallet's
    windows, and so locked it, at `locked_at`. The seller pays what it costs on the chain."""
    agent.recipients[request.recipient] = known
    wallet = _Wallet(agent, msgspec.structs.replace(bounds, payment_lamports=0), set())
    made = wallet.decide(request)
    touched, decided = [wallet.touched()], [_decided(made, wallet)]
    found = await store.write_spends(
        tx, agent.life, locked_at, approval_seconds, touched, decided, purchase_id
    )
    check(agent.agent_id in found, "under its lock a wallet's guard holds")
    approval = timedelta(seconds=approval_seconds)
    return _spend(made, found[agent.agent_id], agent.policy.version, approval, purchase_id)


def _spend(
    made: _Made,
    found: Found,
    policy_version: int,
    approval: timedelta,
    purchase_id: str | None = None,
) -> SpendRow:
    """The spend as it was written."""
    request, known, at = made.request, made.known, found.at
    return SpendRow(
        id=made.spend_id,
        realm_id=request.realm_id,
        agent_id=request.agent_id,
        amount_micros=request.amount_micros,
        recipient=request.recipient,
        pay_to=known.shown_pay_to,
        status=made.verdict,
        reject_code=made.reject_code,
        memo=request.memo,
        metadata=request.metadata,
        policy_version=policy_version,
        verdict=made.verdict,
        terms=known.terms,
        used=made.used(found),
        network=request.network,
        created_by=request.created_by,
        created_at=at,
        purchase_id=purchase_id,
        expires_at=at + approval if made.verdict == "pending" else None,
        decided_by=None,
        decided_at=None,
        decision_reason=None,
        signature=None,
        block_time=None,
        fee_lamports=None,
        rent_lamports=None,
        settled_at=None,
        updated_at=at,
        decision_number=found.decisions + made.decisions_before + 1,
        network_lamports=0 if made.verdict == "rejected" else made.cost_lamports,
    )


def _as_remembered(agent: Remembered, now: datetime) -> Found:
    """An agent's wallet as if it had been written, for a preview."""
    return Found(
        agent.agent_id,
        now,
        agent.available_micros,
        0,
        0,
        0,
        0,
        agent.spent_micros,
        agent.network_lamports,
        agent.pending_count,
    )


def _body(spend: SpendRow) -> bytes:
    return b'{"data":' + _encode(show_spend(spend)) + b"}"


def _replay(key: IdempotencyKey, fingerprint: bytes, body: bytes) -> Authorised | ApiError:
    try:
        idempotency.matching(StoredAnswer(fingerprint, 201, body), key)
    except ApiError as problem:
        return problem
    return Authorised(body, replayed=True)


class _RecentKeys:
    """Hashes of the idempotency keys that this process used lately: a retry most often comes soon,
    and to the same process. It may forget a key or take one for another; both only cost time."""

    def __init__(self) -> None:
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def has_any(self, keys: Sequence[IdempotencyKey]) -> bool:
        hashes = {hash(key.place) for key in keys}
        return not (hashes.isdisjoint(self._newer) and hashes.isdisjoint(self._older))

    def add(self, keys: Sequence[IdempotencyKey]) -> None:
        if len(self._newer) >= MAX_RECENT_KEYS:
            self._newer, self._older = set(), self._newer
        self._newer.update(hash(key.place) for key in keys)
