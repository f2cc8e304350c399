"""Room on the disk of the embedded database. A full disk would stop PostgreSQL in the middle of its
work, so new requests are refused while there is still room to finish the running ones."""

import shutil
from pathlib import Path
from typing import Final

import structlog

from bursar.clock import Clock

# How long a measurement is reused: in this time the disk cannot fill by as much as the reserve.
_BELIEVED_NS: Final = 1_000_000_000

_log = structlog.get_logger()


class DiskRoom:
    """When called: whether more than the reserve is free."""

    def __init__(self, folder: Path, reserve_mib: int, clock: Clock) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_mib * 1024 * 1024
        self._clock = clock
        self._is_there = True
        self._asked_ns: int | None = None

    def __call__(self) -> bool:
        now = self._clock.monotonic_ns()
        if self._asked_ns is None or now - self._asked_ns > _BELIEVED_NS:
            self._asked_ns = now
            free = shutil.disk_usage(self._folder).free
            was, self._is_there = self._is_there, free >= self._reserve_bytes
            if was and not self._is_there:
                _log.error("disk_almost_full", folder=str(self._folder), free_bytes=free)
        return self._is_there
