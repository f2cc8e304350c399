"""Spends over HTTP with everything on, in turns with TPC-B on the same PostgreSQL.

The service is `bursar api` on the embedded server. The worker does not run: it would settle on the
chain, beside the measurement, what was just authorised.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bench.load import Pgbench, Result, Wrk
from bench.rows import Row, at_least, below
from bench.service import Running, Tenants, cpu_seconds
from bursar.service.postgres import EmbeddedPostgres

CONNECTIONS: Final = 64
MANY_CONNECTIONS: Final = 256
AGENTS: Final = 1_000
# At 3,000 requests a minute for each test key, so many are never held up.
HOT_KEYS: Final = 300
# As many as the server has connections for beside the service.
_CLIENTS: Final = (4, 8, 16)
_WARM_UP_SECONDS: Final = 2
# One client has every answer to itself, and shows its median soon.
_ALONE_SECONDS: Final = 2
_ENDING_SECONDS: Final = 0.3


@dataclass(slots=True)
class _Rounds:
    """What was measured, a figure a round."""

    tpcb: list[float] = field(default_factory=list)
    tpcb_p50: list[float] = field(default_factory=list)
    tpcb_cpu: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    spread_p99: list[float] = field(default_factory=list)
    many: list[float] = field(default_factory=list)
    hot: list[float] = field(default_factory=list)
    alone_p50: list[float] = field(default_factory=list)
    # Processor time a spend, by the kind of process.
    cpu: dict[str, list[float]] = field(default_factory=dict)


class Meter:
    """Tells the processor time that the service and its database take for a piece of load."""

    def __init__(self, service: Running, server: EmbeddedPostgres) -> None:
        self._service = service
        self._server = server

    def measure(self, load: Callable[[], Result]) -> tuple[Result, dict[str, float]]:
        """The result, and the microseconds a piece, by the kind of process."""
        before = self._seconds()
        result = load()
        # A server process whose client is gone counts as its parent's once it has ended.
        time.sleep(_ENDING_SECONDS)
        used = {kind: after - before[kind] for kind, after in self._seconds().items()}
        used["load generator"] = result.cpu_seconds
        return result, {kind: seconds / result.count * 1e6 for kind, seconds in used.items()}

    def _seconds(self) -> dict[str, float]:
        return {
            "api": cpu_seconds([self._service.process]),
            "postgres": cpu_seconds(self._server.processes()),
        }


def rows(
    meter: Meter, pgbench: Pgbench, wrk: Wrk, tenants: Tenants, seconds: int, rounds: int
) -> list[Row]:
    """Medians of rounds in which every load takes its turn, so that all share good and bad luck."""
    clients = max(_CLIENTS, key=lambda clients: pgbench.run(clients, _WARM_UP_SECONDS).rate)
    wrk.spend(tenants.spread, CONNECTIONS, _WARM_UP_SECONDS)
    wrk.spend(tenants.hot, CONNECTIONS, _WARM_UP_SECONDS)
    found = _Rounds()
    for _ in range(rounds):
        tpcb, used = meter.measure(lambda: pgbench.run(clients, seconds))
        found.tpcb.append(tpcb.rate)
        found.tpcb_cpu.append(used["postgres"] + used["load generator"])
        spread, used = meter.measure(lambda: wrk.spend(tenants.spread, CONNECTIONS, seconds))
        found.spread.append(spread.rate)
        found.spread_p99.append(spread.p99_ms)
        for kind, micros in used.items():
            found.cpu.setdefault(kind, []).append(micros)
        found.many.append(wrk.spend(tenants.spread, MANY_CONNECTIONS, seconds).rate)
        found.hot.append(wrk.spend(tenants.hot, CONNECTIONS, seconds).rate)
        found.tpcb_p50.append(pgbench.p50_ms(_ALONE_SECONDS))
        found.alone_p50.append(wrk.spend(tenants.spread, 1, _ALONE_SECONDS).p50_ms)
    return _rows(found)


def _rows(found: _Rounds) -> list[Row]:
    median = statistics.median
    spread, tpcb_cpu = median(found.spread), median(found.tpcb_cpu)
    cpu = {kind: median(used) for kind, used in sorted(found.cpu.items())}
    cpu_of_all = sum(cpu.values())
    return [
        at_least(
            f"authorise, {CONNECTIONS} connections, {AGENTS:,} agents (reference: TPC-B)",
            spread,
            "/s",
            median(found.tpcb),
            0.7,
        ),
        at_least(
            f"authorise, {MANY_CONNECTIONS} connections (reference: TPC-B)",
            median(found.many),
            "/s",
            median(found.tpcb),
            0.85,
        ),
        at_least(
            "authorise, one hot agent (reference: spread)", median(found.hot), "/s", spread, 1.0
        ),
        below(
            "authorise, one connection, p50 (reference: TPC-B, one client)",
            median(found.alone_p50),
            "ms",
            median(found.tpcb_p50),
            4.5,
        ),
        Row(
            name=f"authorise, {CONNECTIONS} connections, p99",
            value=median(found.spread_p99),
            unit="ms",
        ),
        # Steadier than rates where the machine has other work.
        below(
            "processor time a spend, all processes (reference: a TPC-B transaction)",
            cpu_of_all,
            "us",
            tpcb_cpu,
            1.1,
        ),
        # What is left of the cores is idle: nothing waits for a processor then.
        Row(
            name=f"processor in use, {CONNECTIONS} connections",
            value=cpu_of_all * spread / 1e4 / (os.cpu_count() or 1),
            unit="%",
        ),
        *(
            Row(name=f"processor time a spend, {kind}", value=used, unit="us")
            for kind, used in cpu.items()
        ),
    ]
