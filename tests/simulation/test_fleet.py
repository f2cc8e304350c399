"""Limits and budgets are exact under any load, as the daily cap is.

Clients spend through two processes for agents with limits of every kind, below budgets of up to
three levels, while limits and budgets change, agents move from one budget to another, pending
spends are approved and denied, and approved ones fail. In the end every meter is counted again.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from bursar.money import format_cents, format_micros
from bursar.policy.limits import MOST_LEVELS, WINDOWS, BudgetTerms
from bursar.policy.store import policy_of
from bursar.spend.model import SpendRow
from tests.backtest.support import reproduce
from tests.simulation.meters import replay_fleet
from tests.simulation.wire import Connection
from tests.simulation.world import LONG, World, assert_clean, make_agent, seeded

CLIENTS = 64
SPENDS = 40_000 if LONG else 1_500
SPENDS_PER_CHANGE = 12
AGENTS = 20
HOSTS = ("api.example.com", "b.example.com", "example.org")
ENTRIES = ("*", "*.example.com", "api.example.com", "example.org")
# Above each budget; the first has none.
PARENTS = (None, 0, 0, 1, 2)
MOST_LIMITS = 6

# A budget as it was from one change to the next: its limits get new names with every change.
Version = tuple[bool, tuple[str, ...]]


@dataclass
class Asked:
    """What had been answered of every change when a spend was requested."""

    spend_id: str
    policy_version: int
    places: int
    budgets: dict[str, int]


@dataclass
class Operators:
    """The actors, and what they were answered, in order."""

    world: World
    key: str
    seed: str
    left: int = SPENDS
    budgets: dict[str, list[Version]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    # By agent: the budgets that it was put under, and the newest version of its policy.
    places: dict[str, list[str | None]] = field(default_factory=dict)
    policies: dict[str, int] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    pending: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    approved: "asyncio.Queue[tuple[str, str]]" = field(default_factory=asyncio.Queue)
    change_due: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def chance(self, actor: str) -> Random:
        return Random(f"{self.seed}/{actor}")

    async def begin(self) -> None:
        chance = self.chance("begin")
        connection = self.world.connect(self.key)
        for number, parent in enumerate(PARENTS):
            ids = list(self.budgets)
            body = {
                "name": f"budget {number}",
                "limits": some_limits(chance, 1, 40),
                "parentId": None if parent is None else ids[parent],
            }
            made = (await connection.request("POST", "/v1/budgets", body)).data
            self.budgets[made["id"]] = [version_of(made)]
            self.parents[made["id"]] = made["parentId"]
        for _ in range(AGENTS):
            agent = await make_agent(
                connection,
                allowlist=["*"],
                approvalThreshold="1.50",
                limits=some_limits(chance, 0, 12, ENTRIES),
            )
            self.places[agent["id"]] = [None]
            self.policies[agent["id"]] = 1
            await self.world.service.fund(agent["id"], "100")
            await self._move(connection, agent["id"], chance)
        connection.close()
        for host in HOSTS:
            await self.world.note_payee(next(iter(self.places)), host)

    async def run(self) -> None:
        others = [
            self._manager(),
            *(self._approver(number) for number in range(2)),
            *(self._releaser(number) for number in range(2)),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in others]
            async with asyncio.TaskGroup() as spenders:
                for number in range(CLIENTS):
                    spenders.create_task(self._spender(number))
            for task in tasks:
                task.cancel()

    async def _spender(self, number: int) -> None:
        chance = self.chance(f"spender {number}")
        connection = self.world.connect(self.key, number)
        agents = list(self.places)
        while self.left > 0:
            self.left -= 1
            agent_id = chance.choice(agents)
            asked = Asked(
                "",
                self.policies[agent_id],
                len(self.places[agent_id]) - 1,
                {id_: len(versions) - 1 for id_, versions in self.budgets.items()},
            )
            body = {
                "agentId": agent_id,
                "amount": format_micros(chance.randrange(1, 2_000_000)),
                "recipient": chance.choice(HOSTS),
            }
            spend = (await connection.request("POST", "/v1/spend/authorise", body)).data
            asked.spend_id = spend["id"]
            self.asked.append(asked)
            self.outcomes[spend["rejectCode"] or spend["status"]] += 1
            if spend["status"] == "pending":
                self.pending.put_nowait(spend["id"])
            elif spend["status"] == "approved":
                self.approved.put_nowait((spend["id"], agent_id))
            if len(self.asked) % SPENDS_PER_CHANGE == 0:
                self.change_due.release()
        connection.close()

    async def _manager(self) -> None:
        """Alone, so that the changes of each budget and agent have one order."""
        chance = self.chance("manager")
        connections = [self.world.connect(self.key, number) for number in range(2)]
        try:
            while True:
                await self.change_due.acquire()
                connection = chance.choice(connections)
                agent_id = chance.choice(list(self.places))
                match chance.choice(["limits", "freeze", "budget", "budget", "move"]):
                    case "limits":
                        limits = some_limits(chance, 0, 12, ENTRIES)
                        body = {"policy": {"limits": limits}}
                        answer = await connection.request("PATCH", f"/v1/agents/{agent_id}", body)
                        self.policies[agent_id] = answer.data["policy"]["version"]
                    case "freeze":
                        await self._change(connection, chance, frozen=True)
                    case "budget":
                        await self._change(connection, chance, frozen=False)
                    case _:
                        await self._move(connection, agent_id, chance)
        finally:
            for connection in connections:
                connection.close()

    async def _change(self, connection: Connection, chance: Random, *, frozen: bool) -> None:
        """A frozen one goes on at once, or all would soon stand still."""
        budget_id = chance.choice(list(self.budgets))
        for state in (True, False) if frozen else (False,):
            body = {"limits": some_limits(chance, 1, 60), "frozen": state}
            answer = await connection.request("PATCH", f"/v1/budgets/{budget_id}", body)
            self.budgets[budget_id].append(version_of(answer.data))

    async def _move(self, connection: Connection, agent_id: str, chance: Random) -> None:
        place = chance.choice([None, *self.budgets])
        answer = await connection.request("PATCH", f"/v1/agents/{agent_id}", {"budgetId": place})
        assert answer.data["budgetId"] == place
        self.places[agent_id].append(place)

    async def _approver(self, number: int) -> None:
        """Approves half; what can no longer be approved is denied."""
        chance = self.chance(f"approver {number}")
        connection = self.world.connect(self.key, number)
        try:
            while True:
                spend_id = await self.pending.get()
                for verb in chance.choice([("approve", "deny"), ("deny",)]):
                    answer = await connection.request("POST", f"/v1/transactions/{spend_id}/{verb}")
                    self.outcomes[f"{verb} {answer.status}"] += 1
                    if answer.status == 200:
                        break
        finally:
            connection.close()

    async def _releaser(self, number: int) -> None:
        """Two of three payments fail for good."""
        chance = self.chance(f"releaser {number}")
        while True:
            spend_id, agent_id = await self.approved.get()
            if chance.random() < 2 / 3:
                await self.world.fail(spend_id, agent_id)
                self.outcomes["release"] += 1


def some_limits(
    chance: Random, least: int, most: int, entries: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Up to six, of every kind; `most` is of their amounts, in USDC."""
    limits: list[dict[str, Any]] = []
    for _ in range(chance.randint(least, MOST_LIMITS if entries else 2)):
        limit: dict[str, Any] = {"window": chance.choice(WINDOWS)}
        if chance.random() < 0.7:
            limit["amount"] = format_cents(chance.randrange(most * 10**5, most * 10**6))
        if "amount" not in limit or chance.random() < 0.3:
            limit["count"] = chance.randrange(most, 4 * most)
        if entries and chance.random() < 0.5:
            limit["recipient"] = chance.choice(entries)
        limits.append(limit)
    return limits


def version_of(shown: dict[str, Any]) -> Version:
    return shown["frozen"], tuple(limit["id"] for limit in shown["limits"])


def version_in(terms: BudgetTerms) -> Version:
    return terms.frozen, tuple(limit.id for limit in terms.limits)


@pytest.mark.timeout(3600 if LONG else 900)
async def test_limits_and_budgets_are_exact(world: World):
    """Goal: counting again gives every number that a decision rests on, so that no limit was passed
    by a micro-unit and nothing refused that fitted; and each decision rests on what was in force
    when it was asked for. A backtest decides every one of them again as it was."""
    seed, _ = seeded("fleet")
    key = await world.admin_key()
    operators = Operators(world, key, seed)
    await operators.begin()
    before = await world.decided("remembered")
    await operators.run()
    remembered = await world.decided("remembered") - before
    async with world.db.connection() as tx:
        agents = list(operators.places)
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agents[0])
        rows = await tx.fetch("SELECT * FROM policy WHERE agent_id = ANY($1)", agents)
    policies = {(row["agent_id"], row["version"]): policy_of(row) for row in rows}

    fleet = await replay_fleet(world.db, realm_id)
    assert len(operators.asked) == len(fleet.spends) == SPENDS
    for asked in operators.asked:
        spend = fleet.spends[asked.spend_id]
        assert spend.policy_version >= asked.policy_version, seed
        policy = policies[spend.agent_id, spend.policy_version]
        assert spend.terms.limits == policy.limits_for(spend.recipient), seed
        assert spend.budget_id in operators.places[spend.agent_id][asked.places :], seed
        assert [budget.id for budget in spend.terms.budgets] == chain(operators, spend), seed
        for budget in spend.terms.budgets:
            version = operators.budgets[budget.id].index(version_in(budget))
            assert version >= asked.budgets[budget.id], (seed, budget)
    for budget_id, versions in operators.budgets.items():
        seen = [
            versions.index(version_in(budget))
            for spend in fleet.by_meter[budget_id]
            for budget in spend.terms.budgets
            if budget.id == budget_id
        ]
        assert seen == sorted(seen), f"{seed}: {budget_id} went back to what it was before"
    await assert_clean(world.db)
    await reproduce(world.service, key, SPENDS)
    print(f"{remembered:.0f} of {SPENDS} on what was remembered, {dict(operators.outcomes)}")
    levels = Counter(len(spend.terms.budgets) for spend in fleet.spends.values())
    assert set(levels) == {0, 1, 2, 3}, levels
    assert max(levels) < MOST_LEVELS
    assert remembered > SPENDS / 10
    for outcome in ("approved", "pending", "limit_exceeded", "budget_exceeded", "budget_frozen"):
        assert operators.outcomes[outcome] > 0, outcome
    for outcome in ("approve 200", "deny 200", "release"):
        assert operators.outcomes[outcome] > 0, outcome


def chain(operators: Operators, spend: SpendRow) -> list[str]:
    found: list[str] = []
    budget_id = spend.budget_id
    while budget_id is not None:
        found.append(budget_id)
        budget_id = operators.parents[budget_id]
    return found
