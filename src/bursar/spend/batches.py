"""Requests that arrive while a batch is being written form the next one.

No request waits for a timer, and an idle service answers at once. Where many ask, a batch is at
most half of them: the database writes one half while the other is answered and asks again. With no
such bound batches swing between nearly all and a few, and each side waits for the other. A second
batch is under way beside the first only where many wait, and never for an agent of the first. Where
few ask, each batch would be smaller and cost more than the overlap gives back. A batch takes its
requests when the event loop comes to it, since those that arrived in the same round are read before
that.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import asyncpg
import structlog

from bursar.db import OUT_OF_REACH
from bursar.errors import check, unavailable

# A batch holds its locks for as long as it takes to write, so it must not grow without bound.
MAX_BATCH: Final = 128
# Requests that may wait in a process; further ones are answered 503.
MAX_WAITING: Final = 2_000
# From how many requests a batch of their own is worth its cost, though they could wait for others.
SECOND_BATCH: Final = 24
_BATCHES: Final = 2
_UNKNOWN: Final = (
    "Whether the spend was decided is not known. Try again; with the same Idempotency-Key nothing"
    " happens twice."
)

_log = structlog.get_logger()


class OfAgent(Protocol):
    @property
    def agent_id(self) -> str: ...


Q = TypeVar("Q", bound=OfAgent)
A = TypeVar("A")


class Waiting(Generic[Q, A]):
    """A request and what becomes of it."""

    __slots__ = ("_answer", "outcome", "request")

    def __init__(self, request: Q) -> None:
        self.request = request
        self.outcome: A | BaseException | None = None
        self._answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, A]:
        return self._answer.__await__()

    @property
    def answered(self) -> bool:
        return self.outcome is not None

    def answer_with(self, outcome: A | BaseException) -> None:
        self.outcome = outcome
        if self._answer.done():  # the caller is gone; what was done stands, and its key finds it
            return
        if isinstance(outcome, BaseException):
            self._answer.set_exception(outcome)
        else:
            self._answer.set_result(outcome)


# Tells that a batch needs the database no more.
Over = Callable[[], Awaitable[None]]


class Batches(Generic[Q, A]):
    """`write` does a batch and answers each request as soon as it is done; what it raises concerns
    those that it has not answered. It is told whether to hurry: the batch waited for locks already,
    and its requests now come one by one. And it may say that all of the batch is written before it
    makes the answers: then the next one begins first, and the database is not idle meanwhile."""

    def __init__(
        self, write: Callable[[Sequence[Waiting[Q, A]], bool, Over], Awaitable[None]]
    ) -> None:
        self._write = write
        self._waiting: deque[Waiting[Q, A]] = deque()
        # The batches that the database is busy with, and their agents.
        self._under_way: list[list[Waiting[Q, A]]] = []
        self._busy: set[str] = set()
        # The task of one that has begun and has not taken its requests yet.
        self._beginning: asyncio.Task[None] | None = None
        # How many callers are in `submit`: those that wait, and those whose answer is being made.
        self._asking = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # With how many waiting the next look for a second batch is worth it.
        self._look_at = SECOND_BATCH

    async def submit(self, request: Q) -> A:
        if len(self._waiting) >= MAX_WAITING:
            raise unavailable("Too many spends are waiting to be decided. Nothing was changed.")
        waiting: Waiting[Q, A] = Waiting(request)
        self._waiting.append(waiting)
        self._asking += 1
        try:
            self._start()
            return await waiting
        finally:
            self._asking -= 1

    def _start(self) -> None:
        """Begins the next batch, if it may."""
        count = len(self._under_way)
        may = count < _BATCHES and len(self._waiting) >= (self._look_at if count else 1)
        # One that was cancelled before it ran is done, and takes nothing.
        if may and (self._beginning is None or self._beginning.done()):
            task = self._beginning = asyncio.create_task(self._run(self._asking))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next(self, asking: int) -> list[Waiting[Q, A]]:
        """Those that waited longest and are of no agent whose batch is under way: half of those who
        ask at most, or `SECOND_BATCH` where that is more."""
        batch: list[Waiting[Q, A]] = []
        kept: list[Waiting[Q, A]] = []
        most = min(MAX_BATCH, max(SECOND_BATCH, (asking + 1) // 2))
        while self._waiting and len(batch) < most:
            waiting = self._waiting.popleft()
            (kept if waiting.request.agent_id in self._busy else batch).append(waiting)
        self._waiting.extendleft(reversed(kept))
        # Nobody else may take requests of these agents.
        self._busy |= {waiting.request.agent_id for waiting in batch}
        return batch

    async def _run(self, asking: int) -> None:
        """`asking`: how many asked when it began. Since then more have asked, and those that the
        batch before has answered are gone."""
        self._beginning = None
        batch = self._next(max(asking, self._asking))
        if not batch:  # all are of agents that are busy: no need to look again at every request
            self._look_at = len(self._waiting) + SECOND_BATCH
            return
        self._under_way.append(batch)

        async def over() -> None:
            self._end(batch)
            if self._beginning is not None:
                # Lets the next batch reach the database before this one is answered.
                await asyncio.sleep(0)

        try:
            # Enough may be left for another one, or another one may have ended meanwhile.
            self._start()
            await self._do(batch, over)
        finally:
            for waiting in batch:
                if not waiting.answered:  # a bug, or the process is stopping
                    waiting.answer_with(unavailable(_UNKNOWN))
            self._end(batch)

    def _end(self, batch: list[Waiting[Q, A]]) -> None:
        """Frees the agents of a batch and begins the next one, unless that was done before."""
        if batch in self._under_way:
            self._under_way.remove(batch)
            self._busy -= {waiting.request.agent_id for waiting in batch}
            self._look_at = SECOND_BATCH
            self._start()

    async def _do(
        self, batch: Sequence[Waiting[Q, A]], over: Over, *, hurried: bool = False
    ) -> None:
        try:
            await self._write(batch, hurried, over)
        except Exception as problem:  # noqa: BLE001 - every caller is answered, whatever it is
            left = [waiting for waiting in batch if not waiting.answered]
            # A wallet that another session has locked is of one request, and nothing was written.
            locked = isinstance(problem, asyncpg.LockNotAvailableError)
            if len(left) == 1 or (isinstance(problem, OUT_OF_REACH) and not locked):
                # It may have been committed: a retry with the idempotency key finds out.
                for waiting in left:
                    waiting.answer_with(problem)
                return
            # No request may fail because of another: each gets a transaction of its own.
            _log.warning("batch_rolled_back", size=len(left), problem=type(problem).__name__)
            for waiting in left:
                await self._do([waiting], not_over, hurried=locked)
            return
        check(all(waiting.answered for waiting in batch), "every request of a batch is answered")


async def not_over() -> None:
    """For a part of a batch, or for a request that is none: nothing begins at its end."""
