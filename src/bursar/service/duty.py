"""Duties: what a worker does again and again. A duty that fails does not stop the others. Each has
a heartbeat in the database that says whether it runs and makes progress."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from bursar.chain.port import ChainOutOfReach
from bursar.clock import Clock
from bursar.db import OUT_OF_REACH, ROLLED_BACK, Database
from bursar.errors import CommandFailed
from bursar.heartbeat import store
from bursar.heartbeat.model import BEAT_SECONDS, Beat, Part
from bursar.metrics import Duties as Metrics

# A duty counts as stuck when no round of it succeeded for this long, plus some of its rests.
_PATIENCE_SECONDS: Final = 60.0
_RESTS: Final = 3
# How much longer it rests after 0, 1, 2 … unexpected exceptions in a row.
_REST_SECONDS: Final = (0, 1, 2, 5, 10, 30)

_log = structlog.get_logger()

# Does one round; returns how much it did, 0 when there was nothing to do.
Work = Callable[[], Awaitable[int]]
_Raised = type[Exception] | tuple[()]


@dataclass(slots=True)
class Duty:
    """`seconds`: how long it rests when there is nothing to do. `at_once`: how many rounds of it
    run side by side."""

    name: str
    work: Work
    seconds: float
    mode: Part = "all"
    at_once: int = 1
    moved_ns: int = 0
    problem: str | None = None
    bugs: int = 0
    # One round at a time rests, and then looks: where there is nothing to do, no more have to.
    resting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class Duties:
    """All duties of this process."""

    db: Database
    clock: Clock
    _kept: list[Duty] = field(default_factory=list[Duty])

    async def keep(self, duty: Duty) -> None:
        """Repeats the duty until cancelled: at once while there is work, else after a rest."""
        self._keep_in_mind(duty)
        await asyncio.gather(*(self._repeat(duty) for _ in range(duty.at_once)))

    async def achieve(self, duty: Duty) -> None:
        """Repeats the duty until it succeeds once. Raises CommandFailed, which only a person can
        resolve."""
        self._keep_in_mind(duty)
        await self._repeat(duty, once=True)
        self._kept.remove(duty)

    async def _repeat(self, duty: Duty, *, once: bool = False) -> None:
        while True:
            done = await self._round(duty, raises=CommandFailed if once else ())
            if once and done is not None:
                return
            if not done:
                await asyncio.sleep(_REST_SECONDS[duty.bugs])
                async with duty.resting:
                    await asyncio.sleep(duty.seconds)

    async def _round(self, duty: Duty, raises: _Raised = ()) -> int | None:
        """How much it did; None when it failed. A database or chain out of reach comes back, and a
        rolled back transaction is tried again. Any other exception is a bug and must stop only this
        duty."""
        try:
            done = await duty.work()
        except raises as problem:
            duty.problem = type(problem).__name__
            raise
        except (*OUT_OF_REACH, *ROLLED_BACK, ChainOutOfReach) as problem:
            duty.problem = type(problem).__name__
            _log.warning("duty_put_off", mode=duty.mode, duty=duty.name, problem=repr(problem))
            return None
        except Exception as problem:  # noqa: BLE001 - the other duties go on
            duty.problem = type(problem).__name__
            duty.bugs = min(duty.bugs + 1, len(_REST_SECONDS) - 1)
            Metrics.failed(duty.mode, duty.name)
            _log.exception("duty_failed", mode=duty.mode, duty=duty.name)
            return None
        duty.problem = None
        duty.bugs = 0
        duty.moved_ns = self.clock.monotonic_ns()
        Metrics.moved(duty.mode, duty.name)
        return done

    def _keep_in_mind(self, duty: Duty) -> None:
        """From now on its heartbeat is written, even if the duty is given up."""
        duty.moved_ns = self.clock.monotonic_ns()
        self._kept.append(duty)

    async def beat(self) -> int:
        now = self.clock.monotonic_ns()
        beats = [
            Beat(
                mode=duty.mode,
                duty=duty.name,
                silent_seconds=0,
                still_seconds=(now - duty.moved_ns) / 1e9,
                patience_seconds=_PATIENCE_SECONDS + _RESTS * duty.seconds,
                problem=duty.problem,
            )
            for duty in self._kept
        ]
        async with self.db.connection() as tx:
            await store.put_beats(tx, beats)
        return 0

    def beating(self) -> Duty:
        """The duty that writes the heartbeats of all duties."""
        return Duty("beat", self.beat, BEAT_SECONDS)
