"""A virtual machine shares its processors with others; this tells how much of them was ours."""

import os
import time
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
# The time that a processor was ready to run and did not, for its host ran somebody else's.
_STOLEN_COLUMN: Final = 8


class Watch:
    """Stands still while the host runs somebody else's: no program is slow for that. Where nobody
    tells, it is like any other."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._stolen = _stolen()

    @property
    def seconds(self) -> float:
        return self.wall_seconds - self.stolen_seconds

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def stolen_seconds(self) -> float:
        """Of the processor that lost most."""
        since = zip(_stolen(), self._stolen, strict=False)
        return max((now - before for now, before in since), default=0.0)


def _stolen() -> list[float]:
    try:
        lines = _STAT.read_text("ascii").splitlines()
    except OSError:
        return []
    # The first line adds up those of the processors, which follow it.
    rows = [line.split() for line in lines[1:] if line.startswith("cpu")]
    return [int(row[_STOLEN_COLUMN]) / os.sysconf("SC_CLK_TCK") for row in rows]
