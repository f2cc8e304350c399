"""Deciding spends: many requests, one guarded write.

A batch is decided on what this process remembers of its agents, and written by one call of
`write_spends`, a transaction of its own that writes only the wallets on which every decision still
stands. The others are read and decided again; those that miss twice, or whose windows have to be
closed first, are decided under their locks, where nothing can move. Answers are made from the
values that the write found.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

import asyncpg
import msgspec

from bursar.access import idempotency
from bursar.access.idempotency import StoredAnswer
from bursar.access.model import IdempotencyKey
from bursar.clock import iso
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.errors import ApiError, check, not_found, present
from bursar.ledger import lock
from bursar.metrics import Spends as Metrics
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import Decision, decide
from bursar.policy.model import Bounds, Policy
from bursar.recipient.resolve import Directory
from bursar.spend import store
from bursar.spend.batches import Batches, Over, Waiting, not_over
from bursar.spend.deciding import Batch, Made, SpendRequest, Written, as_remembered
from bursar.spend.memory import Known, Memory, Remembered, lock_to_decide
from bursar.spend.model import SpendRow
from bursar.spend.store import OfPurchase, Presenting
from bursar.spend.view import Transaction, show_spend

# How often what is remembered is read again before the locks are taken.
_TRIES: Final = 2
# How long a request waits for its locks when its batch could not get them all. Short, because the
# batch has waited already, and its requests now wait one after the other.
_HURRIED_MILLIS: Final = 50
# How many keys each of two sets remembers: about a megabyte per set.
MAX_RECENT_KEYS: Final = 20_000
_encode = msgspec.json.Encoder().encode


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
        batch = Batch(self._bounds, rents, self._memory, metered=agent.is_metered)
        made = batch.decide(request, agent)
        known = agent.recipients[request.recipient]
        now = found[request.agent_id].wallet.now
        used = made.used(as_remembered(agent, now), made.meters)
        decision = decide(
            known.terms,
            used,
            request.amount_micros,
            request.recipient,
            known.shown_pay_to,
            now,
        )
        return agent.policy, known.shown_pay_to, decision

    async def _write(self, batch: Sequence[_Waiting], hurried: bool, over: Over) -> None:
        """Answers each request of the batch as soon as it is written. What raises has answered
        none of those that are still waiting."""
        left = await self._answer_known(batch, every_key=hurried)
        for _ in range(0 if hurried or self._always_lock else _TRIES):
            if not left:
                return
            try:
                left = await self._try(left, over)
            except asyncpg.UniqueViolationError as problem:
                left = await self._after_conflict(left, problem)
            except asyncpg.InvalidTransactionStateError as problem:
                # Another isolation level is this database's default: only a transaction that
                # begins by saying which it wants may write. Its subclasses mean other things.
                if type(problem) is not asyncpg.InvalidTransactionStateError:
                    raise
                left = _unanswered(left)
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
        """Another process used one of the keys, or this one did long ago. Nothing was written with
        it; what was before, of the agents that are not metered, is answered, and must not be
        written again."""
        if problem.constraint_name != store.KEY_CONSTRAINT:
            raise problem
        return await self._answer_known(_unanswered(left), every_key=True)

    async def _answer_known(self, batch: Sequence[_Waiting], *, every_key: bool) -> list[_Waiting]:
        """Answers those whose key was used before; returns the others. Keys are looked up only
        where this process may have seen one: a look-up for every key would cost a tenth of the
        whole, and the database refuses a key that was used elsewhere."""
        keys = [w.request.key for w in batch if w.request.key is not None]
        may_be_known = self._recent.note(keys)
        if not keys or not (may_be_known or every_key):
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
            waiting.answer_with(_replay(key, fingerprint, _body(show_spend(spend.as_created))))
        return left

    async def _try(self, batch: Sequence[_Waiting], over: Over) -> list[_Waiting]:
        """Decides on what is remembered and writes what stands; returns what has to be decided
        again."""
        agents, strange = await self._remember(batch)
        # By whether limits or budgets count them, too.
        ready: dict[bool, list[_Waiting]] = {False: [], True: []}
        lives: set[str] = set()
        for waiting in batch:
            agent = _of(agents, waiting.request)
            if agent is None:
                waiting.answer_with(not_found("agent"))
            # Under the locks only: windows that are over have to be closed, and the payment may
            # have to open the payee's token account.
            elif (
                agent.hour_runs
                and (not strange or self._memory.knows(agent, waiting.request.recipient))
                and (not agent.is_metered or self._memory.meters_run(agent))
            ):
                ready[agent.is_metered].append(waiting)
                lives.add(agent.life)
        if len(lives) > 1:
            # The server changed while some were read. Numbers of another life mean nothing.
            self._memory.forget(agents)
            ready.clear()
        decided: list[tuple[_Deciding, list[_Waiting]]] = []
        # All before any is written: meanwhile others may forget what these rest on.
        for metered, of_kind in ready.items():
            deciding = _Deciding(self._bounds, set(), self._memory, metered=metered)
            for waiting in of_kind:
                deciding.add(waiting, agents[waiting.request.agent_id])
            if of_kind:
                decided.append((deciding, of_kind))
        for deciding, of_kind in decided:
            is_all = len(of_kind) == len(batch)
            await self._try_to_write(deciding, of_kind, over if is_all else not_over)
            Metrics.again(len(_unanswered(of_kind)))
        return _unanswered(batch)

    async def _try_to_write(
        self, deciding: "_Deciding", batch: Sequence[_Waiting], over: Over
    ) -> None:
        async with self._db.connection() as tx:
            if len(batch) == 1:
                asyncio.get_running_loop().call_soon(deciding.foresee)
            written = Written({}, {})
            # A batch with meters of which a part no longer stands was not written at all.
            with suppress(asyncpg.SerializationError):
                written = await deciding.write(tx, None, self._approval_seconds)
            # From here on nothing may keep what was written from being answered.
            try:
                missed = deciding.agent_ids - written.found.keys()
                self._memory.forget(missed)
                if missed:
                    self._memory.forget_meters(deciding.meter_ids)
                deciding.remember(written)
                if not missed:
                    await over()
            finally:
                # Before the connection goes back, which takes as long as all the answers of a small
                # batch.
                deciding.answer(written)
                Metrics.decided("remembered", len(batch) - len(_unanswered(batch)))

    async def _remember(self, batch: Sequence[_Waiting]) -> tuple[dict[str, Remembered], bool]:
        """The agents of the batch as they are remembered, or read now; those that do not exist are
        missing. What the batch rests on is kept here, whatever else is forgotten meanwhile. And
        whether recipients had to be read: some may be no better known after that."""
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
        return agents, bool(strange)

    async def _under_locks(self, batch: Sequence[_Waiting], hurried: bool) -> None:
        """Decides under the wallets' locks: nothing that counts can change before it is
        written."""

        async def work(tx: Tx) -> list[tuple[_Deciding, Written]]:
            if hurried:
                await lock.wait_for_locks(tx, _HURRIED_MILLIS)
            agent_ids = sorted({w.request.agent_id for w in batch})
            realm_ids = sorted({w.request.realm_id for w in batch})
            locked_at, locked = await lock_to_decide(tx, self._memory, agent_ids, realm_ids)
            agents = await self._memory.put(tx, locked, windows_are_new=True)
            wanted: defaultdict[Mode, list[tuple[Remembered, str]]] = defaultdict(list)
            for request in (waiting.request for waiting in batch):
                agent = _of(agents, request)
                if agent is not None:
                    wanted[request.mode].append((agent, request.recipient))
            rents: set[tuple[str, str]] = set()
            for mode, some in wanted.items():
                rents |= await self._memory.read_recipients(tx, mode, some)
            kinds = {
                metered: _Deciding(self._bounds, rents, self._memory, metered=metered)
                for metered in (False, True)
            }
            for waiting in batch:
                agent = _of(agents, waiting.request)
                if agent is None:
                    waiting.answer_with(not_found("agent"))
                else:
                    kinds[agent.is_metered].add(waiting, agent)
            done: list[tuple[_Deciding, Written]] = []
            for deciding in kinds.values():
                written = await deciding.write(tx, locked_at, self._approval_seconds)
                # Before the commit: what was written is answered, and what is not answered was not
                # written, or it would be written again.
                check(
                    deciding.agent_ids == written.found.keys(),
                    "under its lock every wallet's guard holds",
                )
                done.append((deciding, written))
            return done

        done = await self._db.transact(work)
        for deciding, written in done:
            deciding.answer(written)
        for deciding, written in done:
            deciding.remember(written)
        Metrics.decided("locked", len(batch))


def _unanswered(batch: Sequence[_Waiting]) -> list[_Waiting]:
    return [waiting for waiting in batch if not waiting.answered]


def _of(agents: dict[str, Remembered], request: SpendRequest) -> Remembered | None:
    """The agent of a request; None when there is none in its realm."""
    agent = agents.get(request.agent_id)
    return agent if agent is not None and agent.realm_id == request.realm_id else None


class _Deciding:
    """A batch while it is decided, written and answered."""

    def __init__(
        self, bounds: Bounds, rents: set[tuple[str, str]], memory: Memory, *, metered: bool
    ) -> None:
        self._batch = Batch(bounds, rents, memory, metered=metered)
        self._made: list[tuple[_Waiting, Made]] = []
        # Requests with the key of an earlier one of this batch get the answer of that.
        self._first: dict[tuple[int, str, str, str], _Waiting] = {}
        self._repeats: list[tuple[_Waiting, _Waiting]] = []
        self._approval_seconds = 0
        self._foreseen: tuple[SpendRow, Transaction] | None = None

    @property
    def agent_ids(self) -> set[str]:
        return self._batch.agent_ids

    @property
    def meter_ids(self) -> set[str]:
        return self._batch.meter_ids

    def add(self, waiting: _Waiting, agent: Remembered) -> None:
        check(not waiting.answered, "what was answered is written, or never will be")
        request = waiting.request
        if request.key is not None:
            first = self._first.setdefault(request.key.place, waiting)
            if first is not waiting:
                self._repeats.append((waiting, first))
                return
        self._made.append((waiting, self._batch.decide(request, agent)))

    async def write(self, tx: Tx, locked_at: datetime | None, approval_seconds: int) -> Written:
        self._approval_seconds = approval_seconds
        return await self._batch.write(tx, locked_at, approval_seconds)

    def foresee(self) -> None:
        """Makes the answer to one that comes alone while the database writes it: it is most often
        approved, on just the numbers that are remembered."""
        _, made = self._made[0]
        if made.verdict == "approved":
            spend = self._batch.expected(made)
            self._foreseen = spend, show_spend(spend)

    def _show(self, spend: SpendRow) -> Transaction:
        if self._foreseen is not None:
            expected, shown = self._foreseen
            # All else that is shown of an approved spend is what was asked, and its time.
            like = msgspec.structs.replace(expected.used, transfers=spend.used.transfers)
            if like == spend.used:
                shown.created_at = shown.updated_at = iso(spend.created_at)
                return shown
        return show_spend(spend)

    def remember(self, written: Written) -> None:
        """What was written, for the next batch."""
        self._batch.remember(written)

    def answer(self, written: Written) -> None:
        """Answers what was written. Nothing of it may be left without an answer, whatever goes
        wrong here: it would be taken for not written."""
        for waiting, made in self._made:
            if made.request.agent_id in written.found:
                try:
                    spend = self._batch.spend(made, written, self._approval_seconds)
                    waiting.answer_with(Authorised(_body(self._show(spend)), replayed=False))
                except Exception as problem:  # noqa: BLE001 - the spend stands; its key finds it
                    waiting.answer_with(problem)
        for waiting, first in self._repeats:
            key, first_key = waiting.request.key, first.request.key
            outcome = first.outcome
            if key is not None and first_key is not None and isinstance(outcome, Authorised):
                waiting.answer_with(_replay(key, first_key.fingerprint, outcome.body))
            elif outcome is not None:
                waiting.answer_with(outcome)


class AuthorisedPurchase(NamedTuple):
    """The spend of a purchase, when that got its price, and what was presented with it."""

    spend: SpendRow
    priced_at: datetime
    presented: Presenting | None


async def authorise_purchase(
    tx: Tx,
    request: SpendRequest,
    of_purchase: OfPurchase,
    agent: Remembered,
    known: Known,
    bounds: Bounds,
    memory: Memory,
    locked_at: datetime | None,
    approval_seconds: int,
    sign: Callable[[], Awaitable[Presenting | None]] | None = None,
) -> AuthorisedPurchase | None:
    """Decides and writes the spend of a purchase, which gets its price with it. The seller pays
    what it costs on the chain. `sign` is asked where it is approved, and what it returns is
    presented in the same commit.

    In a transaction that locked all that counts it (`lock_to_decide`) at `locked_at`; or, with
    None, by a statement that is a transaction by itself: then None is returned, and nothing was
    written, where the decision does not stand on what the write found. Raises SerializationError
    as `Batch.write` does.
    """
    agent.recipients[request.recipient] = known
    batch = Batch(bounds, set(), memory, metered=agent.is_metered)
    made = batch.decide(request, agent)
    if sign is not None and made.verdict == "approved":
        of_purchase = of_purchase._replace(presenting=await sign())
    written = await batch.write(tx, locked_at, approval_seconds, of_purchase)
    found = written.found.get(agent.agent_id)
    if found is None:
        check(locked_at is None, "under its lock a wallet's guard holds")
        return None
    spend = batch.spend(made, written, approval_seconds, of_purchase.id)
    at = present(found.priced_at, "a purchase gets its price with its spend")
    return AuthorisedPurchase(spend, at, of_purchase.presenting)


def _body(shown: Transaction) -> bytes:
    return b'{"data":' + _encode(shown) + b"}"


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

    def note(self, keys: Sequence[IdempotencyKey]) -> bool:
        """Remembers that these are used; returns whether any of them may have been before."""
        hashes = {hash(key.place) for key in keys}
        is_new = hashes.isdisjoint(self._newer) and hashes.isdisjoint(self._older)
        if len(self._newer) >= MAX_RECENT_KEYS:
            self._newer, self._older = set(), self._newer
        self._newer |= hashes
        return not is_new
