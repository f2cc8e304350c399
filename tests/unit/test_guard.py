"""The guard of a batch: it holds exactly where every decision of the batch stays what it is."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bursar.policy.engine import RejectCode, Terms, Used, Verdict, judge, waits
from bursar.policy.guard import Guard

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
