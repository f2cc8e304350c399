"""How soon `bursar serve` answers, and what it weighs while nobody asks anything."""

import statistics
import time
from pathlib import Path
from typing import Final

from bench.rows import Row, within
from bench.service import running

_REST_SECONDS: Final = 2.0


def rows(data_dir: Path, log: Path, rounds: int) -> list[Row]:
    """On a data folder that is there; the first start, which makes it, does not count."""
    data_dir.mkdir()
    with running("serve", data_dir, log):
        pass
    starts: list[float] = []
    weights: list[float] = []
    for _ in range(rounds):
        with running("serve", data_dir, log) as service:
            starts.append(service.start_seconds)
            time.sleep(_REST_SECONDS)
            weights.append(service.pss_mb())
    return [
        within("bursar serve to its first answer", statistics.median(starts), "s", 3.0),
        within("memory at rest, all processes (PSS)", statistics.median(weights), "MB", 400.0),
    ]
