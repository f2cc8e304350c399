"""History made by a running service: a draft's backtest decides what a second run under it does."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import pytest

from bursar.backtest.report import rule_of
from bursar.money import format_cents, format_micros
from bursar.policy.engine import RejectCode, Verdict
from tests.backtest.support import backtest, fail, reproduce
from tests.simulation.test_fleet import Operators, some_limits
from tests.simulation.world import LONG, make_world, seeded
from tests.support import Service, new_agent

HOSTS = ("api.example.com", "b.example.com", "example.org")
REQUESTS = 60
AGENTS = 3


@dataclass
class Step:
    kind: str
    agent: int
    amount: str = ""
    host: str = ""
    # Which of the requests before it.
    request: int = -1


@dataclass
class Tenant:
    """One account that lives through a story: agents, two of them below a budget."""

    service: Service
    client: httpx.AsyncClient
    agents: list[str] = field(default_factory=list)
    budget: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)

    async def begin(self, policies: list[dict[str, Any]], limits: list[dict[str, Any]]) -> None:
        made = await self.client.post("/v1/budgets", json={"name": "b", "limits": limits})
        self.budget = made.json()["data"]["id"]
        for number, policy in enumerate(policies):
            place = {"budgetId": self.budget} if number else {}
            made = await new_agent(self.client, policy=policy, **place)
            self.agents.append(made["id"])

    async def live(self, steps: list[Step], first: "list[dict[str, Any]] | None" = None) -> None:
        """`first`: what another tenant was answered whose ends of spends are the same here."""
        for step in steps:
            agent_id = self.agents[step.agent]
            if step.kind == "deposit":
                await self.service.fund(agent_id, step.amount)
            elif step.kind == "ask":
                body = {"agentId": agent_id, "amount": step.amount, "recipient": step.host}
                answer = (await self.client.post("/v1/spend/authorise", json=body)).json()["data"]
                self.answers.append(answer)
                was = None if first is None else first[len(self.answers) - 1]["status"]
                if answer["status"] == "pending" and was not in (None, "pending"):
                    # What the draft newly makes pending counts as approved.
                    await self._decide(answer["id"], "approve")
            else:
                await self._end(step, first)

    async def _end(self, step: Step, first: "list[dict[str, Any]] | None") -> None:
        """Only of spends that the first tenant had, and while this one has them."""
        was = (first or self.answers)[step.request]["status"]
        own = self.answers[step.request]
        if was == "rejected" or own["status"] == "rejected":
            return
        if step.kind == "approve":
            if was == "pending" and own["status"] == "pending":
                await self._decide(own["id"], "approve")
            return
        now = (await self.client.get(f"/v1/transactions/{own['id']}")).json()["data"]["status"]
        if now == "pending":
            await self._decide(own["id"], "deny")
        elif now == "approved":
            await fail(self.service.db, own["id"], self.agents[step.agent])

    async def _decide(self, spend_id: str, verb: str) -> None:
        answer = await self.client.post(f"/v1/transactions/{spend_id}/{verb}")
        assert answer.status_code in (200, 409), answer.text

    def decided(self) -> list[tuple[Verdict, str | None]]:
        return [(answer["status"], answer["rejectCode"]) for answer in self.answers]


def some_steps(chance: Random) -> list[Step]:
    steps = [Step("deposit", agent, "40") for agent in range(AGENTS)]
    asked: list[int] = []
    while len(asked) < REQUESTS:
        kind = chance.choice(["ask"] * 6 + ["deposit", "approve", "release", "release"])
        if kind == "ask":
            asked.append(chance.randrange(AGENTS))
            amount = format_micros(chance.randrange(1, 8_000_000))
            steps.append(Step(kind, asked[-1], amount, chance.choice(HOSTS)))
        elif kind == "deposit":
            steps.append(Step(kind, chance.randrange(AGENTS), "3"))
        elif asked:
            request = chance.randrange(len(asked))
            steps.append(Step(kind, asked[request], request=request))
    return steps


def limits_of(chance: Random) -> list[dict[str, Any]]:
    """Not of an hour, which may end between the runs."""
    return [
        {**limit, "window": chance.choice(["week", "month", "lifetime"])}
        for limit in some_limits(chance, 1, 30)
    ]


def some_policy(chance: Random) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "dailyCap": format_cents(chance.randrange(10, 90) * 1_000_000),
        "allowlist": chance.choice([["*"], ["*.example.com"]]),
    }
    if chance.random() < 0.5:
        policy["approvalThreshold"] = "6.00"
    if chance.random() < 0.5:
        policy["limits"] = limits_of(chance)
    return policy


@pytest.mark.parametrize("number", range(3))
async def test_a_draft_decides_what_a_second_run_decides(
    service: Service, client: httpx.AsyncClient, number: int
):
    """Goal: decision for decision, with the same deposits and the same ends of spends: once
    replayed, once lived by another tenant under the draft from its beginning."""
    seed, chance = seeded(f"history {number}")
    policies, limits = [some_policy(chance) for _ in range(AGENTS)], limits_of(chance)
    steps = some_steps(chance)
    policy: dict[str, Any] = {
        "dailyCap": format_cents(chance.randrange(5, 60) * 1_000_000),
        "perTransactionCap": chance.choice([None, "5.00"]),
        "allowlist": chance.choice([["*"], ["example.org", "b.example.com"]]),
    }
    if chance.random() < 0.5:
        policy["limits"] = limits_of(chance)
    other_limits = limits_of(chance)
    of_budget = number == 1
    body: dict[str, Any] = {"policy": policy}

    first = Tenant(service, client)
    await first.begin(policies, limits)
    await first.live(steps)
    body["budgetId" if of_budget else "agentId"] = first.budget if of_budget else first.agents[1]
    if of_budget:
        body["limits"] = other_limits
    found = await backtest(service, first.client, **body)

    drafted = [
        {**one, **policy} if place == 1 or (of_budget and place) else one
        for place, one in enumerate(policies)
    ]
    async with await service.admin() as other:
        second = Tenant(service, other)
        await second.begin(drafted, other_limits if of_budget else limits)
        await second.live(steps, first.answers)

    would = {one["transactionId"]: one["would"] for one in found["changed"]}
    # The first agent shares nothing with the others: it is not replayed.
    replayed = [place for place, answer in enumerate(first.answers) if _is_below(first, answer)]
    assert found["reproduced"] == {"of": len(replayed), "same": len(replayed)}, seed
    for place in replayed:
        answer = first.answers[place]
        assert would.get(answer["id"], answer["status"]) == second.answers[place]["status"], (
            seed,
            place,
        )
    named = set(first.agents[1:] if of_budget else first.agents[1:2])
    rules = Counter(
        rule_of((status, None if code is None else RejectCode(code)))
        for (status, code), answer in zip(second.decided(), first.answers, strict=True)
        if answer["agentId"] in named
    )
    assert {one["rule"]: one["draft"] for one in found["byRule"] if one["draft"]} == {
        rule: count for rule, count in rules.items() if rule is not None
    }, seed


def _is_below(tenant: Tenant, answer: dict[str, Any]) -> bool:
    return answer["agentId"] in tenant.agents[1:]


@pytest.mark.skipif(not LONG, reason="100,000 spends take five minutes: BURSAR_LONG=1")
@pytest.mark.timeout(3600)
async def test_a_hundred_thousand_are_reproduced(tmp_path_factory: pytest.TempPathFactory):
    """Goal: random policies, limits, budgets, approvals and failures, by 64 clients at once: each
    decision is the same again, within a minute."""
    async with make_world(tmp_path_factory.mktemp("world")) as world:
        seed, _ = seeded("reproduced")
        key = await world.admin_key()
        operators = Operators(world, key, seed, left=100_000)
        await operators.begin()
        await operators.run()
        assert await reproduce(world.service, key, 100_000) < 60
