"""A change that was answered is in force everywhere: no later answer rests on what was before.

Two processes are under load while a third party changes the agent or the directory, in turns
through one process and the other. Every answer says what it was decided by: a policy version, a
status, an address.
"""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

import pytest
from solders.keypair import Keypair

from bursar.recipient.resolve import test_address as sandbox_address
from tests.processes import spawn_api
from tests.simulation.wire import Answer, Connection, Turns
from tests.simulation.world import HOST, LONG, World, assert_clean, make_agent, seeded

CLIENTS = 32
ROUNDS = 400 if LONG else 40
TERMINATIONS = 40 if LONG else 4
STALLS = 200 if LONG else 15


@dataclass(frozen=True)
class Scene:
    """An agent under load, its manager's connection to each process, and the loop's turns."""

    world: World
    key: str
    turns: Turns
    managers: tuple[Connection, Connection]
    chance: Random

    async def new_agent(self) -> str:
        agent = await make_agent(self.managers[0])
        await self.world.service.fund(agent["id"], "1000")
        return agent["id"]

    async def change(self, round_: int, method: str, path: str, body: Any = None) -> Answer:
        answer = await self.managers[round_ % 2].request(method, path, body)
        assert answer.status in (200, 204), answer.body
        return answer

    async def load_while(
        self, agent_id: str, work: Callable[[], Awaitable[None]]
    ) -> list["Decided"]:
        """Clients on both processes spend from the agent while the work is done, and until each
        has been answered after it."""
        decided: list[Decided] = []
        answered = asyncio.Semaphore(0)
        running = True

        async def spend(number: int) -> None:
            connection = self.world.connect(self.key, number, self.turns)
            body = {"agentId": agent_id, "amount": "0.000001", "recipient": HOST}
            while running:
                answer = await connection.request("POST", "/v1/spend/authorise", body)
                decided.append(Decided(answer, answer.data))
                answered.release()
            connection.close()

        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(spend(number))
            try:
                for _ in range(CLIENTS):
                    await answered.acquire()
                await work()
                while not answered.locked():  # those of before
                    await answered.acquire()
                for _ in range(3 * CLIENTS):
                    await answered.acquire()
            finally:
                running = False
        return decided


@dataclass(frozen=True)
class Decided:
    answer: Answer
    spend: dict[str, Any]

    @property
    def status_seen(self) -> str:
        return self.spend["decision"]["checks"][0]["observed"]


@pytest.fixture
async def scene(world: World, request: pytest.FixtureRequest) -> AsyncGenerator[Scene]:
    _, chance = seeded(request.node.name)
    turns = Turns()
    turns.start()
    key = await world.admin_key()
    managers = (world.connect(key, 0, turns), world.connect(key, 1, turns))
    yield Scene(world, key, turns, managers, chance)
    turns.stop()
    for manager in managers:
        manager.close()
    await assert_clean(world.db)


Period = tuple[Answer, float, Callable[[Decided], bool]]


def assert_in_force(periods: Sequence[Period], decided: list[Decided]) -> None:
    """Each period is the answer to a change, the moment the next one began, and what every spend
    between them must be."""
    for change, until, holds in periods:
        for one in decided:
            later = one.answer.answered_turn > change.answered_turn
            assert not later or one.answer.answered >= until or holds(one), (change, one)
    print(f"{len(decided)} spends, {len(periods)} changes")


def policy_change(chance: Random, round_: int) -> dict[str, Any]:
    """Another policy than the one before, whichever that was."""
    cents = f"{round_ + 1}.{chance.randrange(100):02}"
    return chance.choice(
        [
            {"frozen": round_ % 2 == 0},
            {"dailyCap": cents},
            {"dailyCap": "0", "perTransactionCap": cents},
            {"approvalThreshold": chance.choice([None, "0", cents])},
            {"allowlist": chance.choice([[], ["*"], [HOST]])},
            {"blocklist": chance.choice([[], ["*"], [f"x{round_}.example.org"]])},
        ]
    )


async def test_freezes_caps_and_lists(scene: Scene):
    """Goal: an answer after PATCH was answered has the policy version that it made, or a later."""
    agent_id = await scene.new_agent()
    changes: list[tuple[Answer, int]] = []

    async def work() -> None:
        for round_ in range(ROUNDS):
            body = {"policy": policy_change(scene.chance, round_)}
            answer = await scene.change(round_, "PATCH", f"/v1/agents/{agent_id}", body)
            changes.append((answer, answer.data["policy"]["version"]))

    decided = await scene.load_while(agent_id, work)
    assert changes[-1][1] > ROUNDS // 2
    assert len({one.spend["policyVersion"] for one in decided}) > ROUNDS // 4
    assert_in_force(
        [
            (answer, inf, lambda one, least=version: one.spend["policyVersion"] >= least)
            for answer, version in changes
        ],
        decided,
    )


async def test_pauses(scene: Scene):
    """Goal: from the answer to a pause until it is lifted, everything is refused for it; and the
    other way around."""
    agent_id = await scene.new_agent()
    changes: list[tuple[Answer, str]] = []

    async def work() -> None:
        for round_ in range(ROUNDS):
            status = ("paused", "active")[round_ % 2]
            # The same process twice, then the other, so that each pauses and each lifts.
            answer = await scene.change(
                round_ // 2, "PATCH", f"/v1/agents/{agent_id}", {"status": status}
            )
            changes.append((answer, status))

    decided = await scene.load_while(agent_id, work)
    assert {one.spend["rejectCode"] for one in decided} == {None, "agent_paused"}
    ends = [*(answer.started for answer, _ in changes[1:]), inf]
    assert_in_force(
        [
            (answer, end, lambda one, status=status: one.status_seen == status)
            for (answer, status), end in zip(changes, ends, strict=True)
        ],
        decided,
    )


async def test_terminations(scene: Scene):
    """Goal: nothing is approved in an answer after that to DELETE."""
    for round_ in range(TERMINATIONS):
        agent_id = await scene.new_agent()
        ended: list[Answer] = []

        async def work(round_: int = round_, agent_id: str = agent_id) -> None:
            answer = await scene.change(round_, "DELETE", f"/v1/agents/{agent_id}")
            ended.append(answer)  # noqa: B023

        decided = await scene.load_while(agent_id, work)
        assert {one.spend["rejectCode"] for one in decided} == {None, "agent_terminated"}
        assert_in_force(
            [(ended[0], inf, lambda one: one.spend["rejectCode"] == "agent_terminated")], decided
        )


async def test_directory_changes(scene: Scene):
    """Goal: an answer after a change of the directory pays where it says, never elsewhere."""
    agent_id = await scene.new_agent()
    changes: list[tuple[Answer, str]] = []

    async def work() -> None:
        for round_ in range(ROUNDS):
            if round_ % 5 == 4:
                answer = await scene.change(round_, "DELETE", f"/v1/recipients/{HOST}")
                changes.append((answer, sandbox_address(HOST)))
            else:
                address = str(Keypair.from_seed(scene.chance.randbytes(32)).pubkey())
                body = {"address": address}
                answer = await scene.change(round_, "PUT", f"/v1/recipients/{HOST}", body)
                changes.append((answer, address))

    decided = await scene.load_while(agent_id, work)
    assert len({one.spend["payTo"] for one in decided}) > ROUNDS // 4
    ends = [*(answer.started for answer, _ in changes[1:]), inf]
    assert_in_force(
        [
            (answer, end, lambda one, address=address: one.spend["payTo"] == address)
            for (answer, address), end in zip(changes, ends, strict=True)
        ],
        decided,
    )


@pytest.mark.timeout(1800 if LONG else 300)
async def test_a_stalled_process_holds_the_change_back(world: World):
    """Goal: a process that was stopped between its commit and its answers has not answered yet, so
    neither is the change; and if the change is answered, what comes later follows it."""
    _, chance = seeded("stalled")
    turns = Turns()
    turns.start()
    key = await world.admin_key()
    stalled = await spawn_api(world.config)
    manager = world.connect(key, turns=turns)
    agent = await make_agent(manager)
    await world.service.fund(agent["id"], "1000")
    spenders = [Connection(stalled.url, key, turns) for _ in range(CLIENTS)]
    body = {"agentId": agent["id"], "amount": "0.000001", "recipient": HOST}
    seconds = 0.02
    held = told = 0
    try:
        for round_ in range(10 * STALLS):
            if round_ >= STALLS and held and told:
                break
            began = time.monotonic()
            spends = [
                asyncio.create_task(spender.request("POST", "/v1/spend/authorise", body))
                for spender in spenders
            ]
            # The moment is what is tried out: anywhere in the life of a batch.
            await asyncio.sleep(chance.uniform(0, 1.5 * seconds))
            stalled.process.send_signal(signal.SIGSTOP)
            try:
                change = asyncio.create_task(
                    manager.request(
                        "PATCH", f"/v1/agents/{agent['id']}", {"policy": {"dailyCap": f"{round_}"}}
                    )
                )
                await asyncio.wait({change}, timeout=0.3)
                answered = change.done()
            finally:
                stalled.process.send_signal(signal.SIGCONT)
            changed = await change
            decided = await asyncio.gather(*spends)
            late = [answer for answer in decided if answer.answered_turn > changed.answered_turn]
            if answered and not late:  # all was over when it stopped
                seconds = max(answer.answered for answer in decided) - began
                continue
            held += not answered
            told += answered
            version = changed.data["policy"]["version"]
            old = [one.data for one in late if one.data["policyVersion"] < version]
            assert old == [], (round_, version, answered)
            assert all(answer.status == 201 for answer in decided)
        print(f"the change waited {held} times, was answered {told} times")
        assert held
        assert told
    finally:
        turns.stop()
        for connection in (manager, *spenders):
            connection.close()
        stalled.process.terminate()
        await asyncio.wait_for(stalled.process.wait(), 30)
