"""The documented topology: three API nodes and two workers on a PostgreSQL cluster and one Redis.

Every node is a process with a port and a data folder of its own; they share no memory and no disk.
"""

import asyncio
import base64
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from bursar.config import Config, load_config
from bursar.db import Database
from bursar.migrations.migrate import migrate
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.ports import free_port
from bursar.service.supervisor import Supervisor
from tests.localnet.support import Rpc
from tests.machine import Watch
from tests.nodes.cluster import Cluster, running_cluster
from tests.nodes.redis_server import RedisServer
from tests.processes import clean_environment, spawn_api, until
from tests.simulation.wire import Connection, Cut
from tests.simulation.world import HOST
from tests.support import Service

# Short, so that what waits for 182 blocks waits for seconds.
SLOT_MS = "20"


class Node:
    """`bursar api` or `bursar worker`, to be killed and started again."""

    def __init__(self, role: str, config: Config) -> None:
        self.role = role
        self.config = config
        self.url = f"http://127.0.0.1:{config.port}"
        self._log = config.data_dir / "log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, environment: Mapping[str, str] | None = None) -> None:
        with self._log.open("ab") as log:
            if self.role == "api":
                api = await spawn_api(self.config, log, environment=environment)
                self._process = api.process
                return
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bursar.cli.main", self.role),
                env=clean_environment() | self.config.child_environment() | dict(environment or {}),
                stdout=log,
                stderr=log,
            )

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int | None:
        """The exit code; by SIGTERM it ends what it has begun."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.returncode is None:
            process.send_signal(number)
        return await asyncio.wait_for(process.wait(), 60)

    def last_words(self) -> str:
        return self._log.read_text("utf-8", "replace")[-2_000:] if self._log.exists() else ""


@dataclass
class Topology:
    config: Config
    cluster: Cluster
    redis: RedisServer
    apis: list[Node]
    workers: list[Node]
    rpc: Rpc
    db: Database

    @property
    def urls(self) -> list[str]:
        return [api.url for api in self.apis]

    @property
    def service(self) -> Service:
        return Service(self.urls[0], self.config, self.db)

    async def ready(self) -> None:
        """Waits until every node answers that it is ready."""
        for api in self.apis:
            connection = Connection(api.url, "none")

            async def answers(connection: Connection = connection) -> bool:
                try:
                    return (await connection.request("GET", "/readyz")).status == 200
                except Cut:
                    return False

            await until(answers, seconds=60)
            connection.close()


@asynccontextmanager
async def running_topology(folder: Path) -> AsyncGenerator[Topology]:
    base = load_config(
        {},
        data_dir=folder / "localnet",
        localnet_port=0,
        log_level="warning",
        # Shorter than what a failover may take, so that waiting is not what hides it.
        database_timeout_seconds=5,
        master_key=base64.b64encode(secrets.token_bytes(32)).decode(),
        drain_seconds=5,
    )
    base.data_dir.mkdir(mode=0o700)
    redis = RedisServer(folder)
    await redis.start()
    nodes: list[Node] = []
    try:
        async with running_cluster(folder) as cluster:
            await migrate(cluster.dsn)
            config = choose_ports(
                replace(base, database_url=cluster.dsn, redis_url=redis.url, port=0)
            )
            (chain,) = localnet_children(config)
            chain = replace(chain, argv=[*chain.argv, "--slot-ms", SLOT_MS, "--ws-port", "0"])
            async with Supervisor(base.data_dir) as supervisor:
                await supervisor.start(chain)
                nodes = [_node("api", config, folder / f"api-{n}") for n in range(3)]
                nodes += [_node("worker", config, folder / f"worker-{n}") for n in range(2)]
                await asyncio.gather(*(node.start() for node in nodes))
                db = await Database.open(cluster.dsn, 2, 10)
                async with aiohttp.ClientSession() as session:
                    rpc = Rpc(config.localnet_port, session)
                    yield Topology(config, cluster, redis, nodes[:3], nodes[3:], rpc, db)
                await db.close()
                for node in nodes:
                    await node.end(signal.SIGTERM)
    except BaseException:
        for node in nodes:
            print(f"--- {node.role} {node.config.data_dir.name}:\n{node.last_words()}")
        raise
    finally:
        for node in nodes:
            await node.end()
        await redis.stop()


def _node(role: str, config: Config, folder: Path) -> Node:
    folder.mkdir(mode=0o700)
    return Node(role, replace(config, data_dir=folder, port=free_port("127.0.0.1", 0)))


@dataclass
class Clients:
    """Each spends again and again, asks another node when one fails, with the same key until it is
    answered, and remembers what it was told."""

    urls: Sequence[str]
    keys: Sequence[str]
    agents: Sequence[str]
    seed: str
    pause: tuple[float, float] = (0.05, 0.25)
    acknowledged: dict[str, dict[str, Any]] = field(default_factory=dict)
    # When the request of each acknowledged spend was first made, and when it was answered.
    times: list[tuple[float, float]] = field(default_factory=list)
    retries: int = 0
    _tasks: "list[asyncio.Task[None]]" = field(default_factory=list)
    _stopping: bool = False

    def start(self) -> None:
        self._stopping = False
        self._tasks = [asyncio.create_task(self._client(n)) for n in range(len(self.keys))]

    async def stop(self) -> None:
        """Lets every request be answered first."""
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)

    def check(self) -> None:
        """Fails with what a client failed with."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count

        async def enough() -> bool:
            self.check()
            return len(self.acknowledged) >= wanted

        await until(enough, seconds=60, every=0.01)

    async def first_after(self, watch: Watch) -> float:
        """How long after the watch began the first spend that was asked for later was
        acknowledged."""

        async def one() -> bool:
            self.check()
            return any(asked > watch.began for asked, _ in self.times[-200:])

        await until(one, seconds=60, every=0.01)
        return watch.seconds

    async def _client(self, number: int) -> None:
        chance = Random(f"{self.seed}/{number}")
        loop = asyncio.get_running_loop()
        connections = [Connection(url, self.keys[number]) for url in self.urls]
        asked = 0
        try:
            while not self._stopping:
                asked += 1
                name = f"{self.seed}-{number}-{asked}"
                body = {
                    "agentId": chance.choice(self.agents),
                    "amount": f"0.{chance.randrange(1, 100_000):06}",
                    "recipient": HOST,
                }
                started = loop.time()
                self.acknowledged[name] = await self._ask(connections, number + asked, name, body)
                self.times.append((started, loop.time()))
                await asyncio.sleep(chance.uniform(*self.pause))
        finally:
            for connection in connections:
                connection.close()

    async def _ask(
        self, connections: Sequence[Connection], first: int, name: str, body: Any
    ) -> dict[str, Any]:
        for turn in range(first, first + 2_000):
            connection = connections[turn % len(connections)]
            try:
                answer = await connection.request(
                    "POST", "/v1/spend/authorise", body, key=name, seconds=20
                )
            except (Cut, TimeoutError):
                pass
            else:
                if answer.status == 201:
                    return answer.data
                assert answer.status == 503, answer.body
                assert int(answer.headers["retry-after"]) >= 1
            self.retries += 1
            await asyncio.sleep(0.05)
        raise AssertionError(f"{name} was never answered")


async def make_clients(topology: Topology, seed: str, count: int = 8) -> Clients:
    """With agents that have money on the chain, and a key each so that no limit bites."""
    service = topology.service
    account = f"account of {seed}"
    keys = [await service.key(account=account) for _ in range(count)]
    agents: list[str] = []
    connection = Connection(topology.urls[0], keys[0])
    for _ in range(4):
        policy = {"dailyCap": "100000.00", "allowlist": [HOST]}
        made = await connection.request("POST", "/v1/agents", {"name": "agent", "policy": policy})
        agents.append(made.data["id"])
        path = f"/v1/test/wallets/{agents[-1]}/fund"
        funded = await connection.request("POST", path, {"amount": "10000"})
        assert funded.data["status"] == "credited", funded.data
    connection.close()
    return Clients(topology.urls, keys, agents, seed)
