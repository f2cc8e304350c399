"""Large requests are worked on beside the event loop, so that everybody else is answered meanwhile.

Measured in processor time of the loop's own thread: that other programs run makes no difference."""

import asyncio
import gc
import threading
import time
import uuid
from collections.abc import Awaitable, Iterator
from typing import Any, Final

import pytest

from bursar.service import app
from tests.support import POLICY, Service, new_agent

# An answer to a small request takes a few of these; a person notices some hundred milliseconds.
LONGEST_TURN_SECONDS: Final = 0.1


@pytest.fixture(autouse=True)
def spared_collector() -> Iterator[None]:
    """The collector skips what was there before, as in a process that serves: what hundreds of
    tests left would hold the loop up for a tenth of a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def longest_turn(work: Awaitable[Any]) -> float:
    """The most that the loop was busy without a pause until `work` was done."""
    longest = 0.0
    task = asyncio.ensure_future(work)
    while not task.done():
        before = time.thread_time()
        await asyncio.sleep(0.001)
        longest = max(longest, time.thread_time() - before)
    await task
    return longest


def international(count: int) -> list[str]:
    """Names that take longest to make canonical, each of them new."""
    return [f"bücher-{uuid.uuid4().hex}.straße-{n}.example.com" for n in range(count)]


def long_ones(count: int) -> list[str]:
    label = "a" * 60
    return [f"{uuid.uuid4().hex}.{label}.{label}.{label}.example.com" for _ in range(count)]


@pytest.mark.parametrize(
    "policy",
    [
        {"allowlist": international(1_000)},
        {"allowlist": long_ones(1_000), "blocklist": long_ones(1_000)},
    ],
    ids=["international", "long"],
)
async def test_a_large_policy_does_not_hold_up_others(service: Service, policy: dict[str, Any]):
    async with await service.admin() as client:
        agent = await new_agent(client)
        body = {"name": "large", "policy": {**POLICY, **policy}}

        async def make() -> None:
            answer = await client.post("/v1/agents", json=body)
            assert answer.status_code == 201, answer.text
            assert len(answer.json()["data"]["policy"]["allowlist"]) == 1_000

        async def change() -> None:
            answer = await client.patch(f"/v1/agents/{agent['id']}", json={"policy": policy})
            assert answer.status_code == 200, answer.text

        assert await longest_turn(make()) < LONGEST_TURN_SECONDS
        for entries in policy.values():
            entries[:] = [f"x{entry}" for entry in entries]
        assert await longest_turn(change()) < LONGEST_TURN_SECONDS


async def test_a_large_body_that_is_wrong_throughout_does_not_hold_up_others(service: Service):
    async with await service.admin() as client:
        body = {"name": "large", "policy": {**POLICY, "allowlist": [f"ü{n} x" for n in range(999)]}}
        body |= {f"unknown-{n}-{'x' * 80}": n for n in range(2_000)}

        async def make() -> None:
            assert (await client.post("/v1/agents", json=body)).status_code == 400

        assert await longest_turn(make()) < LONGEST_TURN_SECONDS


async def test_a_scrape_does_not_hold_up_others(service: Service, monkeypatch: pytest.MonkeyPatch):
    """Goal: others are answered while the metrics of all processes are put together."""
    read = threading.Event()

    def slow() -> bytes:
        return b"metrics" if read.wait(timeout=5) else b"nobody was answered meanwhile"

    monkeypatch.setattr(app, "exposition", slow)
    async with service.client(None) as client:
        scrape = asyncio.create_task(client.get("/metrics"))
        assert (await client.get("/healthz")).status_code == 200
        read.set()
        assert (await scrape).content == b"metrics"
