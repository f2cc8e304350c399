"""The replay: recorded requests decided again, as they were and as a draft would have it.

No clock and no database. Each request is judged on the numbers that it was judged on then, moved by
what earlier requests would have left differently: deposits, withdrawals, settlement and releases
stay as they were recorded. So a draft that changes nothing decides as it was decided, and
`Outcome.same` says of every request whether the engine still decides it so.
"""

from dataclasses import dataclass
from datetime import date
from heapq import heappop, heappush
from typing import NamedTuple

from bursar.backtest.draft import Draft
from bursar.backtest.meter import DAY, Meter
from bursar.backtest.recorded import Ending, Recorded
from bursar.policy.engine import RejectCode, Terms, Used, Verdict, judge, waits

Decided = tuple[Verdict, RejectCode | None]


class Outcome(NamedTuple):
    """A request, whether it is decided again as it was, and what the draft makes of it."""

    request: Recorded
    same: bool
    would: Decided


@dataclass(slots=True)
class _Open:
    """A spend that was counted, while its end is not known."""

    request: Recorded
    # The meters beside the wallet's that count it under the draft.
    meter_ids: tuple[str, ...]
    would_count: bool
    # Whether it waits for a person, and would not.
    waits_less: bool
    is_approved: bool = False


class _Difference(NamedTuple):
    """How a wallet's difference from what was recorded changes, from a place of its journal on."""

    transfer: int
    order: int
    day: date
    available_micros: int
    lamports: int
    pendings: int


class _Wallet:
    """What a wallet would have beyond what was recorded."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.available_micros = 0
        # Of the day.
        self.lamports = 0
        self.pendings = 0
        self._day: date | None = None
        self._differences: list[_Difference] = []
        # Among its decisions, where spends stopped waiting that would never have waited.
        self._approvals: list[int] = []

    def come_to(self, request: Recorded) -> None:
        """Just before this decision."""
        self.meter.come_to(request.created_at, request.used.transfers)
        if request.created_at.date() != self._day:
            self._day = request.created_at.date()
            self.lamports = 0
        while self._approvals and self._approvals[0] < request.decision_number:
            heappop(self._approvals)
            self.pendings += 1
        while self._differences and self._differences[0].transfer <= request.used.transfers:
            change = heappop(self._differences)
            self.available_micros += change.available_micros
            self.pendings += change.pendings
            if change.day == self._day:
                self.lamports += change.lamports

    def count(self, request: Recorded, *, was: bool, would: bool, waits_less: bool) -> None:
        self.meter.count(request.created_at, request.amount_micros, was=was, would=would)
        self.available_micros += (was - would) * request.amount_micros
        self.lamports += (would - was) * request.used.network_cost_lamports
        self.pendings -= waits_less

    def approve(self, approved_after: int) -> None:
        heappush(self._approvals, approved_after)

    def end(self, spend: _Open, ending: Ending, transfer: int) -> None:
        request = spend.request
        if ending.is_released:
            self.meter.release(
                request.created_at, request.amount_micros, transfer, would=spend.would_count
            )
        # What was given back to the wallet would not have been taken; what the payment cost would
        # not have been paid.
        freed = request.used.network_cost_lamports - ending.network_lamports
        differs = not spend.would_count
        change = _Difference(
            transfer,
            request.decision_number,
            request.created_at.date(),
            -request.amount_micros if differs and ending.is_released else 0,
            freed if differs else 0,
            int(spend.waits_less and not spend.is_approved),
        )
        if any(change[3:]):
            heappush(self._differences, change)


class Replay:
    """Is fed requests in the order of `in_order`. Memory grows with the wallets and meters, and
    with spends whose end is not known."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._wallets: dict[str, _Wallet] = {}
        self._meters: dict[tuple[str, str], Meter] = {}
        self._open: dict[str, _Open] = {}

    def begin(self, agent_id: str, micros: int, spends: int) -> None:
        """What a wallet had spent in its life before the first request that is fed."""
        meter = self._wallet(agent_id).meter
        for numbers in (meter.was, meter.would):
            numbers[-2] += micros
            numbers[-1] += spends

    def count(self, request: Recorded) -> None:
        """A request from before the time that is asked for: its wallet counts it as it was."""
        if request.verdict == "rejected":
            return
        wallet = self._wallet(request.agent_id)
        wallet.come_to(request)
        wallet.count(request, was=True, would=True, waits_less=False)
        self._note(_Open(request, (), would_count=True, waits_less=False))

    def decide(self, request: Recorded) -> Outcome:
        used, terms = request.used, self._draft.terms_of(request)
        wallet = self._wallet(request.agent_id)
        wallet.come_to(request)
        recounted = wallet.meter.put_right(DAY, (used.spent_today_micros,))
        if used.meters:
            wallet.meter.put_right(0, request.meter_numbers(0))
        would = _decided(
            terms,
            Used(
                wallet.meter.would[DAY],
                used.available_micros + wallet.available_micros,
                used.network_today_lamports + wallet.lamports,
                used.network_cost_lamports,
                used.pending_count + wallet.pendings,
                used.transfers,
                self._numbers(wallet, request, terms) if terms.is_metered else (),
            ),
            request.amount_micros,
        )
        again = _decided(request.terms, used, request.amount_micros)
        self._count(wallet, request, terms.meter_ids, would[0])
        same = recounted and again == (request.verdict, request.reject_code)
        return Outcome(request, same, would)

    @property
    def open_ids(self) -> list[str]:
        """Spends whose end is not known yet."""
        return list(self._open)

    def learn(self, spend_id: str, ending: Ending) -> None:
        """What has become of one of them since."""
        self._note(self._open.pop(spend_id), ending)

    def _wallet(self, agent_id: str) -> _Wallet:
        wallet = self._wallets.get(agent_id)
        if wallet is None:
            wallet = self._wallets[agent_id] = _Wallet()
        return wallet

    def _numbers(self, wallet: _Wallet, request: Recorded, terms: Terms) -> tuple[int, ...]:
        """What its meters would have counted."""
        numbers = [0, *wallet.meter.would]
        recorded = {meter_id: place for place, meter_id in enumerate(request.terms.meter_ids)}
        for meter_id in terms.meter_ids:
            key = _key(request, meter_id)
            meter = self._meters.get(key)
            if meter is None:
                meter = self._meters[key] = Meter()
            place = recorded.get(meter_id)
            meter.come_to(request.created_at, self._place(request, meter_id, place))
            if place is not None:
                meter.put_right(0, request.meter_numbers(1 + place))
            numbers += (0, *meter.would)
        return tuple(numbers)

    def _place(self, request: Recorded, meter_id: str, place: int | None) -> int:
        """Wallets share a budget, so it has an order of its own. A limit of one recipient is of one
        wallet and has that wallet's."""
        if place is None or _is_of_wallet(meter_id):
            return request.used.transfers
        return request.meter_place(place)

    def _count(
        self, wallet: _Wallet, request: Recorded, meter_ids: tuple[str, ...], would: Verdict
    ) -> None:
        was_counts, would_counts = request.verdict != "rejected", would != "rejected"
        if not was_counts and not would_counts:
            return
        # What would newly wait counts as approved, so it waits in neither history.
        waits_less = request.verdict == "pending" and would != "pending"
        wallet.count(request, was=was_counts, would=would_counts, waits_less=waits_less)
        for meter_id in meter_ids:
            self._meters[_key(request, meter_id)].count(
                request.created_at, request.amount_micros, was=was_counts, would=would_counts
            )
        if was_counts:
            self._note(_Open(request, meter_ids, would_counts, waits_less))

    def _note(self, spend: _Open, ending: Ending | None = None) -> None:
        """What is known of its end; until that is all, it stays open."""
        request = spend.request
        ending = ending or request.ending
        wallet = self._wallet(request.agent_id)
        if ending.approved_after is not None and not spend.is_approved:
            spend.is_approved = True
            if spend.waits_less:
                wallet.approve(ending.approved_after)
        if ending.transfer is None:
            self._open[request.id] = spend
            return
        wallet.end(spend, ending, ending.transfer)
        if ending.is_released:
            self._release(spend, ending, ending.transfer)

    def _release(self, spend: _Open, ending: Ending, transfer: int) -> None:
        request = spend.request
        places = dict(zip(request.terms.meter_ids, ending.released_after, strict=False))
        for meter_id in spend.meter_ids:
            in_budget = meter_id in places and not _is_of_wallet(meter_id)
            self._meters[_key(request, meter_id)].release(
                request.created_at,
                request.amount_micros,
                places[meter_id] if in_budget else transfer,
                would=spend.would_count,
            )


def _is_of_wallet(meter_id: str) -> bool:
    """Whether it is that of a limit with a recipient, and not a budget's."""
    return meter_id.startswith("lim_")


def _key(request: Recorded, meter_id: str) -> tuple[str, str]:
    """Agents share budgets. A draft's limit is each agent's own, though all have its id."""
    return (request.agent_id if _is_of_wallet(meter_id) else "", meter_id)


def _decided(terms: Terms, used: Used, amount_micros: int) -> Decided:
    code = judge(terms, used, amount_micros)
    if code is not None:
        return "rejected", code
    return ("pending" if waits(terms, amount_micros) else "approved"), None
