"""The guard of a batch: it holds exactly where every decision of the batch stays what it is."""

from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bursar.policy.engine import (
    RejectCode,
    Terms,
    Used,
    Verdict,
    first_exceeded,
    judge,
    waits,
)
from bursar.policy.guard import Guard, MeterGuard
from bursar.policy.limits import METER, BudgetTerms, Limit, Window

MOST: Final = 999_999_999_999_999_999


class Asked(NamedTuple):
    terms: Terms
    amount_micros: int
    cost_lamports: int


class Counters(NamedTuple):
    """What a wallet has before a batch."""

    spent: int
    available: int
    lamports: int
    pending: int


Verdicts = list[tuple[Verdict, RejectCode | None]]


def decide_all(batch: Sequence[Asked], before: Counters) -> tuple[Verdicts, Guard]:
    """Decides one after the other, as a batch is, on what the earlier ones left."""
    guard, verdicts = Guard(), Verdicts()
    micros = lamports = pendings = 0
    for terms, amount, cost in batch:
        used = Used(
            before.spent + micros,
            before.available - micros,
            before.lamports + lamports,
            cost,
            before.pending + pendings,
            0,
        )
        code = judge(terms, used, amount)
        guard.hold(terms, amount, cost, code, Used(micros, 0, lamports, 0, pendings, 0))
        waiting = waits(terms, amount)
        verdicts.append(("rejected" if code else "pending" if waiting else "approved", code))
        if code is None:
            micros, lamports, pendings = micros + amount, lamports + cost, pendings + waiting
    return verdicts, guard


def holds(guard: Guard, found: Counters) -> bool:
    """As `write_spends` compares them."""
    return (
        guard.spent_least <= found.spent <= guard.spent_most
        and guard.available_least <= found.available <= guard.available_most
        and guard.lamports_least <= found.lamports <= guard.lamports_most
        and guard.pending_least <= found.pending <= guard.pending_most
    )


# Small numbers meet often; what is boundless lets the rules after it speak.
AMOUNTS: Final = st.integers(1, 8)
CAPS: Final = st.integers(0, 16) | st.just(MOST)
COUNTERS: Final = st.builds(
    Counters,
    # Above the caps too: a cap may be lowered below what was used.
    spent=st.integers(0, 20),
    available=st.integers(0, 20) | st.just(4 * MOST),
    lamports=st.integers(0, 10),
    pending=st.integers(0, 5),
)
TERMS: Final = st.builds(
    Terms,
    agent_status=st.just("active"),
    frozen=st.just(False),
    lists=st.just("ppp"),
    host_refused=st.just(False),
    cap_micros_per_transaction=st.none() | st.integers(0, 8),
    cap_micros_daily=CAPS,
    approval_threshold_micros=st.none() | st.integers(0, 6),
    network_budget_lamports=st.integers(0, 12) | st.just(1_000),
    payment_lamports=st.just(1),
    pending_max=st.integers(0, 4),
)
REFUSING: Final = st.builds(
    lambda terms, changes: structs.replace(terms, **changes),
    TERMS,
    st.sampled_from(
        [{"stopped": True}, {"frozen": True}]
        + [{"agent_status": status} for status in ("terminated", "paused")]
        + [{"lists": lists} for lists in ("fpp", "pfp", "ppf", "fff")]
    ),
)


@st.composite
def batches(draw: st.DrawFn) -> list[Asked]:
    """Requests of one agent: its caps are the same for all, what the lists say is not."""
    caps = draw(TERMS)
    terms = st.sampled_from(["ppp", "ppp", "ppp", "pfp"]).map(
        lambda lists: structs.replace(caps, lists=lists)
    )
    asked = st.builds(Asked, terms, AMOUNTS, st.integers(1, 3))
    return draw(st.lists(asked, min_size=1, max_size=6))


@given(batches(), COUNTERS)
def test_a_guard_holds_where_its_batch_was_decided(batch: list[Asked], remembered: Counters):
    _, guard = decide_all(batch, remembered)
    assert holds(guard, remembered)


@settings(max_examples=1_000)
@given(batches(), COUNTERS, st.data())
def test_a_guard_holds_exactly_where_every_decision_stays(
    batch: list[Asked], remembered: Counters, data: st.DataObject
):
    """Goal: what is written was decided on what was there; and what moved without changing a
    decision costs no second look."""
    decided, guard = decide_all(batch, remembered)

    def near(least: int, most: int, now: int) -> st.SearchStrategy[int]:
        edges = [now, now, least - 1, least, most, most + 1]
        return st.sampled_from([n for n in edges if 0 <= n <= 4 * MOST]) | st.integers(0, 20)

    found = Counters(
        data.draw(near(guard.spent_least, guard.spent_most, remembered.spent)),
        data.draw(near(guard.available_least, guard.available_most, remembered.available)),
        data.draw(near(guard.lamports_least, guard.lamports_most, remembered.lamports)),
        # An integer has no room beyond the guard's end.
        data.draw(near(guard.pending_least, min(guard.pending_most, 10), remembered.pending)),
    )
    again, _ = decide_all(batch, found)
    assert holds(guard, found) == (again == decided)


@given(REFUSING, COUNTERS, st.lists(AMOUNTS, min_size=1, max_size=6))
def test_what_rests_on_the_rules_alone_is_guarded_by_nothing_else(
    terms: Terms, remembered: Counters, amounts: list[int]
):
    """Goal: a paused agent that goes on asking never misses, whatever its wallet does meanwhile."""
    batch = [Asked(terms, amount, 1) for amount in amounts]
    _, guard = decide_all(batch, remembered)
    assert guard == Guard()


def test_an_exhausted_budget_goes_on_refusing_without_a_miss():
    """Goal: neither a deposit nor a settlement, nor more that was spent, makes it decide again."""
    terms = Terms(
        agent_status="active",
        frozen=False,
        lists="ppp",
        host_refused=False,
        cap_micros_per_transaction=None,
        cap_micros_daily=100,
        approval_threshold_micros=None,
        network_budget_lamports=1_000,
        payment_lamports=1,
        pending_max=4,
    )
    verdicts, guard = decide_all([Asked(terms, 10, 1)] * 3, Counters(100, 50, 500, 0))
    assert {code for _, code in verdicts} == {RejectCode.DAILY_CAP_EXCEEDED}
    for found in (
        Counters(100, 5_000, 500, 0),
        Counters(100, 0, 400, 3),
        Counters(91, 50, 500, 0),
        Counters(200, 50, 500, 0),
    ):
        assert holds(guard, found)
    # A release made room for one of them.
    assert not holds(guard, Counters(90, 50, 500, 0))


# Meters -------------------------------------------------------------------------------------------

PLAIN: Final = Terms(
    agent_status="active",
    frozen=False,
    lists="ppp",
    host_refused=False,
    cap_micros_per_transaction=None,
    cap_micros_daily=MOST,
    approval_threshold_micros=None,
    network_budget_lamports=1_000,
    payment_lamports=1,
    pending_max=4,
)
# By the meter's id; an agent's own is the wallet's.
Numbers = dict[str, tuple[int, ...]]


class Counted(NamedTuple):
    """A request, and whose it is."""

    agent_id: str
    terms: Terms
    amount_micros: int


class Outcome(NamedTuple):
    code: RejectCode | None
    limit_id: str | None


def decide_metered(
    batch: Sequence[Counted], before: Numbers
) -> tuple[list[Outcome], dict[str, MeterGuard]]:
    """Requests of several agents, one after the other, on meters that they share."""
    meters = {id_: MeterGuard(id_, 1, numbers) for id_, numbers in before.items()}
    outcomes: list[Outcome] = []
    for agent_id, terms, amount in batch:
        counted = [meters[agent_id], *(meters[id_] for id_ in terms.meter_ids)]
        used = Used(0, MOST, 0, 1, 0, 0, tuple(n for meter in counted for n in meter.now()))
        code, first = judge(terms, used, amount), first_exceeded(terms, used, amount)
        Guard().hold(terms, amount, 1, code, Used(0, 0, 0, 0, 0, 0), counted)
        outcomes.append(Outcome(code, None if first is None else first.limit.id))
        for meter in counted:
            meter.decisions += 1
            meter.moves += code is None
            meter.micros += 0 if code else amount
    return outcomes, meters


def pairs(meter: MeterGuard) -> list[tuple[int, int]]:
    """Least and most of each number but the first, as the schema reads them."""
    bounds = [int(number) for number in meter.bounds().strip("{}").split(",")]
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def all_within(meters: dict[str, MeterGuard], found: Numbers) -> bool:
    return all(
        least <= number <= most
        for id_, meter in meters.items()
        for (least, most), number in zip(pairs(meter), found[id_][1:], strict=True)
    )


WINDOW: Final[st.SearchStrategy[Window]] = st.sampled_from(("hour", "month", "lifetime"))
# A hundred numbers drawn one by one would take longer than all else.
CHANCE: Final = st.integers(0, 2**32).map(Random)


@st.composite
def limits(draw: st.DrawFn, name: str, *, most: int, single: bool, recipient: bool) -> list[Limit]:
    made: list[Limit] = []
    for number in range(draw(st.integers(0, most))):
        measures = draw(st.sampled_from(("amount", "count") if single else ("both",)))
        amount = draw(st.integers(0, 16)) if measures != "count" else None
        count = draw(st.integers(0, 9)) if measures != "amount" else None
        to = "a.example.com" if recipient and draw(st.booleans()) else None
        made.append(Limit(f"{name}{number}", draw(WINDOW), amount, count, to))
    return made


@st.composite
def metered_batches(draw: st.DrawFn, *, single: bool) -> tuple[list[Counted], Numbers]:
    """Two agents with limits of their own, below budgets of up to three levels that they share."""
    levels = [
        BudgetTerms(
            f"budget{number}",
            False,
            tuple(draw(limits(f"b{number}.", most=2, single=single, recipient=False))),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    terms: dict[str, Terms] = {}
    for agent_id in ("one", "two"):
        own = draw(limits(f"{agent_id}.", most=6, single=single, recipient=True))
        above = levels[draw(st.integers(0, len(levels))) :]
        terms[agent_id] = structs.replace(PLAIN, limits=tuple(own), budgets=tuple(above))
    agents = st.sampled_from(sorted(terms))
    asked = st.builds(lambda id_, amount: Counted(id_, terms[id_], amount), agents, AMOUNTS)
    batch = draw(st.lists(asked, min_size=1, max_size=6))
    named = {id_ for c in batch for id_ in (c.agent_id, *c.terms.meter_ids)}
    chance = draw(CHANCE)
    return batch, {id_: tuple(chance.choices(range(13), k=METER)) for id_ in sorted(named)}


def moved(chance: Random, meters: dict[str, MeterGuard], before: Numbers) -> Numbers:
    """Other numbers: most as they were, some at an edge of their bounds or beyond it."""
    found: Numbers = {}
    for id_, meter in meters.items():
        decisions, *numbers = before[id_]
        for place, (least, most) in enumerate(pairs(meter)):
            edges = [n for n in (least - 1, least, most, most + 1) if 0 <= n <= 100]
            numbers[place] = chance.choice([*[numbers[place]] * 16, *edges, chance.randrange(20)])
        found[id_] = (decisions, *numbers)
    return found


@given(metered_batches(single=False))
def test_meters_are_within_bounds_where_their_batch_was_decided(made: tuple[Any, Numbers]):
    batch, before = made
    _, meters = decide_metered(batch, before)
    assert all_within(meters, before)


@settings(max_examples=1_000)
@given(metered_batches(single=True), CHANCE)
def test_meters_are_within_bounds_exactly_where_every_decision_stays(
    made: tuple[Any, Numbers], chance: Random
):
    """Goal: the same first limit fails or none does, whatever agents the meters are shared by."""
    batch, before = made
    decided, meters = decide_metered(batch, before)
    found = moved(chance, meters, before)
    again, _ = decide_metered(batch, found)
    assert all_within(meters, found) == (again == decided)


@settings(max_examples=500)
@given(metered_batches(single=False), CHANCE)
def test_a_limit_on_amount_and_count_fails_by_either(made: tuple[Any, Numbers], chance: Random):
    """Goal: within the bounds nothing changes. Outside it may fail by the other one, and so be
    decided again for nothing."""
    batch, before = made
    decided, meters = decide_metered(batch, before)
    found = moved(chance, meters, before)
    if all_within(meters, found):
        assert decide_metered(batch, found)[0] == decided


def test_an_exhausted_meter_goes_on_refusing_without_a_miss():
    """Goal: whatever more is spent by others; only a release makes it decide again."""
    limit = Limit("lim_1", "day", 100, None)
    terms = structs.replace(PLAIN, budgets=(BudgetTerms("bud_1", False, (limit,)),))
    full = (7, *(95, 3) * 5)
    before: Numbers = {"one": (0,) * METER, "bud_1": full}
    outcomes, meters = decide_metered([Counted("one", terms, 10)] * 3, before)
    assert set(outcomes) == {Outcome(RejectCode.BUDGET_EXCEEDED, "lim_1")}
    for micros in (91, 100, MOST):
        assert all_within(meters, before | {"bud_1": (9, *(micros, 50) * 5)})
    assert not all_within(meters, before | {"bud_1": (9, *(90, 3) * 5)})
