"""A backtest of all that was spent so far, beside full load: how long 100,000 spends take, and what
the load loses by it. No lists, limits or budgets: each of those costs more.

The backtest runs in a process of its own, as in a worker: `python -m bench.replay DSN REALM`, with
the ids of the agents on standard input, prints what it found.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import uvloop

from bench.authorise import CONNECTIONS
from bench.load import Wrk
from bench.rows import Row, at_least, within
from bench.service import PLENTY_MICROS, Tenants
from bursar.backtest import store
from bursar.backtest.job import Backtester
from bursar.backtest.model import Asked
from bursar.clock import SystemClock
from bursar.config import load_config
from bursar.db import Database, Tx, moment
from bursar.ids import new_id
from bursar.policy.model import PolicyChange
from bursar.spend.model import bounds_of

SPENDS: Final = 100_000
_MOST_SECONDS: Final = 60


def rows(wrk: Wrk, tenants: Tenants, dsn: str, seconds: int) -> list[Row]:
    """The load alone, beside the backtest until that has ended, and alone again."""

    def load() -> float:
        return wrk.spend(tenants.spread, CONNECTIONS, seconds).rate

    alone, beside = [load(), load()], list[float]()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.replay", dsn, str(tenants.realm_id)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n".join(tenants.agent_ids))
        process.stdin.close()
        while process.poll() is None:
            beside.append(load())
        assert process.returncode == 0, f"the backtest ended with {process.returncode}"
        found = json.loads(process.stdout.read())
    # The first was beside its beginning, the last beside its end only.
    beside = beside[1:-1] or beside
    alone += [load(), load()]
    return [
        within(
            f"a backtest of {SPENDS:,} spends beside full load",
            found["seconds"] * SPENDS / found["spends"],
            "s",
            _MOST_SECONDS,
        ),
        at_least(
            "authorise beside a backtest (reference: without)",
            statistics.median(beside),
            "/s",
            statistics.median(alone),
            0.9,
        ),
    ]


async def _replay(dsn: str, realm_id: int, agent_ids: Sequence[str]) -> dict[str, float]:
    """Under the cap that they have: so each decision must be the same again."""
    db = await Database.open(dsn, 2, 600)
    backtest_id = new_id("bt")
    asked = Asked(agent_ids=tuple(agent_ids), policy=PolicyChange(cap_micros_daily=PLENTY_MICROS))

    async def ask(tx: Tx) -> None:
        now = await moment(tx)
        starts = now - timedelta(days=30)
        await store.insert_backtest(tx, backtest_id, realm_id, asked, starts, now, "bench")

    await db.transact(ask)
    began = time.perf_counter()
    backtester = Backtester(db, bounds_of(load_config({})), SystemClock())
    while await backtester.work():
        pass
    took = time.perf_counter() - began
    async with db.connection() as tx:
        row = await store.get_backtest(tx, realm_id, backtest_id)
    await db.close()
    assert row is not None
    assert row.result is not None, row.problem
    result = json.loads(row.result)
    reproduced = result["reproduced"]
    assert reproduced["same"] == reproduced["of"], reproduced
    assert result["changedCount"] == 0, result["changedCount"]
    return {"seconds": took, "spends": reproduced["of"]}


def main() -> None:
    _, dsn, realm_id = sys.argv
    agent_ids = sys.stdin.read().split()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_replay(dsn, int(realm_id), agent_ids))))


if __name__ == "__main__":
    main()
