"""How requests come together in batches."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from bursar.spend.batches import MAX_BATCH, Batches, Over, Waiting


class _Request(msgspec.Struct, frozen=True):
    agent_id: str


class _Writing:
    """Writes nothing, and notes how large each batch was."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(
        self, batch: Sequence[Waiting[_Request, str]], hurried: bool, over: Over
    ) -> None:
        self.sizes.append(len(batch))
        # As the database does: all that is ready by then asks before this ends.
        await asyncio.sleep(0)
        for waiting in batch:
            waiting.answer_with("written")


@pytest.mark.parametrize(
    ("asking", "sizes"),
    [
        # The first finds nobody before it, and waits for nobody.
        (1, [1]),
        (20, [1, 19]),
        (25, [1, 24]),
        (26, [1, 24, 1]),
        (64, [1, 32, 31]),
        (100, [1, 50, 49]),
        (300, [1, MAX_BATCH, MAX_BATCH, 300 - 1 - 2 * MAX_BATCH]),
    ],
)
async def test_a_batch_is_half_of_those_who_ask(asking: int, sizes: list[int]):
    """Goal: where many ask, each batch leaves as many for the next, which can be read and answered
    while it is written; where few do, they share one. All are answered."""
    writing = _Writing()
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
    assert writing.sizes == [1, 32, 31]
