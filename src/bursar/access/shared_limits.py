"""Rate limits that all HTTP processes of all machines share, counted by one Redis (or Valkey).

The same exact window as `ProcessLimiter`, counted by Redis's own clock. So the machines' clocks do
not matter, and processes cannot exceed the limit together.
"""

import asyncio
import contextlib
from collections import deque
from typing import Any, Final, Self, cast

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from bursar.access.limits import WINDOW_SECONDS, Category, Verdict
from bursar.config import Mode, variable
from bursar.errors import ApiError, ConfigError, unavailable

# KEYS[1] holds the times of the admitted requests, oldest first, in microseconds. ARGV: the limit
# and the window. Returns whether this request was admitted, how many the window holds now, and how
# long until the oldest leaves it.
SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])

local last = tonumber(redis.call('LINDEX', KEYS[1], -1))
if last and now < last then
  -- Redis's clock was set back. What was admitted moves back with it, as if no time had passed
  -- since: nobody gets a second helping, and nobody waits until the clock has caught up.
  local admitted = redis.call('LRANGE', KEYS[1], 0, -1)
  redis.call('DEL', KEYS[1])
  for _, at in ipairs(admitted) do
    redis.call('RPUSH', KEYS[1], string.format('%.0f', at - (last - now)))
  end
end

local oldest = tonumber(redis.call('LINDEX', KEYS[1], 0))
while oldest and now - oldest > window do
  redis.call('LPOP', KEYS[1])
  oldest = tonumber(redis.call('LINDEX', KEYS[1], 0))
end

local count, allowed = redis.call('LLEN', KEYS[1]), 0
if count < limit then
  redis.call('RPUSH', KEYS[1], string.format('%.0f', now))
  count, allowed, oldest = count + 1, 1, oldest or now
end
-- A key that is not used costs no memory beyond the window.
redis.call('PEXPIRE', KEYS[1], window / 1000 + 1000)
return {allowed, count, oldest + window - now}
"""
WINDOW_MICROS: Final = WINDOW_SECONDS * 1_000_000
_MICROS: Final = 1_000_000
# Redis answers in a fraction of a millisecond. If it takes this long, it is away and the caller
# gets a 503; waiting longer would only pile up requests.
_ANSWER_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 1.0
# Longer, because the host's name may have to be looked up first.
_ROUND_SECONDS: Final = 2.5
# The most requests that one round trip counts.
_AT_ONCE: Final = 256

_log = structlog.get_logger()


class SharedLimiter:
    """Requests that come while Redis is asked are counted together in the next round trip, so a
    process needs one connection however many requests it has."""

    def __init__(self, redis: Any) -> None:
        # `Any`, because the methods of `Redis` are not fully typed.
        self._redis = redis
        self._digest = ""
        self._waiting: deque[tuple[str, int, asyncio.Future[Verdict]]] = deque()
        self._asking: asyncio.Task[None] | None = None

    @classmethod
    def open(cls, url: str) -> Self:
        """Connects when it is first used. The caller closes it."""
        try:
            redis = cast("Any", Redis).from_url(
                url,
                socket_connect_timeout=_CONNECT_SECONDS,
                socket_timeout=_ANSWER_SECONDS,
                # No retries: a request whose answer was lost may have been counted, and a retry
                # would count it twice. The caller gets a 503 and may try again.
                retry=Retry(NoBackoff(), 0),
                client_name="bursar",
            )
        except ValueError:
            # The address is not quoted: it may hold a password.
            raise ConfigError(variable("redis_url"), "is not the address of a Redis") from None
        return cls(redis)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
        await self._redis.aclose()

    async def reachable(self) -> bool:
        try:
            async with asyncio.timeout(_ROUND_SECONDS):
                await self._redis.ping()
        except (RedisError, OSError, TimeoutError):
            return False
        return True

    async def take(self, key_id: str, category: Category, mode: Mode) -> Verdict:
        """Raises ApiError (503) when Redis does not answer: never unlimited."""
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        name = f"bursar:limit:{key_id}:{category.name.lower()}"
        self._waiting.append((name, category.limit(mode), verdict))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_until_none_waits())
        return await verdict

    async def _ask_until_none_waits(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), _AT_ONCE)
                asked = [self._waiting.popleft() for _ in range(count)]
                verdicts: list[Verdict | ApiError] = [_out_of_reach() for _ in asked]
                try:
                    verdicts = await self._ask([(name, limit) for name, limit, _ in asked])
                finally:  # every waiting request gets an answer
                    for (_, _, future), verdict in zip(asked, verdicts, strict=True):
                        _tell(future, verdict)
        finally:
            self._asking = None

    async def _ask(self, wanted: list[tuple[str, int]]) -> list[Verdict | ApiError]:
        try:
            async with asyncio.timeout(_ROUND_SECONDS):
                answers: list[Any] = await self._count(wanted)
        except (RedisError, OSError, TimeoutError) as problem:
            answers = [problem] * len(wanted)
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        if failures:
            _log.warning("redis_out_of_reach", problem=type(failures[0]).__name__)
            # The connection itself may be at fault, for example because Redis was replaced. Closing
            # it in order may fail too.
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self._redis.connection_pool.disconnect()
        return [
            _out_of_reach() if isinstance(answer, Exception) else _verdict(limit, *answer)
            for (_, limit), answer in zip(wanted, answers, strict=True)
        ]

    async def _count(self, wanted: list[tuple[str, int]]) -> list[Any]:
        """One round trip; two when Redis does not know the script yet."""
        if not self._digest:
            self._digest = await self._redis.script_load(SCRIPT)
        answers = await self._run("EVALSHA", self._digest, wanted)
        unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            # Redis was restarted or replaced. None of these requests was counted.
            again = await self._run("EVAL", SCRIPT, [wanted[n] for n in unknown])
            for n, answer in zip(unknown, again, strict=True):
                answers[n] = answer
        return answers

    async def _run(self, command: str, script: str, wanted: list[tuple[str, int]]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for name, limit in wanted:
            pipeline.execute_command(command, script, 1, name, limit, WINDOW_MICROS)
        return await pipeline.execute(raise_on_error=False)


def _tell(waiting: "asyncio.Future[Verdict]", verdict: Verdict | ApiError) -> None:
    if waiting.done():  # the request was cancelled
        return
    if isinstance(verdict, Verdict):
        waiting.set_result(verdict)
    else:
        waiting.set_exception(verdict)


def _verdict(limit: int, allowed: int, held: int, micros: int) -> Verdict:
    # As in `ProcessLimiter`: a request leaves the count only after strictly more than the window.
    reset = micros // _MICROS + 1
    return Verdict(
        bool(allowed), limit, limit - held, min(reset, WINDOW_SECONDS) if allowed else reset
    )


def _out_of_reach() -> ApiError:
    return unavailable("The rate limits cannot be counted now: Redis is out of reach. Try again.")
