"""`make bench`: every figure Bursar promises, measured against its reference in one run.

BENCH_SECONDS  of each load, 5      BENCH_ROUNDS  in which each takes its turn, 3
BENCH_MANY     transactions, 1000000
"""

import asyncio
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import authorise, localnet, machine, rest, scale
from bench.chart import chart
from bench.load import WRK_MISSING, Pgbench, Wrk
from bench.rows import Row, save, table
from bench.service import make_tenants, running
from bursar.config import load_config
from bursar.db import Database
from bursar.ledger.audit import audit
from bursar.service.postgres import EmbeddedPostgres

ROOT: Final = Path(__file__).parents[1]
# Beside the source and not in the temporary folder, which may be memory and not a disk.
FOLDER: Final = ROOT / "build/bench"
RESULTS: Final = ROOT / "bench/results.json"
CHART: Final = ROOT / "docs/img/bench.svg"

SECONDS: Final = int(os.environ.get("BENCH_SECONDS", "5"))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
MANY: Final = int(os.environ.get("BENCH_MANY", str(scale.MANY)))


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        rows = asyncio.run(measure())
    finally:
        shutil.rmtree(FOLDER / "data", ignore_errors=True)
    print(f"\n{table(rows)}\n\n{machine.describe()}")
    save(rows, RESULTS)
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(chart(rows, machine.describe()), "utf-8")
    print(f"\nWritten to {RESULTS.relative_to(ROOT)} and {CHART.relative_to(ROOT)}.")


async def measure() -> list[Row]:
    data_dir = FOLDER / "data"
    server = EmbeddedPostgres(data_dir)
    rows: list[Row] = []
    with running("serve", data_dir, FOLDER / "serve.log") as service:
        config = replace(load_config({}, data_dir=data_dir), database_url=server.dsn)
        _say("agents and keys")
        db = await Database.open(server.dsn, 2, 600)
        tenants = await make_tenants(db, config, authorise.AGENTS, authorise.HOT_KEYS)
        if Wrk.installed():
            _say("pgbench's own data")
            pgbench = Pgbench(server)
            pgbench.prepare()
            _say(f"authorise and TPC-B in turns, {ROUNDS} rounds")
            wrk = Wrk(service.url, FOLDER)
            rows += authorise.rows(service, pgbench, wrk, tenants, SECONDS, ROUNDS)
        else:
            print(f"{WRK_MISSING}; the rows of authorise are left out.")
        _say("audit")
        for finding in await audit(db, lambda _: None):
            assert finding.clean, finding
        await db.close()
        _say(f"books of {scale.FEW:,} and {MANY:,} transactions")
        rows += await scale.rows(server, config, FOLDER, MANY)
    _say("start and rest")
    rows += rest.rows(data_dir, FOLDER / "serve.log", ROUNDS)
    _say("localnet")
    rows += [Row(name=name, value=value, unit=unit) for name, value, unit in await localnet.rows()]
    return rows


_started: Final = time.perf_counter()


def _say(what: str) -> None:
    print(f"{time.perf_counter() - _started:6.0f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
