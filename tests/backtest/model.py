"""A world without a database: wallets, meters and the engine, written as plainly as can be.

It runs the same story twice: once as it happened, and once under a draft, with the same deposits
and the same ends of spends. What the second run decides is what a replay of the first must find.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec

from bursar.backtest.draft import Draft
from bursar.backtest.recorded import Ending, Recorded
from bursar.backtest.replay import Decided
from bursar.policy.engine import Terms, Used, judge, terms_of, waits
from bursar.policy.limits import WINDOWS, BudgetTerms, Limit, window_start
from bursar.policy.model import Bounds, Policy, PolicyChange

HOSTS: Final = ("api.example.com", "b.example.com", "example.org")
ENTRIES: Final = ("*", "*.example.com", "example.org")
BOUNDS: Final = Bounds(
    pending_max=3, agent_network_lamports=400, account_network_lamports=10**9, payment_lamports=10
)
BEGIN: Final = datetime(2026, 2, 27, 20, tzinfo=UTC)


@dataclass
class Count:
    """A meter: what it counts is counted anew each time it is asked."""

    sequence: int = 0
    counted: dict[int, tuple[datetime, int]] = field(default_factory=dict)

    def numbers(self, at: datetime) -> tuple[int, ...]:
        found = [self.sequence]
        for window in WINDOWS:
            start = window_start(window, at)
            some = [
                micros
                for moment, micros in self.counted.values()
                if window_start(window, moment) == start
            ]
            found += [sum(some), len(some)]
        return tuple(found)


@dataclass
class Wallet:
    available: int = 0
    transfers: int = 0
    decisions: int = 0
    pending: set[int] = field(default_factory=set)
    lamports: dict[int, tuple[datetime, int]] = field(default_factory=dict)
    own: Count = field(default_factory=Count)


@dataclass
class Step:
    """A request, a deposit, or something that becomes of the request with this number."""

    kind: str
    agent: str
    at: datetime
    micros: int = 0
    recipient: str = ""
    request: int = -1


@dataclass
class Story:
    """What is the same in both runs."""

    agents: dict[str, Policy]
    chains: dict[str, tuple[str, ...]]
    budgets: dict[str, tuple[Limit, ...]]
    steps: list[Step]


@dataclass
class Run:
    """One run of a story, with a draft in force from a step on, or without."""

    story: Story
    draft: Draft | None = None
    draft_from: int = 0
    # What the run without a draft decided.
    first: "list[Decided] | None" = None
    decided: list[Decided] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)
    wallets: dict[str, Wallet] = field(default_factory=dict)
    meters: dict[tuple[str, str], Count] = field(default_factory=dict)
    endings: dict[int, dict[str, Any]] = field(default_factory=dict)

    def run(self) -> "Run":
        self.wallets = {agent: Wallet() for agent in self.story.agents}
        for number, step in enumerate(self.story.steps):
            wallet = self.wallets[step.agent]
            match step.kind:
                case "deposit":
                    wallet.available += step.micros
                    wallet.transfers += 1
                case "ask":
                    self._ask(step, wallet, number >= self.draft_from)
                case _:
                    self._become(step, wallet)
        return self

    def _terms(self, step: Step, drafted: bool) -> Terms:
        policy = self.story.agents[step.agent]
        budgets = self.story.budgets
        draft = self.draft if drafted else None
        if draft is not None and step.agent in draft.agent_ids:
            policy = policy.changed(draft.policy)
        if draft is not None and draft.budget_id is not None:
            budgets = {**budgets, draft.budget_id: draft.budget_limits or ()}
        return terms_of(
            policy,
            BOUNDS,
            stopped=False,
            agent_status="active",
            wallet_address="its own",
            recipient=step.recipient,
            pay_to=f"address of {step.recipient}",
            pays_blocked_host=False,
            budgets=tuple(
                BudgetTerms(id_, False, budgets[id_]) for id_ in self.story.chains[step.agent]
            ),
        )

    def _ask(self, step: Step, wallet: Wallet, drafted: bool) -> None:
        number = len(self.decided)
        terms = self._terms(step, drafted)
        policy = self.story.agents[step.agent]
        counts = [self.meters.setdefault(key(step.agent, id_), Count()) for id_ in terms.meter_ids]
        metered = bool(policy.limits or terms.is_metered)
        meters = [n for count in (wallet.own, *counts) for n in count.numbers(step.at)]
        of_day = [m for at, m in wallet.lamports.values() if at.date() == step.at.date()]
        used = Used(
            wallet.own.numbers(step.at)[3],
            wallet.available,
            sum(of_day),
            BOUNDS.payment_lamports,
            len(wallet.pending),
            wallet.transfers,
            tuple(meters) if metered else (),
        )
        code = judge(terms, used, step.micros)
        verdict = "rejected" if code else "pending" if waits(terms, step.micros) else "approved"
        wallet.decisions += 1
        for count in (wallet.own, *counts):
            count.sequence += 1
        self.decided.append((verdict, code))
        self.recorded.append(
            Recorded(
                id=f"txn_{number:06}",
                agent_id=step.agent,
                created_at=step.at,
                amount_micros=step.micros,
                recipient=step.recipient,
                pay_to=f"address of {step.recipient}",
                wallet_address="its own",
                verdict=verdict,
                reject_code=code,
                terms=terms,
                used=used,
                decision_number=wallet.decisions,
            )
        )
        if code is not None:
            return
        wallet.available -= step.micros
        wallet.transfers += 1
        wallet.lamports[number] = step.at, BOUNDS.payment_lamports
        for count in (wallet.own, *counts):
            count.counted[number] = step.at, step.micros
        # What newly waits is approved at once.
        if verdict == "pending" and (self.first is None or self.first[number][0] == "pending"):
            wallet.pending.add(number)

    def _become(self, step: Step, wallet: Wallet) -> None:
        """Of a request that the first run counted, and only while this one does."""
        number = step.request
        request = self.recorded[number]
        decided = (self.first or self.decided)[number][0]
        ending = self.endings.setdefault(number, {})
        if decided == "rejected" or "transfer" in ending:
            return
        if step.kind == "approve":
            if decided == "pending" and "approved_after" not in ending:
                ending["approved_after"] = wallet.decisions
                wallet.pending.discard(number)
            return
        if step.kind == "pay" and decided == "pending" and "approved_after" not in ending:
            return
        ending["transfer"] = wallet.transfers + 1
        ending["network_lamports"] = cost = 7 if step.kind == "pay" else 0
        if number not in wallet.own.counted:
            return
        wallet.transfers += 1
        wallet.pending.discard(number)
        wallet.lamports[number] = request.created_at, cost
        if step.kind == "pay":
            return
        wallet.available += request.amount_micros
        ending["is_released"] = True
        counts = [self.meters[key(step.agent, id_)] for id_ in request.terms.meter_ids]
        ending["released_after"] = tuple(count.sequence for count in counts)
        for count in counts:
            count.sequence += 1
            del count.counted[number]
        del wallet.own.counted[number]

    def history(self) -> list[Recorded]:
        """As the database would have it when the story is over: equal terms are one object, of
        whichever agent and recipient they are."""
        terms: dict[Terms, Terms] = {}
        return [
            msgspec.structs.replace(
                request,
                terms=terms.setdefault(request.terms, request.terms),
                ending=Ending(**self.endings.get(number, {})),
            )
            for number, request in enumerate(self.recorded)
        ]


def key(agent: str, meter_id: str) -> tuple[str, str]:
    """Agents share budgets; a limit of one recipient is each agent's own."""
    return (agent if meter_id.startswith("lim_") else "", meter_id)


def story(chance: Random, requests: int) -> Story:
    """Agents with and without limits, some below budgets, and what happens to them."""
    names = [f"bud_{number}" for number in range(3)]
    budgets = {name: some_limits(chance, f"lim_{name}", 60) for name in names}
    chains = {
        "ag_a": (),
        "ag_b": (names[0], names[1]),
        "ag_c": (names[2], names[1]),
        "ag_d": (names[1],),
    }
    agents = {agent: some_policy(chance, agent) for agent in chains}
    steps = [Step("deposit", agent, BEGIN, chance.randrange(20, 200)) for agent in agents]
    at, asked = BEGIN, 0
    while asked < requests:
        if chance.random() < 0.5:
            at += timedelta(minutes=chance.choice((0, 1, 7, 40, 400)))
        agent = chance.choice(list(agents))
        kind = chance.choice(("ask", "ask", "ask", "approve", "pay", "release", "deposit"))
        if kind == "ask":
            asked += 1
            micros, host = chance.randrange(1, 12), chance.choice(HOSTS)
            steps.append(Step(kind, agent, at, micros, host))
        elif kind == "deposit":
            steps.append(Step(kind, agent, at, chance.randrange(1, 20)))
        elif asked:
            request = chance.randrange(asked)
            asks = [step for step in steps if step.kind == "ask"]
            steps.append(Step(kind, asks[request].agent, at, request=request))
    return Story(agents, chains, budgets, steps)


def some_policy(chance: Random, agent: str) -> Policy:
    return Policy(
        cap_micros_daily=chance.choice((20, 50, 1_000)),
        cap_micros_per_transaction=chance.choice((None, 9)),
        approval_threshold_micros=chance.choice((None, 4, 8)),
        allowlist=chance.choice((("*",), ("*.example.com",))),
        limits=chance.choice(((), some_limits(chance, f"lim_{agent}", 40, with_recipients=True))),
    )


def some_change(chance: Random, before: Policy) -> PolicyChange:
    """Of a policy; any of its fields."""
    fields: dict[str, Any] = {
        "cap_micros_daily": chance.choice((0, 10, 30, 2_000)),
        "cap_micros_per_transaction": chance.choice((None, 6)),
        "approval_threshold_micros": chance.choice((None, 2, 6)),
        "allowlist": chance.choice((("*",), ("example.org", "b.example.com"))),
        "blocklist": chance.choice(((), ("example.org",))),
        "network_lamports_daily": chance.choice((None, 20)),
        "frozen": chance.random() < 0.2,
        "limits": (*before.limits[:1], *some_limits(chance, "lim_new", 40, with_recipients=True)),
    }
    chosen = chance.sample(sorted(fields), chance.randrange(1, 4))
    return PolicyChange(**{name: fields[name] for name in chosen})


def some_limits(
    chance: Random, name: str, most: int, *, with_recipients: bool = False
) -> tuple[Limit, ...]:
    return tuple(
        Limit(
            f"{name}_{number}",
            chance.choice(WINDOWS),
            chance.choice((None, chance.randrange(1, most))) if number else most,
            chance.choice((None, chance.randrange(1, 12))) if number else None,
            chance.choice((None, *ENTRIES)) if with_recipients else None,
        )
        for number in range(chance.randrange(1, 4))
    )
