"""A batch of spends while it is decided: pure arithmetic on what is remembered, one request after
the other, until it is written in one call."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from bursar.access.model import IdempotencyKey
from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS
from bursar.config import Mode
from bursar.db import Tx, quoted
from bursar.errors import check, present
from bursar.ids import new_id
from bursar.policy.engine import RejectCode, Used, Verdict, judge, waits
from bursar.policy.guard import Guard, MeterGuard
from bursar.policy.limits import METER
from bursar.policy.model import Bounds
from bursar.spend import store
from bursar.spend.memory import Known, Memory, Remembered
from bursar.spend.model import SpendRow
from bursar.spend.store import Found, OfPurchase, Rows

_encode = msgspec.json.Encoder().encode
_NO_METADATA = quoted("{}")


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


class UseOfMeter(msgspec.Struct, frozen=True):
    """A meter that counts a spend, and what the batch had added to it before."""

    meter_id: str
    decisions: int
    micros: int
    moves: int


class Made(msgspec.Struct, frozen=True):
    """A decided request, and what its batch had added to its wallet and its meters before it."""

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
    uses: tuple[UseOfMeter, ...]
    # What its meters had, as far as it is remembered: the wallet's first.
    meters: tuple[int, ...]

    def used(self, found: Found, meters: tuple[int, ...]) -> Used:
        """The numbers that it was judged on, from those of its wallet before the batch."""
        return Used(
            found.spent_micros + self.micros_before,
            found.available_micros - self.micros_before,
            found.network_lamports + self.lamports_before,
            self.cost_lamports,
            found.pending_count + self.pendings_before,
            found.transfers + self.moves_before,
            meters,
        )

    def record(self, policy_version: int) -> str:
        """As the schema's `decided_spend`."""
        request, known, key = self.request, self.known, self.request.key
        metadata = quoted(_encode(request.metadata).decode()) if request.metadata else _NO_METADATA
        return (
            f"{self.spend_id},{request.agent_id},{request.amount_micros},"
            f"{quoted(request.recipient)},{quoted(known.shown_pay_to)},{self.verdict},"
            f"{self.reject_code or ''},{quoted(request.memo)},{metadata},"
            f"{policy_version},{known.stored_terms},{quoted(request.network)},"
            f"{quoted(request.created_by)},{self.cost_lamports},{self.decisions_before},"
            f"{self.moves_before},{self.micros_before},{self.lamports_before},"
            f"{self.pendings_before},"
            f"{',' if key is None else f'{quoted(key.key)},{key.fingerprint.hex()}'}"
        )


class Written(NamedTuple):
    """The wallets that were written, as they were before; and what the meters of each spend had,
    where it has some."""

    found: dict[str, Found]
    meters: dict[str, tuple[int, ...]]


@dataclass(slots=True)
class _Wallet:
    """One agent while the requests of a batch are decided one after the other."""

    agent: Remembered
    bounds: Bounds
    # The (agent, address) whose payment reserves the rent of a token account: once for all open
    # spends of the agent.
    rents: set[tuple[str, str]]
    # None unless the batch is metered.
    meter: MeterGuard | None
    guard: Guard = field(default_factory=Guard)
    decisions: int = 0
    moves: int = 0
    micros: int = 0
    lamports: int = 0
    pendings: int = 0

    def decide(self, request: SpendRequest, meters: Sequence[MeterGuard]) -> Made:
        """`meters` are those beside the wallet's own that count this request."""
        agent = self.agent
        known = agent.recipients[request.recipient]
        terms, amount = known.terms, request.amount_micros
        rent = known.pay_to is not None and (agent.agent_id, known.pay_to) in self.rents
        cost = self.bounds.payment_lamports + (TOKEN_ACCOUNT_LAMPORTS if rent else 0)
        counted: Sequence[MeterGuard] = ()
        numbers: tuple[int, ...] = ()
        if self.meter is not None:
            counted = (self.meter, *meters)
            numbers = tuple(number for meter in counted for number in meter.now())
        used = Used(
            agent.spent_micros + self.micros,
            agent.available_micros - self.micros,
            agent.network_lamports + self.lamports,
            cost,
            agent.pending_count + self.pendings,
            0,
            numbers,
        )
        code = judge(terms, used, amount)
        added = Used(self.micros, 0, self.lamports, 0, self.pendings, 0)
        self.guard.hold(terms, amount, cost, code, added, counted)
        verdict: Verdict = "rejected" if code else "pending" if waits(terms, amount) else "approved"
        made = Made(
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
            tuple(UseOfMeter(m.id, m.decisions, m.micros, m.moves) for m in meters),
            numbers,
        )
        self.decisions += 1
        for meter in counted:
            meter.decisions += 1
        if code is None:
            self.moves += 1
            self.micros += amount
            self.lamports += cost
            self.pendings += verdict == "pending"
            for meter in counted:
                meter.moves += 1
                meter.micros += amount
            if rent and known.pay_to is not None:
                self.rents.discard((agent.agent_id, known.pay_to))
        return made

    def record(self) -> str:
        """As the schema's `touched_wallet`."""
        agent, guard = self.agent, self.guard
        # Without limits of its own nothing bounds what its own meter counts.
        bounds = self.meter.bounds() if self.meter and agent.policy.limits else None
        return (
            f"{agent.record},"
            f"{self.decisions},{self.moves},{self.micros},{self.lamports},{self.pendings},"
            f"{agent.policy.cap_micros_daily},{agent.policy.network_budget(self.bounds)},"
            f"{guard.spent_least},{guard.spent_most},"
            f"{guard.available_least},{guard.available_most},"
            f"{guard.lamports_least},{guard.lamports_most},"
            f"{guard.pending_least},{guard.pending_most},"
            f"{quoted(bounds)},{agent.budgets[0].id if agent.budgets else ''}"
        )

    def remember(self, found: Found) -> None:
        """What the wallet has after the batch."""
        agent = self.agent
        agent.spent_micros = found.spent_micros + self.micros
        agent.available_micros = found.available_micros - self.micros
        agent.network_lamports = found.network_lamports + self.lamports
        agent.pending_count = found.pending_count + self.pendings
        agent.trim()


class Batch:
    """Of agents that are all metered, or none of them: one with meters beside those of its wallets
    is written whole or not at all, since its wallets share them."""

    def __init__(
        self, bounds: Bounds, rents: set[tuple[str, str]], memory: Memory, *, metered: bool
    ) -> None:
        self._bounds = bounds
        self._rents = rents
        self._memory = memory
        self._metered = metered
        self._wallets: dict[str, _Wallet] = {}
        self._meters: dict[str, MeterGuard] = {}
        self.made: list[Made] = []

    @property
    def agent_ids(self) -> set[str]:
        return set(self._wallets)

    @property
    def meter_ids(self) -> set[str]:
        return set(self._meters)

    def decide(self, request: SpendRequest, agent: Remembered) -> Made:
        check(agent.is_metered == self._metered, "metered agents are decided by themselves")
        wallet = self._wallets.get(agent.agent_id)
        if wallet is None:
            own = None
            if self._metered:
                own = MeterGuard(agent.agent_id, agent.rules, agent.numbers)
            wallet = _Wallet(agent, self._bounds, self._rents, own)
            self._wallets[agent.agent_id] = wallet
            # Also those that count none of this batch: their rules are part of every decision.
            for budget, rules in zip(agent.budgets, agent.budget_rules, strict=True):
                # Another agent may have read it after it changed: the older rules are those that
                # the write must not find.
                meter = self._meter(budget.id)
                meter.rules = min(meter.rules, rules)
        meters: list[MeterGuard] = []
        if self._metered:
            terms = agent.recipients[request.recipient].terms
            meters = [self._meter(id_) for id_ in terms.meter_ids]
        made = wallet.decide(request, meters)
        self.made.append(made)
        return made

    async def write(
        self,
        tx: Tx,
        locked_at: datetime | None,
        approval_seconds: int,
        of_purchase: OfPurchase | None = None,
    ) -> Written:
        """The wallets whose decisions stand. Raises SerializationError when only some wallets of a
        batch with meters would have been written, or the purchase may no longer be priced: then
        nothing was."""
        if not self.made:
            return Written({}, {})
        found = await store.write_spends(
            tx,
            next(iter(self._wallets.values())).agent.life,
            locked_at,
            approval_seconds,
            self._rows(),
            of_purchase,
            self.made[0].spend_id,
        )
        # It may be committed by now, so nothing here raises.
        numbers = next((f.meters for f in found.values() if f.meters is not None), ())
        meters = {
            made.spend_id: tuple(map(int, of_spend.strip("{}").split(",")))
            for made, of_spend in zip(self.made, numbers, strict=False)
        }
        return Written(found, meters)

    def spend(
        self, made: Made, written: Written, approval_seconds: int, purchase_id: str | None = None
    ) -> SpendRow:
        """The spend as it was written."""
        agent = self._wallets[made.request.agent_id].agent
        request, known = made.request, made.known
        found = written.found[request.agent_id]
        is_pending = made.verdict == "pending"
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
            policy_version=agent.policy.version,
            verdict=made.verdict,
            terms=known.terms,
            used=made.used(found, written.meters.get(made.spend_id, ())),
            network=request.network,
            created_by=request.created_by,
            created_at=found.at,
            purchase_id=purchase_id,
            budget_id=agent.budgets[0].id if agent.budgets else None,
            expires_at=found.at + timedelta(seconds=approval_seconds) if is_pending else None,
            updated_at=found.at,
            decision_number=found.decisions + made.decisions_before + 1,
            network_lamports=0 if made.verdict == "rejected" else made.cost_lamports,
        )

    def expected(self, made: Made) -> SpendRow:
        """The spend as it will be written, if all that is remembered is so; but for its time."""
        agent = self._wallets[made.request.agent_id].agent
        hour = present(agent.hour, "what is decided without a lock is of an hour that runs")
        written = Written(
            {agent.agent_id: as_remembered(agent, hour)}, {made.spend_id: made.meters}
        )
        return self.spend(made, written, 0)

    def remember(self, written: Written) -> None:
        """What the wallets and meters that were written have after the batch."""
        for agent_id, found in written.found.items():
            self._wallets[agent_id].remember(found)
        found_meters: dict[str, tuple[int, ...]] = {}
        for made in self.made:
            numbers = written.meters.get(made.spend_id)
            if numbers is None:
                continue
            named = (made.request.agent_id, *(use.meter_id for use in made.uses))
            for place, meter_id in enumerate(named):
                # The first that it counts was judged on what it had before the batch.
                found_meters.setdefault(meter_id, numbers[place * METER : (place + 1) * METER])
        for meter_id, numbers in found_meters.items():
            wallet = self._wallets.get(meter_id)
            if wallet is None:
                self._memory.remember_meter(meter_id, self._meters[meter_id].after(numbers))
            elif wallet.meter is not None:
                wallet.agent.numbers = wallet.meter.after(numbers)

    def _meter(self, meter_id: str) -> MeterGuard:
        found = self._meters.get(meter_id)
        if found is None:
            known = present(self._memory.meter(meter_id), "a metered agent's meters are remembered")
            found = self._meters[meter_id] = MeterGuard(known.id, known.rules, known.numbers)
        return found

    def _rows(self) -> Rows:
        wallets = self._wallets
        rows = Rows(
            agent_ids=list(wallets),
            wallets=[wallet.record() for wallet in wallets.values()],
            spends=[
                made.record(wallets[made.request.agent_id].agent.policy.version)
                for made in self.made
            ],
        )
        if not self._metered:
            return rows
        return rows._replace(
            meters=[
                f"{m.id},{m.rules},{m.decisions},{m.micros},{m.moves},{quoted(m.bounds())}"
                for m in self._meters.values()
            ],
            uses=[
                f"{place},{use.meter_id},{use.decisions},{use.micros},{use.moves}"
                for place, made in enumerate(self.made, start=1)
                for use in made.uses
            ],
        )


def as_remembered(agent: Remembered, now: datetime) -> Found:
    """An agent's wallet as if it had been written."""
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
