"""Limits counted by a real Redis: the same answers as one process gives, and none without it."""

import asyncio
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from bursar.access.limits import Category, Limiter, ProcessLimiter, Verdict
from bursar.access.shared_limits import SCRIPT, WINDOW_MICROS, SharedLimiter
from bursar.config import Mode
from bursar.errors import ApiError, ConfigError
from bursar.ids import new_id
from tests.nodes.redis_server import RedisServer
from tests.processes import until
from tests.property.test_limits import ROWS, SCHEDULES, SECOND, WINDOW, ManualClock, finish

# The script itself, but for where it reads the time.
CLOCKED = SCRIPT.replace("redis.call('TIME')", "{ARGV[3], ARGV[4]}")
START_MICROS = 1_790_000_000_000_000


class ByHand:
    """A key whose requests are dated by a test."""

    def __init__(self, redis: RedisServer) -> None:
        self.client = redis.client()
        self.script = self.client.register_script(CLOCKED)
        self.name = new_id("key")

    async def take(self, limit: int, micros: int) -> tuple[bool, int, int]:
        """Admitted or not, what remains, and microseconds until the oldest leaves."""
        return (await self.take_many(limit, micros, 1))[0]

    async def take_many(self, limit: int, micros: int, count: int) -> list[tuple[bool, int, int]]:
        """So many of one moment, one after the other; sent together, as that is much quicker."""
        args = [limit, WINDOW_MICROS, micros // 1_000_000, micros % 1_000_000]
        together = self.client.pipeline(transaction=False)
        for _ in range(count):
            await self.script(keys=[self.name], args=args, client=together)
        answers = await together.execute()
        return [(bool(allowed), limit - held, reset) for allowed, held, reset in answers]


@pytest.mark.parametrize(("category", "mode"), ROWS)
@given(schedule=SCHEDULES)
@example(schedule=[(0, 1.0), (WINDOW, 0.1), (1000, 1.0)])
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_decides_as_one_process_does(
    redis: RedisServer, category: Category, mode: Mode, schedule: list[tuple[int, float]]
):
    """Goal: on any schedule, request by request, the verdict of `ProcessLimiter`, which other tests
    prove exact."""

    async def compare() -> None:
        by_hand = ByHand(redis)
        clock = ManualClock(at_ns=START_MICROS * 1000)
        one_process = ProcessLimiter(clock)
        limit = category.limit(mode)
        try:
            for gap, share in schedule:
                clock.at_ns += gap // 1000 * 1000
                many = 1 + int(share * limit)
                for answer in await by_hand.take_many(limit, clock.at_ns // 1000, many):
                    allowed, remaining, reset = answer
                    told = finish(one_process.take("key", category, mode))
                    assert (allowed, remaining) == (told.allowed, told.remaining)
                    seconds = reset // 1_000_000 + 1
                    assert told.reset_seconds == (min(seconds, 60) if allowed else seconds)
        finally:
            await by_hand.client.aclose()

    asyncio.run(compare())


async def test_a_clock_that_is_set_back_gives_no_second_helping(redis: RedisServer):
    """Goal: when Redis's clock jumps back an hour, what was admitted still counts, for a window and
    no longer."""
    by_hand = ByHand(redis)
    at = START_MICROS
    assert all([(await by_hand.take(60, at + n))[0] for n in range(60)])
    assert not (await by_hand.take(60, at + 60))[0]
    back = at - 3_600_000_000
    allowed, remaining, reset = await by_hand.take(60, back)
    assert (allowed, remaining) == (False, 0)
    assert 0 < reset <= WINDOW_MICROS
    assert not (await by_hand.take(60, back + reset))[0]
    assert (await by_hand.take(60, back + reset + 1))[0]
    await by_hand.client.aclose()


async def test_unused_keys_cost_no_memory(redis: RedisServer):
    """Goal: what Redis keeps of a key is bounded by the limit, and gone soon after the window."""
    client = redis.client()
    limiter = SharedLimiter.open(redis.url)
    key = new_id("key")
    for _ in range(70):
        await limiter.take(key, Category.WEBHOOK_MANAGEMENT, "live")
    name = f"bursar:limit:{key}:webhook_management"
    assert await client.llen(name) == 60
    assert 60_000 < await client.pttl(name) <= 61_000
    assert await client.memory_usage(name) < 2_000
    await limiter.close()
    await client.aclose()


async def test_two_processes_pass_the_limit_together_never(redis: RedisServer):
    """Goal: of requests that race from three limiters, exactly the limit is admitted."""
    limiters = [SharedLimiter.open(redis.url) for _ in range(3)]
    key = new_id("key")
    verdicts = await asyncio.gather(
        *(limiters[n % 3].take(key, Category.SPEND_AUTHORISE, "live") for n in range(1_500))
    )
    assert sum(v.allowed for v in verdicts) == 1_200
    assert sorted(v.remaining for v in verdicts if v.allowed) == list(range(1_200))
    assert {v.remaining for v in verdicts if not v.allowed} == {0}
    assert all(1 <= v.reset_seconds <= 61 for v in verdicts)
    for limiter in limiters:
        await limiter.close()


async def refused(limiter: Limiter) -> bool:
    """Whether a request is answered 503 for want of somebody who counts."""
    try:
        await limiter.take("key", Category.AGENT_READS, "test")
    except ApiError as problem:
        return problem.code.status == 503 and int(problem.headers["Retry-After"]) >= 1
    return False


@pytest.mark.parametrize("how", ["killed", "silent"])
async def test_without_redis_nothing_passes_and_it_recovers(tmp_path: Path, how: str):
    """Goal: Redis gone or silent: 503 within a bounded time, never unlimited; back: all is well
    again without anybody's help, also when it forgot the script."""
    server = RedisServer(tmp_path)
    await server.start()
    limiter = SharedLimiter.open(server.url)
    loop = asyncio.get_running_loop()
    try:
        assert isinstance(await limiter.take("key", Category.AGENT_READS, "test"), Verdict)
        if how == "killed":
            await server.stop()
        else:
            server.send(signal.SIGSTOP)
        for _ in range(2):
            started = loop.time()
            answers = await asyncio.gather(*(refused(limiter) for _ in range(300)))
            assert all(answers)
            assert loop.time() - started < 8
        assert not await limiter.reachable()
        if how == "killed":
            await server.start()
        else:
            server.send(signal.SIGCONT)

        async def recovered() -> bool:
            return not await refused(limiter)

        await until(recovered, seconds=10)
        assert await limiter.reachable()
    finally:
        await limiter.close()
        await server.stop()


async def test_a_redis_that_is_full_or_read_only_is_no_redis(tmp_path: Path):
    """Goal: a Redis that answers but cannot count is out of reach too."""
    server = RedisServer(tmp_path)
    await server.start()
    client = server.client()
    limiter = SharedLimiter.open(server.url)
    try:
        assert not await refused(limiter)
        for setting, bad, good in (("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")):
            await client.config_set(setting, bad)
            assert await refused(limiter), setting
            await client.config_set(setting, good)
            assert not await refused(limiter), setting
    finally:
        await client.aclose()
        await limiter.close()
        await server.stop()


def test_an_address_that_makes_no_sense_is_refused_without_its_password():
    """Goal: the message names the variable, not the secret."""
    with pytest.raises(ConfigError) as caught:
        SharedLimiter.open("redis://:s3cret@127.0.0.1:6379/0?socket_timeout=none-such")
    assert "BURSAR_REDIS_URL" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_one_second_is_the_clocks_unit():
    """Goal: the two limiters speak of the same window."""
    assert WINDOW_MICROS * 1000 == WINDOW == 60 * SECOND


async def test_a_connection_that_cannot_even_be_closed_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Goal: 503 within a bound, also when giving up the connections fails, as TLS can."""
    server = RedisServer(tmp_path)
    await server.start()
    limiter = SharedLimiter.open(server.url)

    async def hangs_up_badly(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(limiter._redis.connection_pool, "disconnect", hangs_up_badly)
    try:
        assert (await limiter.take("key", Category.SPEND_AUTHORISE, "test")).allowed
        await server.stop()
        async with asyncio.timeout(10):
            for _ in range(2):
                with pytest.raises(ApiError, match="Redis is out of reach"):
                    await limiter.take("key", Category.SPEND_AUTHORISE, "test")
    finally:
        monkeypatch.undo()
        await limiter.close()
