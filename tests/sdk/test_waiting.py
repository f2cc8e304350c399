"""Waiting for an outcome for longer than the service lets one request wait."""

import asyncio

import pytest

from bursar import AsyncBursar, Bursar
from tests.sdk.scripted import ScriptedServer

KEY = "bur_test_00000000000000000000000000000000000000"


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("seconds", "script", "rounds", "status"),
    [
        (70, ["pending", "pending", "pending"], [30, 30, 10], "pending"),
        (70, ["pending", "settled"], [30, 30], "settled"),
        (5, ["settled"], [5], "settled"),
        (0, ["pending"], [0], "pending"),
    ],
)
async def test_it_asks_as_often_as_it_takes(
    colour: str, seconds: int, script: list[str], rounds: list[int], status: str
):
    """Goal: it ends with the outcome or with the time; answers that come too early are no reason to
    ask without a pause."""
    async with ScriptedServer.running() as server:
        server.script = list(script)
        if colour == "sync":
            client = Bursar(KEY, server.url)
            found = await asyncio.to_thread(client.transactions.wait, "txn_1", seconds=seconds)
            client.close()
        else:
            async with AsyncBursar(KEY, server.url) as waiting:
                found = await waiting.transactions.wait("txn_1", seconds=seconds)
    assert found.status == status
    assert [got.headers["prefer"] for got in server.requests] == [f"wait={n}" for n in rounds]
