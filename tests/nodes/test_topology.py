"""The documented topology loses a part at a time, under load: nothing acknowledged is lost, nothing
is done twice, and what is left goes on."""

import asyncio
import shutil
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bursar.db import Hosts
from bursar.migrations.migrate import latest
from tests.machine import Watch
from tests.nodes.topology import Clients, Node, Topology, make_clients, running_topology
from tests.processes import bursar, bursar_within, until
from tests.settlement.books import ledger_is_chain, nothing_open, paid_times
from tests.simulation.test_kills import verify
from tests.simulation.wire import Connection, Cut
from tests.simulation.world import LONG, seeded

FAILOVERS = 20 if LONG else 2
RESUME_SECONDS = 10
SOURCE = Path(__file__).parents[2] / "src/bursar"
SETTLED = "SELECT count(*) FROM spend WHERE status = 'settled'"
pytestmark = pytest.mark.timeout(3_600 if LONG else 1_200)


@pytest.fixture(scope="module")
async def topology(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Topology]:
    folder: Path = tmp_path_factory.mktemp("nodes")
    async with running_topology(folder) as topology:
        await topology.ready()
        yield topology


async def all_is_right(topology: Topology, clients: Clients, what: str) -> None:
    """Every acknowledged spend is there as it was told, each key has one; when all is settled, each
    payment is on the chain exactly once, and the audit finds nothing."""
    await verify(topology.db, clients.agents, clients.acknowledged, what)
    waited = await until(lambda: nothing_open(topology.db), seconds=300, every=0.2)
    await until(lambda: ledger_is_chain(topology.rpc, topology.db), seconds=60, every=0.2)
    async with topology.db.connection() as tx:
        spends = await tx.fetch(
            "SELECT s.id, s.status, w.address FROM spend s JOIN wallet w USING (agent_id)"
            " WHERE s.agent_id = ANY($1)",
            clients.agents,
        )
    assert {spend["status"] for spend in spends} == {"settled"}
    paid = await paid_times(topology.rpc, {spend["address"] for spend in spends})
    assert paid == {(spend["address"], spend["id"]): 1 for spend in spends}
    config = topology.config
    audit = await bursar(
        "audit",
        data_dir=str(config.data_dir),
        database_url=config.database_url or "",
        localnet_port=str(config.localnet_port),
    )
    assert audit.code == 0, audit.out + audit.err
    print(
        f"{what}: {len(spends)} spends, {clients.retries} retries, each paid once;"
        f" settled {waited:.1f} s after the last"
    )


async def test_failovers(topology: Topology):
    """Goal: the primary is killed and a standby promoted, again and again: no acknowledged write is
    lost, no payment made twice, and writes go on within 10 s without a restart of ours."""
    seed, chance = seeded("failover")
    clients = await make_clients(topology, seed)
    pauses: list[float] = []
    clients.start()
    for _ in range(FAILOVERS):
        await clients.more(chance.randrange(20, 120))
        killed = Watch()
        lost = await topology.cluster.fail_over()
        pauses.append(await clients.first_after(killed))
        await verify_acknowledged(topology, clients)
        await topology.cluster.join(lost)
        await topology.cluster.until_followed(2)
    await clients.stop()
    print(f"writes resumed after {', '.join(f'{pause:.2f}' for pause in pauses)} s")
    assert max(pauses) < RESUME_SECONDS
    await all_is_right(topology, clients, f"{FAILOVERS} failovers")


async def verify_acknowledged(topology: Topology, clients: Clients) -> None:
    """Of all that was acknowledged until now, nothing is missing on the new primary."""
    told = {spend["id"] for spend in clients.acknowledged.values()}
    async with topology.db.connection() as tx:
        rows = await tx.fetch("SELECT id FROM spend WHERE id = ANY($1)", list(told))
    assert told == {row["id"] for row in rows}


async def test_one_part_lost_at_a_time(topology: Topology):
    """Goal: a node, a worker or Redis is killed under load: the others go on, and it joins again by
    itself when it is back."""
    seed, _ = seeded("one at a time")
    clients = await make_clients(topology, seed)
    loop = asyncio.get_running_loop()
    clients.start()
    await clients.more(30)
    for node in (*topology.apis[:2], *topology.workers):
        await node.end(signal.SIGKILL)
        await clients.more(30)
        assert await clients.first_after(Watch()) < RESUME_SECONDS
        async with topology.db.connection() as tx:
            before: int = await tx.fetchval(SETTLED)

        async def still_settling(before: int = before) -> bool:
            async with topology.db.connection() as tx:
                return await tx.fetchval(SETTLED) > before

        await until(still_settling, seconds=60, every=0.1)
        await node.start()
    # Redis: requests wait for it, settlement does not; nothing passes uncounted.
    connection = Connection(topology.urls[0], clients.keys[0])
    await topology.redis.stop()
    gone = loop.time()
    assert (await connection.request("GET", "/v1/me")).status == 503
    assert (await connection.request("GET", "/healthz")).status == 200
    await asyncio.sleep(1)
    assert not [1 for asked, _ in clients.times if asked > gone + 0.5], "answered uncounted"
    await topology.redis.start()
    assert await clients.first_after(Watch()) < RESUME_SECONDS
    connection.close()
    await topology.ready()
    await clients.stop()
    await all_is_right(topology, clients, "a node, a worker and Redis lost")


async def test_rolling_restart(topology: Topology):
    """Goal: every API node and worker is restarted in turn, under load: no request fails that a
    retry with its key does not settle, and each ends in order."""
    seed, _ = seeded("rolling restart")
    clients = await make_clients(topology, seed)
    clients.start()
    for node in (*topology.apis, *topology.workers):
        await clients.more(20)
        assert await node.end(signal.SIGTERM) == 0
        await node.start()
    await clients.more(20)
    await clients.stop()
    await all_is_right(topology, clients, "rolling restart")


async def test_what_no_standby_has_is_not_acknowledged(topology: Topology):
    """Goal: with no standby a write is committed here and answered 503; asking again with its key
    must not turn it into an answer before a standby has it."""
    seed, _ = seeded("no standby")
    clients = await make_clients(topology, seed, count=1)
    connection = Connection(topology.urls[0], clients.keys[0])
    posts = {
        "/v1/spend/authorise": {
            "agentId": clients.agents[0],
            "amount": "1",
            "recipient": "api.example.com",
        },
        "/v1/agents": {"name": "late", "policy": {"dailyCap": "1.00", "allowlist": []}},
    }
    for standby in topology.cluster.standbys:
        await standby.kill()
    for path, body in posts.items():
        for _ in range(2):
            answer = await connection.request("POST", path, body, key=f"{seed}{path}")
            assert answer.status == 503, answer.body
    for standby in topology.cluster.standbys:
        await standby.start()
    for path, body in posts.items():

        async def acknowledged(path: str = path, body: object = body) -> bool:
            try:
                answer = await connection.request("POST", path, body, key=f"{seed}{path}")
            except Cut:
                return False
            return answer.status == 201

        await until(acknowledged, seconds=30)
    async with topology.db.connection() as tx:
        assert await tx.fetchval("SELECT count(*) FROM agent WHERE name = 'late'") == 1
        spends = "SELECT count(*) FROM spend WHERE agent_id = ANY($1)"
        assert await tx.fetchval(spends, clients.agents) == 1
    connection.close()


async def test_a_host_that_is_silent_is_passed_over(topology: Topology):
    """Goal: of the hosts in the address one neither answers nor refuses, as when a machine is off,
    and one is a standby: the primary is found all the same, and found at once the next time."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    ports = [
        silent.sockets[0].getsockname()[1],
        topology.cluster.standbys[0].port,
        topology.cluster.primary.port,
    ]
    hosts = Hosts(f"postgresql://bursar@{','.join(f'127.0.0.1:{port}' for port in ports)}/bursar")
    for at_most in (6, 1.5):
        watch = Watch()
        connection = await hosts.connect(timeout=10)
        assert await connection.fetchval("SELECT NOT pg_is_in_recovery()")
        assert watch.seconds < at_most
        await connection.close()
    silent.close()


# Last, because the older version does not run on what this leaves.


def newer_version(folder: Path) -> dict[str, str]:
    """The same code with two migrations more, as a process of that version would see it."""
    package = folder / "bursar"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    number = latest() + 1
    before = "ALTER TABLE spend ADD COLUMN extra text;\nALTER TABLE wallet ADD COLUMN extra text;\n"
    (package / f"migrations/{number:04}_more.sql").write_text(before)
    after = "ALTER TABLE spend DROP COLUMN extra;\nALTER TABLE wallet DROP COLUMN extra;\n"
    (package / f"migrations/{number + 1:04}_less.after.sql").write_text(after)
    return {"PYTHONPATH": str(folder)}


async def test_rolling_migration(topology: Topology, tmp_path: Path):
    """Goal: a newer version is rolled out under load, its first migration before, its second after:
    both versions run side by side, no request fails that a retry does not settle."""
    seed, _ = seeded("rolling migration")
    newer = newer_version(tmp_path)
    clients = await make_clients(topology, seed)

    async def migrate(*options: str) -> str:
        url = topology.config.database_url or ""
        done = await bursar_within(newer, "database", "migrate", *options, database_url=url)
        assert done.code == 0, done.err
        return done.out

    async def readiness(node: Node) -> int:
        connection = Connection(node.url, "none")
        try:
            return (await connection.request("GET", "/readyz")).status
        finally:
            connection.close()

    clients.start()
    await clients.more(20)
    assert str(latest() + 1) in await migrate()
    assert await migrate() == "Nothing to do.\n"
    for node in (*topology.apis, *topology.workers):
        await clients.more(20)
        for api in topology.apis:
            assert await readiness(api) == 200, "old or new"
        assert await node.end(signal.SIGTERM) == 0
        await node.start(newer)
    await clients.more(20)
    assert str(latest() + 2) in await migrate("--after-deploy")
    await clients.more(40)
    await clients.stop()
    await all_is_right(topology, clients, "rolling migration")
    # A node of the older version that comes back by mistake says what is wrong.
    strayed = topology.apis[0]
    await strayed.end(signal.SIGTERM)
    await strayed.start()
    assert await readiness(strayed) == 503
    await strayed.end(signal.SIGTERM)
    await strayed.start(newer)
