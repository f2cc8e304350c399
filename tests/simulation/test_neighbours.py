"""What one request, one overload or one outage may do to the others: nothing that lasts."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from bursar.access.idempotency import IdempotencyKey
from bursar.config import load_config
from bursar.db import Database
from bursar.policy.cache import PolicyCache
from bursar.recipient.resolve import Directory
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend import batches
from bursar.spend.authorise import Authorised, Authoriser
from bursar.spend.deciding import SpendRequest
from bursar.spend.model import bounds_of
from tests.processes import ApiProcess, spawn_api, until
from tests.simulation.wire import Answer, Connection
from tests.simulation.world import HOST, World, assert_clean, make_agent, scratch_database
from tests.support import Service, new_account

TOO_LONG = "x" * 201
HUGE = 2**63
# A lone surrogate cannot be written as UTF-8, a zero byte not as PostgreSQL's text.
SURROGATE, ZERO = "\ud800", "\x00"


@pytest.fixture
async def agents(world: World) -> list[str]:
    connection = world.connect(await world.admin_key())
    made = [(await make_agent(connection, dailyCap="10.00"))["id"] for _ in range(8)]
    connection.close()
    for agent_id in made:
        await world.service.fund(agent_id, "100")
    return made


@pytest.fixture
async def ask(world: World, agents: list[str]) -> Callable[..., SpendRequest]:
    async with world.db.connection() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agents[0])

    def make(agent: int, **fields: Any) -> SpendRequest:
        given: dict[str, Any] = {
            "realm_id": realm_id,
            "mode": "test",
            "agent_id": agents[agent],
            "amount_micros": 1_000_000,
            "recipient": HOST,
            "memo": None,
            "metadata": {},
            "created_by": "key_test",
            "network": "localnet",
            "key": None,
        }
        return SpendRequest(**{**given, **fields})

    return make


def authoriser(db: Database) -> Authoriser:
    return Authoriser(
        db, PolicyCache(), Directory(), bounds_of(load_config({})), approval_seconds=60
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"memo": TOO_LONG},
        {"memo": ZERO},
        {"memo": SURROGATE},
        {"metadata": {"a": SURROGATE}},
        {"amount_micros": HUGE},
        {"amount_micros": 0},
        {"amount_micros": -1_000_000},
        {"created_by": None},
        {"agent_id": ZERO},
        {"realm_id": HUGE},
        {"key": IdempotencyKey(1, "route", "", "x" * 256, b"\x00" * 32)},
        {"key": IdempotencyKey(1, "route", "", "x", b"not a hash")},
    ],
    ids=str,
)
async def test_a_bad_request_fails_alone(
    world: World, agents: list[str], ask: Callable[..., SpendRequest], bad: dict[str, Any]
):
    """Goal: whatever one request of a batch does to the database or to the code, the others are
    decided, once each, and the bad one leaves nothing."""
    deciding = authoriser(world.db)
    # More than one batch takes. Others come before and after the bad one in its batch.
    requests = [ask(n % len(agents)) for n in range(60)]
    place = 10
    wrong = ask(0, **bad)
    sent = [deciding.authorise(r) for r in (*requests[:place], wrong, *requests[place:])]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    failed = outcomes.pop(place)
    assert isinstance(failed, Exception)
    others = [outcome for outcome in outcomes if isinstance(outcome, Authorised)]
    assert len(others) == len(requests), [o for o in outcomes if not isinstance(o, Authorised)][:3]
    async with world.db.connection() as tx:
        spends = await tx.fetchval("SELECT count(*) FROM spend WHERE agent_id = ANY($1)", agents)
    assert spends == len(requests), failed
    await assert_clean(world.db)


@asynccontextmanager
async def held(dsn: str, agent_id: str) -> AsyncGenerator[None]:
    """Somebody sits on an agent's wallet: no spend of its can be decided meanwhile."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(
                "SELECT FROM wallet WHERE agent_id = $1 FOR NO KEY UPDATE", agent_id
            )
            yield
    finally:
        await connection.close()


async def test_overload_is_shed_quickly_and_in_bounded_memory(world: World, agents: list[str]):
    """Goal: while nothing can be decided, a bounded number of requests waits, everyone else is
    told at once to come back, other requests go on, and afterwards all is as before."""
    api = await spawn_api(replace(world.config, database_timeout_seconds=60))
    key = await world.service.key(account=await account_of(world, agents[0]))
    crowd = [Connection(api.url, key) for _ in range(batches.MAX_WAITING + 600)]
    body = {"agentId": agents[0], "amount": "0.000001", "recipient": HOST, "memo": "m" * 200}
    shed: list[Answer] = []

    async def one(connection: Connection) -> Answer:
        answer = await connection.request("POST", "/v1/spend/authorise", body)
        if answer.status != 201:
            shed.append(answer)
        return answer

    async def enough() -> bool:
        return len(shed) >= 600 - 2 * batches.MAX_BATCH

    sizes = [psutil.Process(api.process.pid).memory_info().rss]
    decided = 0
    try:
        for _ in range(3):
            shed.clear()
            async with held(world.postgres.dsn, agents[0]):
                asked = [asyncio.create_task(one(connection)) for connection in crowd]
                # Shorter than the timeout of a lock, so it is not that which answers.
                await until(enough, seconds=40)
                other = Connection(api.url, key)
                for path in (f"/v1/agents/{agents[0]}/budget", "/v1/transactions"):
                    assert (await other.request("GET", path, seconds=5)).status == 200
                other.close()
            answers = await asyncio.gather(*asked)
            sizes.append(psutil.Process(api.process.pid).memory_info().rss)
            decided += sum(answer.status == 201 for answer in answers)
            for answer in shed:
                assert (answer.status, answer.error["code"]) == (503, "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.answered - answer.started < 5
            assert decided >= batches.MAX_WAITING
        async with world.db.connection() as tx:
            count = "SELECT count(*) FROM spend WHERE agent_id = $1"
            assert await tx.fetchval(count, agents[0]) == decided, "a 503 changed something"
    finally:
        for connection in crowd:
            connection.close()
        await end(api)
    megabytes = [size // 2**20 for size in sizes]
    print(f"{decided} decided, memory {megabytes} MB")
    assert megabytes[1] - megabytes[0] < 200, "more than the connections explain"
    assert megabytes[3] - megabytes[1] < 30, "each wave leaves something behind"
    await assert_clean(world.db)


async def test_idle_connections_keep_nobody_out(world: World):
    """Goal: agents that keep a connection open without using it do not use the service up."""
    key = await world.admin_key()
    idle = [world.connect(key) for _ in range(1_500)]
    try:
        for connection in idle:
            assert (await connection.request("GET", "/v1/me", seconds=10)).status == 200
    finally:
        for connection in idle:
            connection.close()


async def test_without_a_database_503_and_back_without_a_restart(tmp_path: Path):
    """Goal: stopped, killed or hanging, the database costs answers only while it is away."""
    async with scratch_database(tmp_path, database_timeout_seconds=2) as (server, config, db):
        service = Service("", config, db)
        key = await service.key(account=new_account())
        api = await spawn_api(config)
        connection = Connection(api.url, key)
        try:
            agent = (await make_agent(connection))["id"]
            await service.fund(agent, "100")
            body = {"agentId": agent, "amount": "1", "recipient": HOST}
            paths = (
                ("POST", "/v1/spend/authorise", body),
                ("POST", "/v1/spend/preview", body),
                ("PATCH", f"/v1/agents/{agent}", {"name": "other"}),
                ("GET", f"/v1/agents/{agent}", None),
                ("GET", "/v1/transactions", None),
            )

            async def works() -> bool:
                answers = [await connection.request(*path) for path in paths]
                assert all(answer.status in (200, 201, 503) for answer in answers)
                return all(answer.status in (200, 201) for answer in answers)

            assert await works()
            for outage in (stopped, killed, hanging):
                async with outage(server):
                    for path in paths:
                        answer = await connection.request(*path)
                        if outage is hanging or path[0] == "POST":
                            assert answer.status == 503, (outage, path)
                        if answer.status == 503:
                            assert answer.error["code"] == "unavailable"
                            assert int(answer.headers["retry-after"]) >= 1
                            assert answer.answered - answer.started < 8
                    assert (await connection.request("GET", "/readyz")).status == 503
                    assert (await connection.request("GET", "/healthz")).status == 200
                await until(works, seconds=20)
            assert api.process.returncode is None
            await assert_clean(db)
        finally:
            connection.close()
            await end(api)


@asynccontextmanager
async def stopped(server: EmbeddedPostgres) -> AsyncGenerator[None]:
    """The supervisor starts it again at once, so it is kept from starting meanwhile."""
    hidden = server.cluster_dir / "postgresql.conf.hidden"
    (server.cluster_dir / "postgresql.conf").rename(hidden)
    postmaster(server).send_signal(signal.SIGINT)
    await gone(server)
    yield
    hidden.rename(server.cluster_dir / "postgresql.conf")


@asynccontextmanager
async def killed(server: EmbeddedPostgres) -> AsyncGenerator[None]:
    hidden = server.cluster_dir / "postgresql.conf.hidden"
    (server.cluster_dir / "postgresql.conf").rename(hidden)
    postmaster(server).kill()
    await gone(server)
    yield
    hidden.rename(server.cluster_dir / "postgresql.conf")


@asynccontextmanager
async def hanging(server: EmbeddedPostgres) -> AsyncGenerator[None]:
    processes = list(server.processes())
    for process in processes:
        process.suspend()
    yield
    for process in processes:
        process.resume()


def postmaster(server: EmbeddedPostgres) -> psutil.Process:
    text = (server.cluster_dir / "postmaster.pid").read_text()
    return psutil.Process(int(text.split()[0]))


async def gone(server: EmbeddedPostgres) -> None:
    async def none() -> bool:
        return not list(server.processes())

    await until(none, seconds=20)


async def end(api: ApiProcess) -> None:
    api.process.terminate()
    await asyncio.wait_for(api.process.wait(), 30)


async def account_of(world: World, agent_id: str) -> str:
    async with world.db.connection() as tx:
        return await tx.fetchval(
            "SELECT a.name FROM agent g JOIN realm r ON r.id = g.realm_id"
            " JOIN account a ON a.id = r.account_id WHERE g.id = $1",
            agent_id,
        )
