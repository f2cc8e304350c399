"""A change that was answered is in force everywhere: no spend that is requested afterwards is
decided by what it replaced. A spend that overlaps the change may fall on either side of it.

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
        """One whose payee was paid before, so that processes decide on what they remember."""
        agent = await make_agent(self.managers[0], dailyNetworkLamports=10**12)
        await self.world.service.fund(agent["id"], "1000")
        await self.world.note_payee(agent["id"])
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
        checks = self.spend["decision"]["checks"]
        return next(check["observed"] for check in checks if check["rule"] == "agent_status")


@pytest.fixture
async def scene(world: World, request: pytest.FixtureRequest) -> AsyncGenerator[Scene]:
    _, chance = seeded(request.node.name)
    turns = Turns()
    turns.start()
    key = await world.admin_key()
    managers = (world.connect(key, 0, turns), world.connect(key, 1, turns))
    before = await world.decided("remembered")
    yield Scene(world, key, turns, managers, chance)
    assert await world.decided("remembered") > before, "nothing was decided on what is remembered"
    turns.stop()
    for manager in managers:
        manager.close()
    await assert_clean(world.db)


Period = tuple[Answer, float, Callable[[Decided], bool]]


def assert_in_force(periods: Sequence[Period], decided: list[Decided]) -> None:
    """Each period is the answer to a change, the moment the next one began, and what every spend
    that was requested and answered between them must be."""
    for change, until, holds in periods:
        for one in decided:
            requested_after = one.answer.started_turn > change.answered_turn
            assert not requested_after or one.answer.answered >= until or holds(one), (change, one)
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
    """Goal: what is requested after PATCH was answered has its policy version, or a later one."""
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


async def test_stops(scene: Scene):
    """Goal: nothing that is requested between the answer to a stop and the resume is approved, in
    either process, and nothing after the answer to a resume is refused for it."""
    agent_id = await scene.new_agent()
    changes: list[tuple[Answer, bool]] = []

    async def work() -> None:
        for round_ in range(ROUNDS):
            stops = round_ % 2 == 0
            body = {"reason": "a look"} if stops else {"unsigned": "pay"}
            path = "/v1/stop" if stops else "/v1/resume"
            # The same process twice, then the other, so that each stops and each resumes.
            changes.append((await scene.change(round_ // 2, "POST", path, body), stops))

    decided = await scene.load_while(agent_id, work)
    assert {one.spend["rejectCode"] for one in decided} == {None, "account_stopped"}
    ends = [*(answer.started for answer, _ in changes[1:]), inf]
    assert_in_force(
        [
            (answer, end, lambda one, stops=stops: (one.spend["status"] == "rejected") == stops)
            for (answer, stops), end in zip(changes, ends, strict=True)
        ],
        decided,
    )


async def test_terminations(scene: Scene):
    """Goal: nothing that is requested after the answer to DELETE is approved."""
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
    """Goal: what is requested after a change of the directory pays where that says."""
    agent_id = await scene.new_agent()
    changes: list[tuple[Answer, str]] = []

    async def work() -> None:
        for round_ in range(ROUNDS):
            if round_ % 5 == 4:
                answer = await scene.change(round_, "DELETE", f"/v1/recipients/{HOST}")
                changes.append((answer, sandbox_address(HOST)))
            else:
                address = str(Keypair.from_seed(scene.chance.randbytes(32)).pubkey())
                await scene.world.note_address(agent_id, address)
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


@pytest.mark.timeout(1800 if LONG else 900)
async def test_a_stalled_process_comes_back_to_the_change(world: World):
    """Goal: a process that is stopped anywhere in the life of a batch decides what was requested
    after a change by that change, also what reached its socket while it stood still."""
    _, chance = seeded("stalled")
    key = await world.admin_key()
    stalled = await spawn_api(world.config)
    manager = world.connect(key)
    agent = await make_agent(manager, dailyNetworkLamports=10**12)
    await world.service.fund(agent["id"], "1000")
    await world.note_payee(agent["id"])
    early, late = ([Connection(stalled.url, key) for _ in range(CLIENTS)] for _ in range(2))
    body = {"agentId": agent["id"], "amount": "0.000001", "recipient": HOST}

    def spend_on(connections: Sequence[Connection]) -> list[asyncio.Task[Answer]]:
        return [
            asyncio.create_task(connection.request("POST", "/v1/spend/authorise", body))
            for connection in connections
        ]

    seconds = 0.02
    while_stopped = 0
    try:
        await asyncio.gather(*spend_on(late))  # these are connected before the process stands still
        for round_ in range(10 * STALLS):
            if round_ >= STALLS and while_stopped:
                break
            began = time.monotonic()
            overlapping = spend_on(early)
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
                # Otherwise the process holds the wallet's lock, and the change waits for it.
                answered = change.done()
                following = spend_on(late) if answered else []
                await asyncio.sleep(0)  # they are sent
            finally:
                stalled.process.send_signal(signal.SIGCONT)
            version = (await change).data["policy"]["version"]
            following = following or spend_on(late)
            decided = await asyncio.gather(*following)
            while_stopped += answered
            assert all(one.data["policyVersion"] >= version for one in decided), (round_, answered)
            done = await asyncio.gather(*overlapping)
            seconds = max(answer.answered for answer in done) - began if answered else seconds
        print(f"{while_stopped} changes were answered while the process stood still")
        assert while_stopped
    finally:
        for connection in (manager, *early, *late):
            connection.close()
        stalled.process.terminate()
        await asyncio.wait_for(stalled.process.wait(), 30)
