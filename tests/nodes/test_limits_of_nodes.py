"""One limit for all: three API processes with a Redis, several in one `bursar serve` without."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bursar.access.limits import Category, ProcessLimiter
from bursar.clock import SystemClock
from bursar.config import Config
from bursar.db import Database
from bursar.service.limits import SocketLimiter, counting_limits
from bursar.service.postgres import EmbeddedPostgres
from tests.nodes.redis_server import RedisServer
from tests.nodes.test_shared_limits import refused
from tests.parts import faketime
from tests.processes import spawn_api, until
from tests.simulation.test_kills import Serve
from tests.simulation.wire import Answer, Connection, Cut
from tests.simulation.world import LONG
from tests.support import Service, new_account

PATH = "/v1/spend/authorise"
LIMIT = 1_200
CONNECTIONS = 24
WINDOWS = 3 if LONG else 1
PATIENCE = 60 * WINDOWS + 180


async def ask(urls: Sequence[str], key: str, count: int) -> list[Answer]:
    """`count` requests that count as Spend Authorise, from many connections to all addresses."""
    left = iter(range(count))
    answers: list[Answer] = []

    async def client(number: int) -> None:
        connection = Connection(urls[number % len(urls)], key)
        answers.extend([await connection.request("POST", PATH, {}) for _ in left])
        connection.close()

    await asyncio.gather(*(client(number) for number in range(CONNECTIONS)))
    return answers


def skewed(hours: int) -> dict[str, str]:
    """Variables of a process whose clock is `hours` off."""
    return {
        "LD_PRELOAD": str(faketime()),
        "FAKETIME": f"{hours:+}h",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@asynccontextmanager
async def three_nodes(config: Config, redis: RedisServer) -> AsyncGenerator[list[str]]:
    """API processes that share a database and a Redis, and disagree on the time by hours."""
    config = replace(config, redis_url=redis.url)
    async with AsyncExitStack() as stack:
        urls: list[str] = []
        for hours in (0, 1, -1):
            api = await spawn_api(config, environment=skewed(hours) if hours else None)
            stack.callback(api.process.kill)
            urls.append(api.url)
        yield urls


async def test_three_nodes_admit_exactly_one_limit(
    service: Service, config: Config, redis: RedisServer
):
    """Goal: 1,200 of 1,500 pass, wherever they were sent, with clocks an hour apart."""
    key = await service.key(account=new_account(), mode="live")
    async with three_nodes(config, redis) as urls:
        answers = await ask(urls, key, 1_500)
    by_status = {s: [a for a in answers if a.status == s] for s in {a.status for a in answers}}
    assert {status: len(group) for status, group in by_status.items()} == {400: LIMIT, 429: 300}
    remaining = [int(a.headers["ratelimit-remaining"]) for a in by_status[400]]
    assert sorted(remaining) == list(range(LIMIT))
    assert all(1 <= int(a.headers["retry-after"]) <= 61 for a in by_status[429])


@pytest.mark.timeout(1_200)
async def test_no_60_seconds_hold_more_than_the_limit(
    service: Service, config: Config, redis: RedisServer
):
    """Goal: under pressure from everywhere, every span of 60 s admits 1,200 at most, and what has
    left the window is free at once."""
    key = await service.key(account=new_account(), mode="live")
    loop = asyncio.get_running_loop()
    admitted: list[Answer] = []
    expected = (1 + WINDOWS) * LIMIT
    async with three_nodes(config, redis) as urls:
        started = loop.time()

        async def client(number: int) -> None:
            connection = Connection(urls[number % 3], key)
            while len(admitted) < expected and loop.time() - started < PATIENCE:
                answer = await connection.request("POST", PATH, {})
                if answer.status == 400:
                    admitted.append(answer)
                else:
                    assert answer.status == 429
                    await asyncio.sleep(0.25)
            connection.close()

        await asyncio.gather(*(client(number) for number in range(CONNECTIONS)))
    # It was admitted between being asked and being answered.
    asked = sorted(answer.started for answer in admitted)
    answered = sorted(answer.answered for answer in admitted)
    spans = zip(asked, answered[LIMIT:], strict=False)
    assert all(later - earlier > 60 for earlier, later in spans)
    # Those that were under way when the last was admitted had nothing left.
    assert len(admitted) == expected, "at once, and again after each 60 seconds"


async def test_a_node_without_redis_answers_503_and_says_so(
    service: Service, config: Config, tmp_path: Path
):
    """Goal: Redis lost: 503 with Retry-After, readiness says why, pages without limits go on; Redis
    back: the node recovers by itself."""
    redis = RedisServer(tmp_path)
    await redis.start()
    key = await service.key(account=new_account())
    api = await spawn_api(replace(config, redis_url=redis.url))
    connection = Connection(api.url, key)

    async def status(path: str) -> int:
        return (await connection.request("GET", path)).status

    try:
        assert await status("/v1/me") == 200
        assert await status("/readyz") == 200
        await redis.stop()
        answer = await connection.request("GET", "/v1/me")
        assert answer.status == 503
        assert answer.error["code"] == "unavailable"
        assert answer.error["retryable"] is True
        assert int(answer.headers["retry-after"]) >= 1
        ready = await connection.request("GET", "/readyz")
        assert ready.status == 503
        assert ready.json["checks"]["rate limits"] == "out of reach"
        assert await status("/healthz") == 200
        await redis.start()

        async def recovered() -> bool:
            return await status("/v1/me") == 200

        await until(recovered, seconds=10)
        assert await status("/readyz") == 200
    finally:
        connection.close()
        api.process.kill()
        await api.process.wait()
        await redis.stop()


async def test_processes_of_one_machine_ask_the_one_that_counts(tmp_path: Path):
    """Goal: without Redis, several processes pass the limit together never; without the one that
    counts, nothing passes; when it is back, all is well."""
    socket = tmp_path / "limits"
    clients = [SocketLimiter(socket) for _ in range(3)]
    assert await refused(clients[0])
    assert not await clients[0].reachable()
    counts = ProcessLimiter(SystemClock())
    async with counting_limits(socket, counts):
        verdicts = [
            verdict
            for _ in range(10)
            # More at once would wait for each other here, in the one process that asks and counts.
            for verdict in await asyncio.gather(
                *(clients[n % 3].take("key", Category.SPEND_AUTHORISE, "live") for n in range(150))
            )
        ]
        assert sum(v.allowed for v in verdicts) == LIMIT
        assert sorted(v.remaining for v in verdicts if v.allowed) == list(range(LIMIT))
        assert await clients[0].reachable()
    assert await refused(clients[0])
    socket.unlink(missing_ok=True)
    async with counting_limits(socket, counts):
        assert not (await clients[1].take("key", Category.SPEND_AUTHORISE, "live")).allowed
        for client in clients:
            await client.close()


@pytest.mark.timeout(900)
async def test_serve_with_several_http_processes(tmp_path: Path):
    """Goal: `--workers 3`: the port is shared, the limit is one, a process that is killed takes
    nothing with it and comes back, and its count is not forgotten."""
    serve = Serve(tmp_path, workers=3, rate_limits=True)
    serve.start()
    try:
        await serve.ready()
        db = await Database.open(EmbeddedPostgres(serve.data_dir).dsn, 2, 10)
        key = await Service(serve.url, serve.config, db).key(account="nodes")
        await db.close()
        counted = 0
        for connections in range(20):
            answers = await ask([serve.url], key, 50)
            assert {answer.status for answer in answers} == {400}
            counted = 50 * (connections + 1)
        answer = (await ask([serve.url], key, 1))[0]
        assert answer.headers["ratelimit-remaining"] == str(3_000 - counted - 1)

        await until(lambda: listening(serve, 3), seconds=30)
        first = http_processes(serve)
        for process in first[:2]:
            process.send_signal(signal.SIGKILL)

        async def replaced() -> bool:
            return not {p.pid for p in http_processes(serve)} & {p.pid for p in first[:2]}

        await until(replaced, seconds=30)
        await until(lambda: listening(serve, 3), seconds=30)
        connection = Connection(serve.url, key)

        async def still_counted() -> bool:
            try:
                answer = await connection.request("POST", PATH, {})
            except Cut:
                return False
            assert int(answer.headers["ratelimit-remaining"]) < 3_000 - counted - 1
            return True

        await until(still_counted, seconds=10)

        async def three_up() -> bool:
            page = (await connection.request("GET", "/metrics")).body.decode()
            return 'bursar_process_up{process="api"} 3.0' in page

        await until(three_up, seconds=30)
        connection.close()
        await serve.stop()
    except BaseException:
        print(serve.last_words())
        raise
    finally:
        serve.end()


def http_processes(serve: Serve) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.Process(serve.pid).children():
        with suppress(psutil.Error):
            if "--share-port" in process.cmdline():
                found.append(process)
    return found


async def listening(serve: Serve, count: int) -> bool:
    """Whether so many processes listen on the port."""
    found = 0
    for process in http_processes(serve):
        with suppress(psutil.Error):
            sockets = process.net_connections("tcp")
            found += any(s.status == "LISTEN" and s.laddr.port == serve.port for s in sockets)
    return found == count
