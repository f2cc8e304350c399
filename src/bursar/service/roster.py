"""Keeps on disk which processes a `serve` started, so that the next one can end those left behind.

A process is ended only on proof that it is ours: its id together with its start time (the id alone
may have been reused), or the mark that we put into its environment.
"""

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bursar.config import MARK_VARIABLE

ROSTER_FILE: Final = "children.json"
# How long leftover processes may take to stop when asked. Short, because they were asked once when
# their supervisor died, and PostgreSQL recovers from a kill.
LEFTOVER_STOP_SECONDS: Final = 5.0
# Tolerance: psutil derives start times from the boot time, which shifts when the clock is set.
_START_TIME_SLACK_SECONDS: Final = 1.0
_KILL_SECONDS: Final = 5.0
_KILL_ROUNDS: Final = 20
_POLL_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    pid: int
    started: float
    stop_signal: int

    def process(self) -> psutil.Process | None:
        """The process, or None if it has ended, even if another process has its id now."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            same = abs(process.create_time() - self.started) <= _START_TIME_SLACK_SECONDS
        except psutil.Error:
            return None
        return process if same else None


class Roster:
    """The file `children.json` of one data folder. Call `clear_leftovers` before anything else."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROSTER_FILE
        self._mark = secrets.token_hex(16)
        self._entries: dict[str, Entry] = {}

    def mark(self, name: str) -> str:
        """The mark in the environment of the child `name` and of everything it starts."""
        return f"{self._mark}/{name}"

    def open(self) -> None:
        """Write down the mark before the first child starts, so that even a child that could not be
        listed (no time, no disk space) can be found."""
        self._write()

    def add(self, name: str, pid: int, stop_signal: signal.Signals) -> None:
        try:
            started = psutil.Process(pid).create_time()
        except psutil.Error:
            return  # it is gone already
        self._entries[name] = Entry(name, pid, started, int(stop_signal))
        with suppress(OSError):
            self._write()

    def remove(self, name: str) -> None:
        if self._entries.pop(name, None) is not None:
            with suppress(OSError):
                self._write()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)

    async def clear_leftovers(self) -> list[str]:
        """End what an earlier `serve` on this folder left behind; returns their names, for the
        log."""
        mark, entries = self._read()
        left = [(entry, process) for entry in entries if (process := entry.process())]
        for entry, process in left:
            _send(process, entry.stop_signal)
        await _gone([process for _, process in left], LEFTOVER_STOP_SECONDS)
        ended = [f"{entry.name} ({entry.pid})" for entry, _ in left]
        await kill_all(
            lambda: [
                *(process for entry in entries if (process := entry.process())),
                *(marked_processes(mark) if mark else ()),
            ]
        )
        return ended

    def _read(self) -> tuple[str, list[Entry]]:
        try:
            content: Any = json.loads(self._path.read_text("utf-8"))
            return str(content["mark"]), [
                Entry(str(e["name"]), int(e["pid"]), float(e["started"]), int(e["stop_signal"]))
                for e in content["children"]
            ]
        except FileNotFoundError:
            return "", []
        except (ValueError, KeyError, TypeError):
            # We did not write this file, because ours is always replaced as a whole. So nothing in
            # it is proof.
            return "", []

    def _write(self) -> None:
        content = {
            "mark": self._mark,
            "supervisor": os.getpid(),
            "children": [asdict(entry) for entry in self._entries.values()],
        }
        new = self._path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(content, indent=1), "utf-8")
        new.replace(self._path)


def marked_processes(mark: str) -> list[psutil.Process]:
    """Every process with `mark` in its environment; if `mark` names no child, with any mark made
    from it."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            carried = process.environ().get(MARK_VARIABLE, "")
        except (psutil.Error, OSError):
            continue  # gone, a zombie, or somebody else's
        if carried == mark or carried.startswith(mark + "/"):
            found.append(process)
    return found


async def kill_all(find: Callable[[], Iterable[psutil.Process]]) -> int:
    """SIGKILL the processes that `find` returns until it returns none; returns how many were
    killed.

    Several rounds, because a process may start another one while we look.
    """
    killed: set[int] = set()
    for _ in range(_KILL_ROUNDS):
        processes = list(find())
        if not processes:
            break
        for process in processes:
            killed.add(process.pid)
            _send(process, signal.SIGKILL)
        await _gone(processes, _KILL_SECONDS)
    return len(killed)


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):
        # psutil compares the start time once more before it signals.
        process.send_signal(number)


async def _gone(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until none of them runs, at most `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while any(_runs(process) for process in processes):
        if asyncio.get_running_loop().time() >= deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)


def _runs(process: psutil.Process) -> bool:
    # A zombie only waits for its parent to notice; it holds no file, lock or memory.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
