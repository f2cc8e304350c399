"""How requests come together in batches."""

import asyncio
from collections.abc import Sequence
from itertools import count

import msgspec
import pytest

from bursar.spend.batches import MAX_BATCH, SECOND_BATCH, Batches, Over, Waiting


class _Request(msgspec.Struct, frozen=True):
    agent_id: str


class _Writing:
    """Writes nothing, and notes how large each batch was."""

    def __init__(self, *, tells: bool = False) -> None:
        self.sizes: list[int] = []
        # What begins from now on is not written before this is set.
        self.opens = asyncio.Event()
        self.opens.set()
        # Whether it says that a batch is written before it answers.
        self._tells = tells

    async def __call__(
        self, batch: Sequence[Waiting[_Request, str]], hurried: bool, over: Over
    ) -> None:
        self.sizes.append(len(batch))
        await self.opens.wait()
        # As the database does: all that is ready by then asks before this ends.
        await asyncio.sleep(0)
        if self._tells:
            await over()
        for waiting in batch:
            waiting.answer_with("written")


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize(
    ("asking", "sizes"),
    [
        (1, [1]),
        # All that ask in one round of the event loop share what they may share.
        (20, [20]),
        (SECOND_BATCH, [SECOND_BATCH]),
        (25, [24, 1]),
        (64, [32, 32]),
        (100, [50, 50]),
        (300, [MAX_BATCH, MAX_BATCH, 300 - 2 * MAX_BATCH]),
    ],
)
async def test_a_batch_is_half_of_those_who_ask(asking: int, sizes: list[int], tells: bool):
    """Goal: where many ask, each batch leaves as many for the next, which can be read and answered
    while it is written; where few do, they share one. All are answered."""
    writing = _Writing(tells=tells)
    batches: Batches[_Request, str] = Batches(writing)
    answers = await asyncio.gather(*(batches.submit(_Request("ag_1")) for _ in range(asking)))
    assert answers == ["written"] * asking
    assert writing.sizes == sizes


async def test_who_has_gone_is_not_counted():
    """Goal: callers that gave up do not make later batches larger than half."""
    writing = _Writing()
    batches: Batches[_Request, str] = Batches(writing)
    gone = [asyncio.create_task(batches.submit(_Request("ag_1"))) for _ in range(200)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    await batches.submit(_Request("ag_1"))
    writing.sizes.clear()
    await asyncio.gather(*(batches.submit(_Request("ag_1")) for _ in range(64)))
    assert writing.sizes == [32, 32]


@pytest.mark.parametrize("tells", [False, True])
async def test_batches_stay_half_of_those_who_ask_again(tells: bool):
    """Goal: as long as the same callers ask again at once, batches neither shrink nor swing: those
    that were just answered count among those who ask."""
    writing = _Writing(tells=tells)
    batches: Batches[_Request, str] = Batches(writing)
    agents = count()

    async def caller() -> None:
        for _ in range(20):
            await batches.submit(_Request(f"ag_{next(agents)}"))

    await asyncio.gather(*(caller() for _ in range(100)))
    assert sum(writing.sizes) == 2_000
    # At the end some have all their answers, so fewer ask.
    assert set(writing.sizes[:-4]) == {50}


async def test_what_is_left_begins_beside_the_first():
    """Goal: a burst becomes two batches at once, of other agents, and nothing more begins until one
    of them ends. Where both end in one round of the event loop, two begin again."""
    writing = _Writing()
    first = writing.opens = asyncio.Event()
    batches: Batches[_Request, str] = Batches(writing)
    asked = _ask(batches, 300)
    await _settle()
    assert writing.sizes == [MAX_BATCH, MAX_BATCH]
    asked += _ask(batches, 160)
    await _settle()
    assert writing.sizes == [MAX_BATCH, MAX_BATCH]
    second = writing.opens = asyncio.Event()
    first.set()
    await _settle()
    assert writing.sizes == [MAX_BATCH, MAX_BATCH, MAX_BATCH, 76]
    second.set()
    assert await asyncio.gather(*asked) == ["written"] * 460


async def test_a_batch_that_is_cancelled_before_it_runs_holds_up_nothing():
    """Goal: what takes a batch's task away takes no other batch with it."""
    batches: Batches[_Request, str] = Batches(_Writing())
    before = asyncio.all_tasks()
    asked = _ask(batches, 3)
    # Its requests have asked, and it has not run.
    await asyncio.sleep(0)
    (beginning,) = asyncio.all_tasks() - before - set(asked)
    beginning.cancel()
    await _settle()
    assert not any(one.done() for one in asked)
    asked += _ask(batches, 1)
    assert await asyncio.gather(*asked) == ["written"] * 4


def _ask(batches: Batches[_Request, str], many: int) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(batches.submit(_Request(f"ag_{n}"))) for n in range(many)]


async def _settle() -> None:
    """Lets the event loop come to all that can go on."""
    for _ in range(10):
        await asyncio.sleep(0)
