"""Starts children in order, restarts those that die, stops them in reverse, leaves none behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import structlog

from bursar.config import MARK_VARIABLE
from bursar.errors import CommandFailed, check, present
from bursar.service import launch
from bursar.service.roster import Roster, kill_all, marked_processes

# The first restart comes quickly, because most deaths are single accidents. A child that keeps
# dying is started at most six times a minute.
FIRST_BACKOFF_SECONDS: Final = 0.1
MAX_BACKOFF_SECONDS: Final = 10.0
# A child that ran this long has recovered: its next death starts at the short backoff again.
STEADY_SECONDS: Final = 10.0
_KILLED_SECONDS: Final = 5.0

_log: Any = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process to keep alive.

    `ready` returns once the child can do its work; it is cancelled after `ready_seconds` or when
    the child dies. `clear` ends and removes whatever a dead run of this child left; it runs before
    every start and after every end. `death_signal` is what Linux sends it when the supervisor
    itself is killed. `identity` is explained in `launch.py`. `stderr_file` keeps the standard
    error of the latest run; without it, standard error passes through to ours. `needs` is what the
    child has to wait for at its first start, once it has imported its modules: its standard input
    is closed when that is done.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    ready: Callable[[], Awaitable[None]] | None = None
    ready_seconds: float = 30.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    death_signal: signal.Signals = signal.SIGTERM
    identity: str = "self"
    clear: Callable[[], Awaitable[None]] | None = None
    stderr_file: Path | None = None
    needs: asyncio.Future[Any] | None = None


class Supervisor:
    """`async with Supervisor(folder)`: ends what an earlier one left there, then keeps the
    children that are handed to `start` running; leaving the block stops them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._roster = Roster(folder)
        self._kept: list[_Kept] = []
        self._stopping = False

    async def __aenter__(self) -> Self:
        for what in await self._roster.clear_leftovers():
            _log.warning("leftover_ended", process=what)
        self._roster.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
        self._roster.close()

    async def start(self, child: Child) -> None:
        """Start it and wait until it is ready. Raises CommandFailed when it does not get there;
        from then on it is restarted whenever it dies."""
        check(all(kept.child.name != child.name for kept in self._kept), "child names are unique")
        if self._stopping:
            raise CommandFailed(f"{child.name} did not start: the service is being stopped")
        kept = _Kept(child, self._folder, self._roster)
        # Listed first: a start that is cancelled half-way still has to be stopped.
        self._kept.append(kept)
        await kept.run_first()

    def pid(self, name: str) -> int | None:
        """The process of that child right now; None while it is being restarted."""
        return next((kept.pid for kept in self._kept if kept.child.name == name), None)

    async def stop(self) -> None:
        """Stop all, the last started first, each within its own bound. May be called twice."""
        self._stopping = True
        while self._kept:
            kept = self._kept[-1]
            await kept.stop()
            self._kept.remove(kept)


class _Kept:
    """One child and the task that keeps it alive."""

    def __init__(self, child: Child, folder: Path, roster: Roster) -> None:
        self.child = child
        self._folder = folder
        self._roster = roster
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    @property
    def _has_to_wait(self) -> bool:
        return self.child.needs is not None and not self.child.needs.done()

    async def run_first(self) -> None:
        problem = await self._run()
        if problem is not None:
            words = self._last_words()
            await self._end()
            raise CommandFailed(f"{self.child.name} did not start: {problem}{words}")
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.child.name}")

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        await self._end()

    async def _keep(self) -> None:
        """Restart the child for ever; ends only by being cancelled."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            up_since = loop.time()
            process = self._process
            problem = "it never ran" if process is None else _ending(await process.wait())
            if loop.time() - up_since >= STEADY_SECONDS:
                deaths = 0
            while problem is not None:
                delay = backoff_seconds(deaths)
                deaths += 1
                _log.error(
                    "child_died", child=self.child.name, problem=problem, restart_seconds=delay
                )
                await self._end()
                await asyncio.sleep(delay)
                problem = await self._run()
            _log.info("child_restarted", child=self.child.name, pid=self.pid)

    async def _run(self) -> str | None:
        """Start the process and wait until it is ready; returns what went wrong, if anything."""
        try:
            process = await self._spawn()
        except (OSError, CommandFailed) as error:
            return f"{error}"  # no memory, no disk: may pass like any other death
        return await self._wait_ready(process)

    async def _spawn(self) -> asyncio.subprocess.Process:
        child = self.child
        if child.clear is not None:
            await child.clear()
        env = {
            **child.env,
            "BURSAR_DATA_DIR": str(self._folder),
            MARK_VARIABLE: self._roster.mark(child.name),
        }
        stderr = None if child.stderr_file is None else _private_file(child.stderr_file)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *launch_argv(child.argv, identity=child.identity, death_signal=child.death_signal),
                env=env,
                stdin=subprocess.PIPE if self._has_to_wait else subprocess.DEVNULL,
                stderr=stderr,
                # In its own session, so that a Ctrl-C in the terminal reaches only us, and we stop
                # the children in order.
                start_new_session=True,
            )
        finally:
            if stderr is not None:
                os.close(stderr)
        self._roster.add(child.name, self._process.pid, child.stop_signal)
        return self._process

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> str | None:
        """None once ready, otherwise what went wrong."""
        exited = asyncio.ensure_future(process.wait())
        tasks: list[asyncio.Future[Any]] = [exited]
        try:
            if process.stdin is not None:
                needs = present(self.child.needs, "a child that waits needs something")
                await asyncio.wait({needs, exited}, return_when=asyncio.FIRST_COMPLETED)
                if needs.done():
                    needs.result()  # raises what went wrong
                process.stdin.close()
            if self.child.ready is None:
                return None
            ready = asyncio.ensure_future(self.child.ready())
            tasks.append(ready)
            await asyncio.wait(
                {ready, exited},
                timeout=self.child.ready_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if exited.done():
                return f"it ended before it was ready: {_ending(exited.result())}"
            if not ready.done():
                return f"it was not ready within {self.child.ready_seconds:g} seconds"
            return None if ready.exception() is None else f"{ready.exception()}"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        """Ask the process to stop, then kill it; nothing of it runs afterwards."""
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(self.child.stop_signal)
            if not await _exited(process, self.child.stop_seconds):
                _log.warning(
                    "child_killed", child=self.child.name, after_seconds=self.child.stop_seconds
                )
                with suppress(ProcessLookupError):
                    process.kill()
                await _exited(process, _KILLED_SECONDS)
        await self._sweep()
        self._process = None

    async def _sweep(self) -> None:
        """End what the dead child started: HTTP workers, say, that outlived their parent."""
        mark = self._roster.mark(self.child.name)
        count = await kill_all(lambda: marked_processes(mark))
        if count:
            _log.warning("orphans_ended", child=self.child.name, count=count)
        if self.child.clear is not None:
            try:
                await self.child.clear()
            except OSError as error:
                # `clear` runs again before the next start; the other children must still be
                # stopped.
                _log.error("clear_failed", child=self.child.name, problem=str(error))
        self._roster.remove(self.child.name)

    def _last_words(self) -> str:
        if self.child.stderr_file is None or not self.child.stderr_file.exists():
            return ""
        words = self.child.stderr_file.read_text("utf-8", "replace").strip()[-2000:]
        return f"\n{words}" if words else ""


def backoff_seconds(deaths: int) -> float:
    """The pause before a restart, after `deaths` earlier ones without a steady run between."""
    # The exponent is bounded too, because 2 ** 5000 overflows a float.
    return min(FIRST_BACKOFF_SECONDS * 2 ** min(deaths, 16), MAX_BACKOFF_SECONDS)


def launch_argv(
    argv: Sequence[str],
    *,
    identity: str = "self",
    death_signal: signal.Signals = signal.SIGKILL,
) -> list[str]:
    """`argv` run through `launch.py`; for a child of this very process."""
    launcher = [sys.executable, "-I", "-S", launch.__file__]
    return [*launcher, str(os.getpid()), str(int(death_signal)), identity, *argv]


def _private_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


async def _exited(process: asyncio.subprocess.Process, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
