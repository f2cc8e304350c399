"""`make bench`: every figure Bursar promises, measured against its reference in one run.

BENCH_SECONDS  of each load, 4      BENCH_ROUNDS  in which each takes its turn, 3
BENCH_MANY     transactions, 1000000
"""

import asyncio
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import (
    authorise,
    books,
    clients,
    console,
    fleets,
    localnet,
    machine,
    purchases,
    replay,
    rest,
    rising,
    scale,
    settlement,
    webhooks,
)
from bench.books import FEW, SPENDERS, make_books
from bench.chart import chart
from bench.curve import curve
from bench.load import WRK_MISSING, Pgbench, Wrk
from bench.rows import Row, at_least, save, table, worse
from bench.rows import load as load_rows
from bench.service import Tenants, make_tenants, running
from bursar.config import load_config
from bursar.db import Database
from bursar.ledger.audit import audit
from bursar.logs import set_up_logs
from bursar.migrations.migrate import migrate
from bursar.service.postgres import EmbeddedPostgres, running_postgres

ROOT: Final = Path(__file__).parents[1]
# Beside the source and not in the temporary folder, which may be memory and not a disk.
FOLDER: Final = ROOT / "build/bench"
RESULTS: Final = ROOT / "bench/results.json"
CHART: Final = ROOT / "docs/img/bench.svg"
CURVE: Final = ROOT / "docs/img/load.svg"

# What `bursar serve` gives its PostgreSQL.
_CONNECTIONS: Final = 28

SECONDS: Final = int(os.environ.get("BENCH_SECONDS", "4"))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
MANY: Final = int(os.environ.get("BENCH_MANY", str(books.MANY)))


def main() -> None:
    set_up_logs("error", "bench")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        rows = asyncio.run(measure())
    finally:
        for name in ("data", "rest"):
            shutil.rmtree(FOLDER / name, ignore_errors=True)
    print(f"\n{table(rows)}\n\n{machine.describe()}")
    if RESULTS.exists():
        found = worse(load_rows(RESULTS), rows)
        print("\nWorse than in the run before:" if found else "\nNothing worse than before.")
        for line in found:
            print(f"  {line}")
    save(rows, RESULTS)
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(chart(rows, machine.describe()), "utf-8")
    load = curve(rows)
    if load is not None:
        CURVE.write_text(load, "utf-8")
    print(f"\nWritten to {RESULTS.relative_to(ROOT)} and {CHART.parent.relative_to(ROOT)}.")


async def measure() -> list[Row]:
    rows: list[Row] = []
    async with running_postgres(FOLDER / "data", max_connections=_CONNECTIONS) as server:
        await migrate(server.dsn)
        config = replace(load_config({}, data_dir=FOLDER / "data"), database_url=server.dsn)
        _say("agents and keys")
        db = await Database.open(server.dsn, 2, 600)
        tenants = await make_tenants(db, config, authorise.AGENTS, authorise.HOT_KEYS)
        made = await fleets.make_fleets(db, config, tenants.realm_id)
        await db.close()
        if Wrk.installed():
            rows += _authorise(server, tenants, made)
            _say("audit")
            await _nothing_refused(server.dsn)
            await _audit(server.dsn)
        else:
            print(f"{WRK_MISSING}; the rows of authorise are left out.")
        _say(f"books of {FEW:,} and {MANY:,} transactions")
        few = await make_books(server, config, FEW, SPENDERS)
        many = await make_books(server, config, MANY, console.AGENTS)
        # The same statements load both, so one audit speaks for both.
        await _audit(few.dsn)
        _say("lists, single reads, statistics and spends with both books")
        rows += await scale.rows(server, config, FOLDER, [few, many], ROUNDS)
        _say("the console with the larger books")
        rows += await console.rows(server, config, FOLDER, many)
    _say("start and rest")
    rows += rest.rows(FOLDER / "rest", FOLDER / "serve.log", ROUNDS)
    _say("settlement")
    (bare, rate, unit), (_, settled, _), _ = await settlement.rows(ROUNDS)
    rows.append(at_least(f"settlements (reference: {bare})", settled, unit, rate, 0.6))
    _say("purchases")
    rows += await purchases.rows()
    _say("webhooks")
    rows += await webhooks.rows()
    _say("clients")
    weights = clients.rows()
    if len(weights) < 2:
        print(clients.TYPESCRIPT_MISSING)
    rows += weights
    _say("localnet")
    rows += [Row(name=name, value=value, unit=unit) for name, value, unit in await localnet.rows()]
    return rows


async def _audit(dsn: str) -> None:
    db = await Database.open(dsn, 1, 600)
    for finding in await audit(db, lambda _: None):
        assert finding.clean, finding
    await db.close()


async def _nothing_refused(dsn: str) -> None:
    """A refusal is a 201 too, and cheaper than what was meant to be measured."""
    db = await Database.open(dsn, 1, 600)
    async with db.connection() as tx:
        codes = await tx.fetchval("SELECT array_agg(DISTINCT reject_code) FROM spend")
    assert codes == [None], codes
    await db.close()


def _authorise(
    server: EmbeddedPostgres, tenants: Tenants, of_fleets: tuple[Tenants, Tenants]
) -> list[Row]:
    _say("pgbench's own data")
    pgbench = Pgbench(server)
    pgbench.prepare()
    log = FOLDER / "authorise.log"
    with running("api", server.data_dir, log, DATABASE_URL=server.dsn) as service:
        _say(f"authorise and TPC-B in turns, {ROUNDS} rounds")
        meter, wrk = authorise.Meter(service, server), Wrk(service.url, FOLDER)
        rows = authorise.rows(meter, pgbench, wrk, tenants, SECONDS, ROUNDS)
        _say("authorise beside a backtest of what was spent so far")
        rows += replay.rows(wrk, tenants, server.dsn, SECONDS)
        _say("authorise under a budget and under limits")
        rows += fleets.rows(wrk, tenants, of_fleets, SECONDS, ROUNDS)
        _say("authorise at rising load")
        rows += [*rising.rows(wrk, tenants), rising.weight(service, server)]
        _say("authorise beside a plain implementation")
        with running(
            "api", server.data_dir, log, program="bench.plain", DATABASE_URL=server.dsn
        ) as plain:
            rows += rising.beside_plain(wrk, Wrk(plain.url, FOLDER, "plain"), tenants, ROUNDS)
        _say("authorise beside itself without shared commits")
        with running(
            "api", server.data_dir, log, program="bench.unshared", DATABASE_URL=server.dsn
        ) as unshared:
            rows += rising.beside_unshared(
                wrk, Wrk(unshared.url, FOLDER, "unshared"), tenants, ROUNDS
            )
    return rows


_started: Final = time.perf_counter()


def _say(what: str) -> None:
    print(f"{time.perf_counter() - _started:6.0f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
