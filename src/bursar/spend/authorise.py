"""Deciding spends: many requests, one lock, one commit.

A commit for each request would cap spends at the database's commit rate. So the requests that
arrive while one batch is being written form the next: no request waits for a timer, and an idle
service answers at once. Each batch locks its wallets, reads everything that a decision rests on in
a statement after the locks, decides in order, writes and commits. A process has one batch at a
time: with two, each was smaller, and cost more than their overlap gave back.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import asyncpg
import msgspec
import structlog

from bursar.access import idempotency
from bursar.access.idempotency import StoredAnswer
from bursar.access.model import IdempotencyKey
from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS
from bursar.config import Mode
from bursar.cost.payees import Payees
from bursar.db import OUT_OF_REACH, Database, Tx
from bursar.errors import ApiError, check, not_found, unavailable
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, queue_deliveries
from bursar.ids import new_id
from bursar.ledger import lock
from bursar.ledger.lock import LockedAgent
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import Decision, Facts, decide
from bursar.policy.model import Bounds, Policy
from bursar.recipient.resolve import Directory
from bursar.spend import store
from bursar.spend.model import SpendRow, midnight_after
from bursar.spend.stats import Totals
from bursar.spend.store import Decided, Touched
from bursar.spend.view import show_spend

# A batch holds its locks for as long as it takes to write, so it must not grow without bound.
MAX_BATCH: Final = 128
# Requests that may wait in a process; further ones are answered 503.
MAX_WAITING: Final = 2_000
# How long a request waits for its locks when its batch could not get them all. Short, because the
# batch has waited already, and its requests now wait one after the other.
_HURRIED_MILLIS: Final = 50
# How many keys each of two sets remembers: about a megabyte per set.
MAX_RECENT_KEYS: Final = 20_000

_EVENTS: Final = {
    "approved": EventType.TRANSACTION_APPROVED,
    "pending": EventType.TRANSACTION_PENDING,
    "rejected": EventType.TRANSACTION_REJECTED,
}
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger()


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


_Outcome = Authorised | ApiError
_Write = Callable[[Sequence[SpendRequest], bool], Awaitable[list[_Outcome]]]


class Authoriser:
    def __init__(
        self,
        db: Database,
        policies: PolicyCache,
        directory: Directory,
        bounds: Bounds,
        *,
        approval_seconds: int,
        shard: int,
    ) -> None:
        self._db = db
        self._policies = policies
        self._directory = directory
        self._bounds = bounds
        self._approval = timedelta(seconds=approval_seconds)
        self._shard = shard
        self._payees = Payees()
        self._recent = _RecentKeys()
        self._queue = _Queue(self._write)

    async def authorise(self, request: SpendRequest) -> Authorised:
        """Decides, reserves and stores the spend, or finds it again by its idempotency key."""
        if self._queue.waiting >= MAX_WAITING:
            raise unavailable("Too many spends are waiting to be decided. Nothing was changed.")
        return await self._queue.submit(_Waiting(request))

    async def preview(self, tx: Tx, request: SpendRequest) -> tuple[Policy, Decision]:
        """What `authorise` would decide now, and under which policy. Writes nothing."""
        found = await lock.read_agent(tx, request.agent_id, request.realm_id)
        if found is None:
            raise not_found("agent")
        state = (await self._facts(tx, [request], {request.agent_id: found}))[request.agent_id]
        return state.policy, state.decide(request)

    async def _write(self, batch: Sequence[SpendRequest], hurried: bool) -> list[_Outcome]:
        """Decides a batch. Stored answers are looked up only where this process knows the key: a
        look-up for every key would cost a tenth of the whole, and the database refuses a key that
        was used elsewhere."""
        keys = [request.key for request in batch if request.key is not None]
        known = keys if self._recent.has_any(keys) else []
        self._recent.add(keys)

        async def decide_with(keys: Sequence[IdempotencyKey]) -> list[_Outcome]:
            async def work(tx: Tx) -> list[_Outcome]:
                if hurried:
                    await lock.wait_for_locks(tx, _HURRIED_MILLIS)
                return await self._decide_batch(tx, batch, keys)

            return await self._db.transact(work)

        try:
            return await decide_with(known)
        except asyncpg.UniqueViolationError as problem:
            if known or problem.constraint_name != store.KEY_CONSTRAINT:
                raise
            # Another process used one of the keys, or this one did long ago. Nothing was written.
            return await decide_with(keys)

    async def _decide_batch(
        self, tx: Tx, batch: Sequence[SpendRequest], keys: Sequence[IdempotencyKey]
    ) -> list[_Outcome]:
        locked = await lock.lock_agents(
            tx,
            sorted({request.agent_id for request in batch}),
            sorted({request.realm_id for request in batch}),
        )
        # The wallets' locks also keep two requests with one key from passing each other here.
        answered = await idempotency.find(tx, keys) if keys else {}
        states = await self._facts(tx, batch, locked)
        made = _Made(Totals(self._shard), self._approval)
        outcomes = [self._one(request, states, answered, made) for request in batch]
        await made.write(tx)
        return outcomes

    async def _facts(
        self, tx: Tx, batch: Sequence[SpendRequest], locked: dict[str, LockedAgent]
    ) -> "dict[str, _State]":
        """Each agent as it is under its lock, with its policy and the addresses of its payees."""
        policies = await self._policies.get(tx, [found.policy_key for found in locked.values()])
        states: dict[str, _State] = {}
        recipients: dict[tuple[int, Mode, str], set[str]] = {}
        for request in batch:
            found = locked.get(request.agent_id)
            if found is None or found.wallet.realm_id != request.realm_id:
                continue
            if request.agent_id not in states:
                policy = policies[found.policy_key]
                states[request.agent_id] = _State(
                    found,
                    policy,
                    self._bounds,
                    found.spent_today_micros,
                    found.pending_count,
                    found.network_today_lamports,
                )
            states[request.agent_id].recipients.add(request.recipient)
            place = (request.realm_id, request.mode, found.directory_epoch)
            recipients.setdefault(place, set()).add(request.recipient)
        for (realm_id, mode, epoch), names in recipients.items():
            pay_to = await self._directory.resolve(tx, mode, realm_id, epoch, names)
            for state in states.values():
                if state.locked.wallet.realm_id == realm_id:
                    state.pay_to = pay_to
                    state.blocked = await self._directory.paid_to_blocked(
                        tx,
                        mode,
                        realm_id,
                        epoch,
                        (state.locked.policy_key, state.policy.blocks),
                        filter(None, map(pay_to.get, state.recipients)),
                    )
        paid: set[tuple[str, int, str]] = set()
        for request in batch:
            state = states.get(request.agent_id)
            address = None if state is None else state.pay_to.get(request.recipient)
            if address is not None:
                paid.add((request.agent_id, request.realm_id, address))
        for agent_id, address in await self._payees.need_rent(tx, paid):
            states[agent_id].need_rent.add(address)
        return states

    def _one(
        self,
        request: SpendRequest,
        states: "dict[str, _State]",
        answered: dict[tuple[int, str, str, str], StoredAnswer],
        made: "_Made",
    ) -> _Outcome:
        state = states.get(request.agent_id)
        if state is None or state.locked.wallet.realm_id != request.realm_id:
            return not_found("agent")
        if request.key is not None and request.key.place in answered:
            try:
                stored = idempotency.matching(answered[request.key.place], request.key)
            except ApiError as problem:
                return problem
            return Authorised(stored.body, replayed=True)
        spend = self._spend(request, state, state.decide(request))
        shown = _encode(show_spend(spend))
        body = b'{"data":' + shown + b"}"
        made.add(spend, state, shown, request.key)
        if request.key is not None:
            answered[request.key.place] = StoredAnswer(request.key.fingerprint, 201, body)
        return Authorised(body, replayed=False)

    def _spend(self, request: SpendRequest, state: "_State", decision: Decision) -> SpendRow:
        wallet = state.locked.wallet
        network_lamports = state.network_cost(state.pay_to[request.recipient])
        spend_id = new_id("txn")
        wallet.decisions += 1
        if decision.status != "rejected":
            wallet.reserve(spend_id, request.amount_micros)
            state.spent_micros += request.amount_micros
            state.added_micros += request.amount_micros
            state.pending_count += decision.status == "pending"
            state.reserve_cost(network_lamports, state.pay_to[request.recipient])
        return SpendRow(
            id=spend_id,
            realm_id=request.realm_id,
            agent_id=request.agent_id,
            amount_micros=request.amount_micros,
            recipient=request.recipient,
            pay_to=decision.pay_to,
            status=decision.status,
            reject_code=decision.reject_code,
            memo=request.memo,
            metadata=request.metadata,
            policy_version=state.policy.version,
            decision=decision,
            network=request.network,
            created_by=request.created_by,
            created_at=wallet.now,
            expires_at=wallet.now + self._approval if decision.status == "pending" else None,
            decided_by=None,
            decided_at=None,
            decision_reason=None,
            signature=None,
            block_time=None,
            fee_lamports=None,
            rent_lamports=None,
            settled_at=None,
            updated_at=wallet.now,
            decision_number=wallet.decisions,
            network_lamports=0 if decision.status == "rejected" else network_lamports,
        )


@dataclass(slots=True)
class _State:
    """One agent while its requests of a batch are decided one after the other."""

    locked: LockedAgent
    policy: Policy
    bounds: Bounds
    spent_micros: int
    pending_count: int
    network_lamports: int
    added_micros: int = 0
    added_lamports: int = 0
    recipients: set[str] = field(default_factory=set[str])
    pay_to: dict[str, str | None] = field(default_factory=dict)
    # Addresses that the directory gives to hosts that the policy blocks.
    blocked: set[str] = field(default_factory=set[str])
    # Payees whose token account a payment may have to open.
    need_rent: set[str] = field(default_factory=set)

    def network_cost(self, pay_to: str | None) -> int:
        rent = TOKEN_ACCOUNT_LAMPORTS if pay_to in self.need_rent else 0
        return self.bounds.payment_lamports + rent

    def reserve_cost(self, lamports: int, pay_to: str | None) -> None:
        """Reserves network cost. The rent of a payee is reserved once for all open spends of an
        agent."""
        self.network_lamports += lamports
        self.added_lamports += lamports
        self.need_rent -= {pay_to}

    def decide(self, request: SpendRequest) -> Decision:
        wallet = self.locked.wallet
        pay_to = self.pay_to[request.recipient]
        facts = Facts(
            agent_status=self.locked.agent_status,
            wallet_address=wallet.address,
            pay_to=pay_to,
            pays_blocked_host=pay_to in self.blocked,
            spent_today_micros=self.spent_micros,
            available_micros=wallet.available_micros,
            network_today_lamports=self.network_lamports,
            network_cost_lamports=self.network_cost(self.pay_to[request.recipient]),
            pending_count=self.pending_count,
            bounds=self.bounds,
            resets_at=midnight_after(wallet.now),
        )
        return decide(self.policy, facts, request.amount_micros, request.recipient)

    def touched(self) -> Touched:
        wallet = self.locked.wallet
        return Touched(
            agent_id=wallet.agent_id,
            debits_pending=wallet.debits_pending,
            transfers=wallet.transfers,
            decisions=wallet.decisions,
            added_micros=self.added_micros,
            cap_micros=self.policy.cap_micros_daily,
            added_lamports=self.added_lamports,
            network_cap_lamports=self.policy.network_budget(self.bounds),
        )


class _Made:
    """What a batch decided, on its way to the database."""

    def __init__(self, totals: Totals, approval: timedelta) -> None:
        self._totals = totals
        self._approval = approval
        self._decided: list[Decided] = []
        self._touched: dict[str, _State] = {}
        self._events: list[NewEvent] = []

    def add(self, spend: SpendRow, state: _State, shown: bytes, key: IdempotencyKey | None) -> None:
        wallet = state.locked.wallet
        event = NewEvent(
            spend.realm_id, _EVENTS[spend.status], spend.agent_id, shown, spend.created_at
        )
        self._decided.append(
            Decided(
                spend=spend,
                transfer_number=wallet.transfers,
                credits_posted=wallet.credits_posted,
                debits_posted=wallet.debits_posted,
                debits_pending=wallet.debits_pending,
                event_id=event.id,
                event_type=event.type.value,
                data=shown.decode(),
                key=key,
            )
        )
        self._touched[spend.agent_id] = state
        self._totals.count(spend)
        if state.locked.has_webhooks:
            self._events.append(event)

    async def write(self, tx: Tx) -> None:
        if not self._decided:
            return
        touched = [state.touched() for state in self._touched.values()]
        at = self._decided[0].spend.created_at
        await store.write_decided(
            tx, at, at + self._approval, self._decided, touched, self._totals.added()
        )
        if self._events:
            await queue_deliveries(tx, self._events)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    request: SpendRequest
    answer: asyncio.Future[Authorised] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def answer_with(self, outcome: Authorised | BaseException) -> None:
        if self.answer.done():  # the caller is gone; the spend stands, and its key finds it
            return
        if isinstance(outcome, Authorised):
            self.answer.set_result(outcome)
        else:
            self.answer.set_exception(outcome)


class _Queue:
    """One batch at a time: requests that arrive meanwhile form the next."""

    def __init__(self, write: _Write) -> None:
        self._write = write
        self._queue: deque[_Waiting] = deque()
        self._running: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def submit(self, waiting: _Waiting) -> Authorised:
        self._queue.append(waiting)
        if self._running is None:
            self._running = asyncio.create_task(self._drain())
        return await waiting.answer

    async def _drain(self) -> None:
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
                await self._decide(batch)
        finally:
            self._running = None

    async def _decide(self, batch: Sequence[_Waiting], *, hurried: bool = False) -> None:
        try:
            outcomes = await self._write([waiting.request for waiting in batch], hurried)
        except Exception as problem:  # noqa: BLE001 - every caller is answered, whatever it is
            # A wallet that another session has locked is of one request, and nothing was written.
            locked = isinstance(problem, asyncpg.LockNotAvailableError)
            if len(batch) == 1 or (isinstance(problem, OUT_OF_REACH) and not locked):
                # It may have been committed: a retry with the idempotency key finds out.
                for waiting in batch:
                    waiting.answer_with(problem)
                return
            # No request may fail because of another: each gets a transaction of its own.
            _log.warning("batch_rolled_back", size=len(batch), problem=type(problem).__name__)
            for waiting in batch:
                await self._decide([waiting], hurried=locked)
            return
        check(len(outcomes) == len(batch), "every request of a batch has an outcome")
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.answer_with(outcome)
