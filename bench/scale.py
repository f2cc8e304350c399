"""Do lists, single reads, statistics and spends cost the same at a million transactions?

Two books on one server, a `bursar api` on each, asked in turns.
"""

import http.client
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.authorise import CONNECTIONS, Meter
from bench.books import SPENDERS, Books, agent_id, transaction_id
from bench.load import Wrk
from bench.rows import Row, below
from bench.service import running
from bursar.config import Config
from bursar.service.postgres import EmbeddedPostgres

_REQUESTS: Final = 200
_SECONDS: Final = 2


async def rows(
    server: EmbeddedPostgres, config: Config, folder: Path, books: Sequence[Books], rounds: int
) -> list[Row]:
    """Of two books, the fewer first."""
    few, many = (one.size for one in books)
    with ExitStack() as stack:
        apis = {
            one.size: stack.enter_context(
                running("api", config.data_dir, folder / "scale.log", DATABASE_URL=one.dsn)
            )
            for one in books
        }
        readers = {one.size: _Reader(apis[one.size].port, one.admins) for one in books}
        found = [
            below(f"{name}, p50 at {many:,} (reference: {few:,})", p50[many], "ms", p50[few], 1.3)
            for name, paths in _QUESTIONS.items()
            for p50 in [_p50(readers, paths)]
        ]
        if Wrk.installed():
            meters = {size: Meter(api, server) for size, api in apis.items()}
            loads = {size: Wrk(api.url, folder, f"at-{size}") for size, api in apis.items()}
            found.append(_cost(meters, loads, books, rounds))
        return found


def _cost(
    meters: dict[int, Meter], loads: dict[int, Wrk], books: Sequence[Books], rounds: int
) -> Row:
    """Processor time a spend, in the service and the database."""
    used: dict[int, list[float]] = {size: [] for size in loads}
    for _ in range(rounds):
        for one in books:
            _, micros = meters[one.size].measure(
                lambda one=one: loads[one.size].spend(one.spenders, CONNECTIONS, _SECONDS)
            )
            used[one.size].append(micros["api"] + micros["postgres"])
    few, many = (statistics.median(used[size]) for size in sorted(used))
    return Row(
        name=f"processor time a spend at {max(used):,} transactions (reference: {min(used):,})",
        value=many,
        unit="us",
        reference=few,
        ratio=many / few,
    )


# What is asked of a book with so many transactions; each time another one.
_QUESTIONS: Final[dict[str, Callable[[int], Iterator[str]]]] = {
    "get a transaction": lambda size: (
        f"/v1/transactions/{transaction_id(number * 7919 % size)}" for number in itertools.count()
    ),
    "list transactions": lambda _: itertools.repeat("/v1/transactions"),
    "list an agent's approved": lambda _: (
        # The fewer book has two of them for each agent, and equal pages are what is compared.
        f"/v1/transactions?status=approved&limit=2&agentId={agent_id(number * 7 % SPENDERS)}"
        for number in itertools.count()
    ),
    "statistics": lambda _: itertools.repeat("/v1/transactions/stats"),
    "statistics of an agent": lambda _: (
        f"/v1/transactions/stats?agentId={agent_id(number * 7 % SPENDERS)}"
        for number in itertools.count()
    ),
}


class _Reader:
    """One kept connection, as a client has; the standard library's, because it costs the least."""

    def __init__(self, port: int, keys: list[str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._keys = itertools.cycle(keys)

    def seconds(self, path: str) -> float:
        headers = {"Authorization": f"Bearer {next(self._keys)}"}
        started = time.perf_counter()
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        body = answer.read()
        taken = time.perf_counter() - started
        assert answer.status == 200, (path, answer.status, body[:300])
        return taken


def _p50(readers: dict[int, _Reader], paths: Callable[[int], Iterator[str]]) -> dict[int, float]:
    """Milliseconds at each size; whoever goes second may be luckier, so that takes turns too."""
    wanted = {size: paths(size) for size in readers}
    taken: dict[int, list[float]] = {size: [] for size in readers}
    for turn in range(_REQUESTS):
        for size in sorted(readers, reverse=turn % 2 == 0):
            taken[size].append(readers[size].seconds(next(wanted[size])))
    return {size: statistics.median(times) * 1000 for size, times in taken.items()}
