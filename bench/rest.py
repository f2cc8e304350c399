"""How soon `bursar serve` answers, and what it takes while nobody asks anything."""

import statistics
import time
from pathlib import Path
from typing import Final

from bench.rows import Row, within
from bench.service import cpu_seconds, running

# What the start left behind is over by then.
_REST_SECONDS: Final = 2.0
_WATCHED_SECONDS: Final = 10.0


def rows(data_dir: Path, log: Path, rounds: int) -> list[Row]:
    """On a data folder that is there; the first start, which makes it, does not count."""
    data_dir.mkdir()
    with running("serve", data_dir, log):
        pass
    starts: list[float] = []
    weights: list[float] = []
    busy: list[float] = []
    for _ in range(rounds):
        with running("serve", data_dir, log) as service:
            starts.append(service.start_seconds)
            time.sleep(_REST_SECONDS)
            weights.append(service.pss_mb())
            tree = [service.process, *service.process.children(recursive=True)]
            before = cpu_seconds(tree)
            time.sleep(_WATCHED_SECONDS)
            busy.append((cpu_seconds(tree) - before) / _WATCHED_SECONDS * 1_000)
    return [
        within("bursar serve to its first answer", statistics.median(starts), "s", 3.0),
        within("memory at rest, all processes (PSS)", statistics.median(weights), "MB", 400.0),
        within("processor time at rest, all processes", statistics.median(busy), "ms/s", 50.0),
    ]
