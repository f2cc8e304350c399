"""The replay against a plain model: a draft's replay decides what a second run would."""

from datetime import timedelta
from random import Random

import msgspec
import pytest

from bursar.backtest.draft import Draft
from bursar.backtest.recorded import Ending, Recorded, in_order
from bursar.backtest.replay import Outcome, Replay
from bursar.backtest.report import Report
from bursar.policy.engine import RejectCode, Rule
from bursar.policy.limits import METER, BudgetTerms
from bursar.policy.model import PolicyChange
from tests.backtest.model import BOUNDS, HOSTS, Run, Step, Story, some_change, some_limits, story

SEEDS = 40
REQUESTS = 100


def replayed(draft: Draft, history: list[Recorded], since: int = 0) -> list[Outcome]:
    """By the number of each request; those before `since` are counted only."""
    replay = Replay(draft)
    earlier = {request.id for request in history[:since]}
    outcomes: list[Outcome] = []
    for request in in_order(history):
        if request.id in earlier:
            replay.count(request)
        else:
            outcomes.append(replay.decide(request))
    return sorted(outcomes, key=lambda outcome: outcome.request.id)


def some_draft(chance: Random, of: Story) -> Draft:
    agents = chance.sample(sorted(of.agents), chance.randrange(1, 4))
    budget = chance.choice((None, *of.budgets))
    return Draft(
        agent_ids=frozenset(agents),
        policy=some_change(chance, of.agents[agents[0]]),
        budget_id=budget,
        budget_limits=None if budget is None else some_limits(chance, "lim_other", 50),
        usual_network_lamports=BOUNDS.agent_network_lamports,
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_draft_decides_what_a_second_run_under_it_decides(seed: int):
    """Goal: decision for decision, with windows, budgets, approvals, payments and releases."""
    chance = Random(seed)
    told = story(chance, REQUESTS)
    first = Run(told).run()
    asked = [number for number, step in enumerate(told.steps) if step.kind == "ask"]
    # From the beginning, or from a request in the middle.
    since = chance.choice((0, REQUESTS // 3))
    draft = some_draft(chance, told)
    second = Run(told, draft, asked[since], first.decided).run()
    outcomes = replayed(draft, first.history(), since)
    assert [outcome.would for outcome in outcomes] == second.decided[since:]
    assert all(outcome.same for outcome in outcomes)


def test_the_stories_have_every_kind_of_decision():
    """Goal: the test above meets each rule that a draft can move, in both directions."""
    refused: set[RejectCode | None] = set()
    moves: set[tuple[str, str]] = set()
    for seed in range(SEEDS):
        chance = Random(seed)
        told = story(chance, REQUESTS)
        for outcome in replayed(some_draft(chance, told), Run(told).run().history()):
            refused.add(outcome.would[1])
            moves.add((outcome.request.verdict, outcome.would[0]))
    verdicts = ("approved", "pending", "rejected")
    assert moves == {(was, would) for was in verdicts for would in verdicts}
    assert refused == {
        None,
        RejectCode.POLICY_FROZEN,
        RejectCode.RECIPIENT_BLOCKED,
        RejectCode.RECIPIENT_NOT_ALLOWED,
        RejectCode.PER_TRANSACTION_CAP_EXCEEDED,
        RejectCode.DAILY_CAP_EXCEEDED,
        RejectCode.LIMIT_EXCEEDED,
        RejectCode.BUDGET_EXCEEDED,
        RejectCode.NETWORK_COST_EXCEEDED,
        RejectCode.TOO_MANY_PENDING,
        RejectCode.INSUFFICIENT_FUNDS,
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_draft_that_says_nothing_changes_nothing(seed: int):
    """Goal: what is shown as changed is the draft's doing alone, in any order of reading."""
    chance = Random(seed)
    told = story(chance, REQUESTS)
    history = Run(told).run().history()
    shuffled = chance.sample(history, len(history))
    draft = Draft(agent_ids=frozenset(told.agents))
    report = Report(draft.agent_ids)
    replay = Replay(draft)
    changes = [report.add(replay.decide(request)) for request in in_order(shuffled)]
    assert changes == [None] * REQUESTS
    assert (report.of, report.same) == (REQUESTS, REQUESTS)
    assert report.totals.current == report.totals.draft
    assert all(counts.current == counts.draft for counts in report.by_rule)


def test_a_moment_is_told_in_the_order_in_which_it_was_decided():
    """Goal: by the wallet's numbers and by each budget's, also where an agent moved from one tree
    of budgets to another within the moment."""
    (plain,) = Run(story(Random(1), 1)).run().history()

    def asked(name: str, decision: int, budgets: dict[str, int]) -> Recorded:
        meters = [0] * METER + [
            number for place in budgets.values() for number in (place, *[0] * (METER - 1))
        ]
        terms = tuple(BudgetTerms(budget, False, ()) for budget in budgets)
        return msgspec.structs.replace(
            plain,
            id=f"{name}{decision}",
            agent_id=name,
            decision_number=decision,
            terms=msgspec.structs.replace(plain.terms, limits=(), budgets=terms),
            used=msgspec.structs.replace(plain.used, meters=tuple(meters)),
        )

    stays = [
        asked("a", 1, {"team_1": 3, "all": 7}),
        asked("b", 4, {"team_2": 2, "all": 8}),
        asked("a", 2, {"team_1": 4, "all": 9}),
        asked("c", 1, {}),
        asked("c", 2, {}),
    ]
    moves = [asked("d", 1, {"other": 4}), asked("a", 3, {"other": 5})]
    for moment in (stays, stays + moves):
        for seed in range(50):
            shuffled = Random(seed).sample(moment, len(moment))
            told = [request.id for request in in_order(shuffled)]
            assert sorted(told) == sorted(request.id for request in moment)
            lines = [["a1", "b4", "a2"], ["c1", "c2"], ["a1", "a2", "a3"], ["d1", "a3"]]
            for line in lines:
                known = [id_ for id_ in line if id_ in told]
                assert [id_ for id_ in told if id_ in known] == known


@pytest.mark.parametrize("seed", range(10))
def test_ends_may_be_learned_later(seed: int):
    """Goal: a draft that is followed while spends are still open decides the same."""
    chance = Random(seed)
    told = story(chance, REQUESTS)
    first = Run(told).run()
    draft = some_draft(chance, told)
    known = {request.id: request.ending for request in first.history()}
    replay = Replay(draft)
    found: dict[str, Outcome] = {}
    for request in in_order(first.history()):
        found[request.id] = replay.decide(msgspec.structs.replace(request, ending=Ending()))
        for spend_id in replay.open_ids:
            replay.learn(spend_id, known[spend_id])
    second = Run(told, draft, 0, first.decided).run()
    assert [found[id_].would for id_ in sorted(found)] == second.decided


def test_what_was_recorded_wrongly_is_not_the_same():
    """Goal: `same` is no formality; a decision or a number that does not follow is found."""
    told = Story(
        agents={"ag_a": story(Random(1), 1).agents["ag_a"]},
        chains={"ag_a": ()},
        budgets={},
        steps=[],
    )
    began = story(Random(1), 1).steps[0]
    told.steps += [began, *(Step("ask", "ag_a", began.at, 1, HOSTS[0]) for _ in range(3))]
    history = Run(told).run().history()
    draft = Draft(agent_ids=frozenset({"ag_a"}))
    assert all(outcome.same for outcome in replayed(draft, history))
    refused = msgspec.structs.replace(
        history[1], verdict="rejected", reject_code=RejectCode.INSUFFICIENT_FUNDS
    )
    assert not replayed(draft, [history[0], refused])[1].same
    more = msgspec.structs.replace(history[2].used, spent_today_micros=7)
    assert not replayed(draft, [*history[:2], msgspec.structs.replace(history[2], used=more)])[
        2
    ].same


def test_a_report_adds_up_by_day_and_rule():
    """Goal: totals, days, rules and changes of a small case that can be read."""
    at = story(Random(1), 1).steps[0].at
    told = Story(
        agents={
            "ag_a": story(Random(1), 1)
            .agents["ag_a"]
            .changed(
                PolicyChange(
                    cap_micros_daily=1_000,
                    cap_micros_per_transaction=None,
                    limits=(),
                    allowlist=("*",),
                    approval_threshold_micros=None,
                    frozen=False,
                )
            )
        },
        chains={"ag_a": ()},
        budgets={},
        steps=[
            Step("deposit", "ag_a", at, 100),
            Step("ask", "ag_a", at, 5, HOSTS[0]),
            Step("ask", "ag_a", at + timedelta(days=1), 8, HOSTS[0]),
            Step("ask", "ag_a", at + timedelta(days=1), 200, HOSTS[0]),
        ],
    )
    draft = Draft(
        agent_ids=frozenset({"ag_a"}),
        policy=PolicyChange(approval_threshold_micros=4, cap_micros_per_transaction=7),
    )
    report = Report(draft.agent_ids)
    changes = [report.add(outcome) for outcome in replayed(draft, Run(told).run().history())]
    totals = report.totals
    assert (totals.current.approved, totals.current.rejected) == (2, 1)
    assert (totals.draft.approved, totals.draft.pending, totals.draft.rejected) == (0, 1, 2)
    assert (totals.current.amount_micros, totals.draft.amount_micros) == (13, 5)
    assert [pair.draft.rejected for pair in report.by_day.values()] == [0, 2]
    assert [tuple(counts) for counts in report.by_rule] == [
        (Rule.PER_TRANSACTION_CAP, 0, 2),
        (Rule.FUNDS, 1, 0),
        (Rule.APPROVAL_THRESHOLD, 0, 1),
    ]
    assert [change and (change.was, change.would, change.rule) for change in changes] == [
        ("approved", "pending", Rule.APPROVAL_THRESHOLD),
        ("approved", "rejected", Rule.PER_TRANSACTION_CAP),
        None,
    ]
