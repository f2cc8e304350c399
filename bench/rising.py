"""Authorise at rising load up to saturation, beside a plain implementation, and what it weighs."""

import statistics
from collections.abc import Sequence
from typing import Final

import psutil

from bench.authorise import CONNECTIONS
from bench.load import Result, Wrk
from bench.rows import Row, at_least, below
from bench.service import Running, Tenants
from bursar.service.postgres import EmbeddedPostgres

LOADS: Final = (1, 4, 16, 64, 256)
_FEW: Final = 16
_SECONDS: Final = 3
_TURN_SECONDS: Final = 2


def rows(wrk: Wrk, tenants: Tenants) -> list[Row]:
    """The rate and the spread of the answers' times, a line for each load."""
    found = {load: wrk.spend(tenants.spread, load, _SECONDS) for load in LOADS}
    few = found[_FEW]
    name = f"authorise at {_FEW} connections, p99 (reference: p50)"
    return [
        *(row for load, result in found.items() for row in _of(load, result)),
        below(name, few.p99_ms, "ms", few.p50_ms, 6.0),
    ]


def _of(load: int, result: Result) -> list[Row]:
    name = f"authorise at {load} connection{'s' if load > 1 else ''}"
    return [
        Row(name=f"{name}, rate", value=result.rate, unit="/s"),
        Row(name=f"{name}, p50", value=result.p50_ms, unit="ms"),
        Row(name=f"{name}, p99", value=result.p99_ms, unit="ms"),
        Row(name=f"{name}, p99.9", value=result.p999_ms, unit="ms"),
    ]


def beside_plain(wrk: Wrk, plain: Wrk, tenants: Tenants, rounds: int) -> list[Row]:
    return [
        at_least(
            f"authorise, {name} (reference: a transaction for each request)",
            ours,
            "/s",
            theirs,
            8.0,
        )
        for name, ours, theirs in _of_each_load(wrk, plain, tenants, rounds)
    ]


def beside_unshared(wrk: Wrk, unshared: Wrk, tenants: Tenants, rounds: int) -> list[Row]:
    """Only informs: what makes a batch of one cheaper makes this ratio worse."""
    return [
        Row(
            name=f"authorise, {name} (reference: a batch for each request)",
            value=ours,
            unit="/s",
            reference=theirs,
            ratio=ours / theirs,
        )
        for name, ours, theirs in _of_each_load(wrk, unshared, tenants, rounds)
    ]


def _of_each_load(
    wrk: Wrk, other: Wrk, tenants: Tenants, rounds: int
) -> list[tuple[str, float, float]]:
    named = {"spread": tenants.spread, "one hot agent": tenants.hot}
    return [(name, *_in_turns(wrk, other, keys, rounds)) for name, keys in named.items()]


def _in_turns(
    wrk: Wrk, other: Wrk, keys: Sequence[tuple[str, str]], rounds: int
) -> tuple[float, float]:
    """So that both share good and bad luck."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(wrk.spend(keys, CONNECTIONS, _TURN_SECONDS).rate)
        theirs.append(other.spend(keys, CONNECTIONS, _TURN_SECONDS).rate)
    return statistics.median(ours), statistics.median(theirs)


def weight(service: Running, server: EmbeddedPostgres) -> Row:
    """Right after the load, with all that it left in memory."""
    processes: list[psutil.Process] = [service.process, *server.processes()]
    pss = sum(process.memory_full_info().pss for process in processes) / 2**20
    return Row(
        name="memory after the load, HTTP process and PostgreSQL (PSS)", value=pss, unit="MB"
    )
