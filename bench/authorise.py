"""Spends over HTTP with everything on, in turns with TPC-B on the same PostgreSQL."""

import statistics
from dataclasses import dataclass, field
from typing import Final

from bench.load import Pgbench, Wrk
from bench.rows import Row, at_least, below
from bench.service import Running, Tenants

CONNECTIONS: Final = 64
AGENTS: Final = 1_000
# At 3,000 requests a minute for each test key, so many are never held up.
HOT_KEYS: Final = 300
# As many as the server has connections for beside the service.
_CLIENTS: Final = (4, 8, 16)
_WARM_UP_SECONDS: Final = 3


@dataclass(slots=True)
class _Rounds:
    """What was measured, a figure a round."""

    tpcb: list[float] = field(default_factory=list)
    tpcb_p50: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    spread_p99: list[float] = field(default_factory=list)
    hot: list[float] = field(default_factory=list)
    alone_p50: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)


def rows(
    service: Running, pgbench: Pgbench, wrk: Wrk, tenants: Tenants, seconds: int, rounds: int
) -> list[Row]:
    """Medians of rounds in which every load takes its turn, so that all share good and bad luck."""
    clients = max(_CLIENTS, key=lambda clients: pgbench.rate(clients, _WARM_UP_SECONDS))
    wrk.spend(tenants.spread, CONNECTIONS, _WARM_UP_SECONDS)
    wrk.spend(tenants.hot, CONNECTIONS, _WARM_UP_SECONDS)
    found = _Rounds()
    for _ in range(rounds):
        found.tpcb.append(pgbench.rate(clients, seconds))
        before = service.cpu_seconds()
        spread = wrk.spend(tenants.spread, CONNECTIONS, seconds)
        for kind, used in service.cpu_seconds().items():
            micros = (used - before.get(kind, 0.0)) / spread.requests * 1e6
            found.cpu.setdefault(kind, []).append(micros)
        found.spread.append(spread.rate)
        found.spread_p99.append(spread.p99_ms)
        found.hot.append(wrk.spend(tenants.hot, CONNECTIONS, seconds).rate)
        found.tpcb_p50.append(pgbench.p50_ms(seconds))
        found.alone_p50.append(wrk.spend(tenants.spread, 1, seconds).p50_ms)
    median = statistics.median
    tpcb, spread_rate = median(found.tpcb), median(found.spread)
    return [
        at_least(
            f"authorise, {CONNECTIONS} connections, {AGENTS:,} agents (reference: TPC-B)",
            spread_rate,
            "/s",
            tpcb,
            2.0,
        ),
        at_least(
            "authorise, one hot agent (reference: spread)",
            median(found.hot),
            "/s",
            spread_rate,
            0.7,
        ),
        below(
            "authorise, one connection, p50 (reference: TPC-B, one client)",
            median(found.alone_p50),
            "ms",
            median(found.tpcb_p50),
            3.0,
        ),
        Row(
            name=f"authorise, {CONNECTIONS} connections, p99",
            value=median(found.spread_p99),
            unit="ms",
        ),
        *(
            Row(name=f"processor time a spend, {kind}", value=median(used), unit="us")
            for kind, used in sorted(found.cpu.items())
        ),
        Row(name="TPC-B clients at its best", value=clients, unit=""),
    ]
