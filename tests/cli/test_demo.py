"""`bursar demo`: the story is told, and every word of it is true."""

import asyncio
from pathlib import Path

from bursar.cli.exits import ExitCode
from tests.cli.console import Console
from tests.machine import Watch
from tests.processes import Finished
from tests.support import Service, new_account

SECONDS = 20.0


def _told(done: Finished) -> None:
    assert done.code == 0, done
    for word in (
        "3.500000 to api.example.com: settled",
        "recipient_not_allowed",
        "per_transaction_cap_exceeded",
        "6.000000 to api.example.com: pending",
        "daily_cap_exceeded",
        "What would pass now: 2.500000",
        "policy_frozen",
        "9 spends asked for, 4 refused, 20.000000 paid",
    ):
        assert word in done.out, done.out


async def test_against_a_service_that_runs(console: Console):
    """Goal: with a key it uses that service, within 20 seconds, and cleans up its agent."""
    watch = Watch()
    _told(await console("demo"))
    assert watch.seconds < SECONDS
    (agent,) = await console.json("agents", "list")
    assert agent["status"] == "terminated"


async def test_on_a_fresh_machine(tmp_path: Path):
    """Goal: without a key it brings up a service of its own, and leaves nothing behind."""
    console = Console({"TMPDIR": str(tmp_path)}, tmp_path)
    watch = Watch()
    _told(await console("demo"))
    assert watch.seconds < SECONDS
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_a_live_key_is_not_played_with(served: Service, tmp_path: Path):
    key = await served.key(account=new_account(), mode="live")
    console = Console({"BURSAR_API_KEY": key, "BURSAR_BASE_URL": served.url}, tmp_path)
    done = await console("demo")
    assert (done.code, "live key" in done.err) == (ExitCode.USAGE, True)
