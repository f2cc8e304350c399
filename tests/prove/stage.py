"""The documented topology, every part a process of its own, every pair joined by a wire.

Three API nodes, two workers, a PostgreSQL primary with two synchronous standbys, Redis, the chain,
and a receiver of webhooks. Nodes and chain are kept alive by a supervisor, as they are in life.
"""

import base64
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec

from bursar.config import Config, load_config
from bursar.db import Database
from bursar.migrations.migrate import migrate
from bursar.service import serve
from bursar.service.health import healthy
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.ports import free_port
from bursar.service.postgres import DATABASE, ROLE
from bursar.service.supervisor import Child, Supervisor
from tests.localnet.support import Rpc
from tests.nodes.cluster import Cluster, Server
from tests.nodes.redis_server import RedisServer
from tests.parts import FAKETIME
from tests.processes import clean_environment, until
from tests.prove.receiver import Receiver, running_receiver
from tests.prove.schedule import APIS, WORKERS
from tests.prove.wires import Wire
from tests.simulation.wire import Connection, Cut
from tests.support import Service

# Short, so that what waits for 182 blocks waits for seconds; lags as on mainnet.
SLOT_MS = 40
LAGS = ("--confirmed-lag", "2", "--finalized-lag", "16")
READY_SECONDS = 90


class WiredCluster(Cluster):
    """Standbys follow the primary through wires."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wires: dict[str, list[Wire]] = {
            server.name: [Wire("postgres postgres", other.port) for other in self.servers]
            for server in self.servers
        }

    def settings(self, server: Server) -> str:
        mine = [str(wire.port) for wire in self.wires[server.name]]
        theirs = [str(other.port) for other in self.servers]
        return (
            super().settings(server).replace(f"port={','.join(theirs)}", f"port={','.join(mine)}")
        )


@dataclass
class Stage:
    folder: Path
    config: Config
    cluster: WiredCluster
    redis: RedisServer
    supervisor: Supervisor
    wires: dict[str, list[Wire]]
    # Where clients find each API node.
    urls: list[str]
    receiver: Receiver
    rpc: Rpc
    # Past all wires, for whoever looks on.
    db: Database

    @property
    def service(self) -> Service:
        return Service(self.urls[0], self.config, self.db)

    def clock_of(self, name: str) -> Path:
        return clock_file(self.folder, name)

    async def answering(self) -> bool:
        """Whether every API node says that it is ready."""
        return all([await _is_ready(url) for url in self.urls])

    async def ready(self) -> float:
        """Waits until everything is; returns how long that took."""
        return await until(self.answering, seconds=READY_SECONDS, every=0.05)


async def _is_ready(url: str) -> bool:
    connection = Connection(url, "none")
    try:
        return (await connection.request("GET", "/readyz", seconds=3)).status == 200
    except (Cut, TimeoutError, msgspec.DecodeError):
        return False
    finally:
        connection.close()


@asynccontextmanager
async def running_stage(folder: Path, disk: Path) -> AsyncGenerator[Stage]:
    """`disk` is where PostgreSQL and the chain keep their files."""
    base = load_config(
        {},
        data_dir=disk / "localnet",
        localnet_port=0,
        log_level="warning",
        database_timeout_seconds=3,
        chain_timeout_seconds=2,
        sweep_seconds=1,
        drain_seconds=3,
        master_key=base64.b64encode(secrets.token_bytes(32)).decode(),
        webhooks_allow="127.0.0.0/8",
        webhooks_retry_seconds=",".join(["1"] * 60),
        webhooks_timeout_seconds=3,
        # A whole hour's load is of a few agents: what it costs must stop none of them.
        agent_network_lamports=10**12,
        account_network_lamports=10**12,
    )
    base.data_dir.mkdir(mode=0o700)
    redis = RedisServer(folder)
    cluster = WiredCluster(disk)
    wires: dict[str, list[Wire]] = defaultdict(list)
    await redis.start()
    try:
        for wire in (wire for wires_ in cluster.wires.values() for wire in wires_):
            await _join(wires, wire)
        await cluster.start()
        await migrate(cluster.dsn)
        config = choose_ports(replace(base, database_url=cluster.dsn, port=0))
        async with (
            Supervisor(base.data_dir) as supervisor,
            running_receiver() as receiver,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        ):
            (chain,) = localnet_children(config)
            argv = [*chain.argv, "--faults", "--slot-ms", str(SLOT_MS), *LAGS, "--ws-port", "0"]
            await supervisor.start(replace(chain, argv=argv))
            receiver.wire = await _join(wires, Wire("worker receiver", receiver.port))
            urls: list[str] = []
            for name in (*APIS, *WORKERS):
                node = await _wired(name, config, cluster, redis, wires, folder)
                await supervisor.start(_child(name, node, folder))
                if name in APIS:
                    wire = await _join(wires, Wire("client api", node.port))
                    urls.append(f"http://127.0.0.1:{wire.port}")
            db = await Database.open(cluster.dsn, 4, 20)
            try:
                yield Stage(
                    *(folder, config, cluster, redis, supervisor, dict(wires), urls),
                    *(receiver, Rpc(config.localnet_port, session), db),
                )
            finally:
                await db.close()
    finally:
        await cluster.stop()
        await redis.stop()
        for wire in (wire for wires_ in wires.values() for wire in wires_):
            await wire.stop()


async def _join(wires: dict[str, list[Wire]], wire: Wire) -> Wire:
    await wire.start()
    wires[wire.ends].append(wire)
    return wire


async def _wired(
    name: str,
    config: Config,
    cluster: Cluster,
    redis: RedisServer,
    wires: dict[str, list[Wire]],
    folder: Path,
) -> Config:
    """The settings of one node, for whom everybody else is at the end of a wire."""
    role = name.partition("-")[0]
    hosts = [
        await _join(wires, Wire(f"{role} postgres", server.port)) for server in cluster.servers
    ]
    counter = await _join(wires, Wire(f"{role} redis", redis.port))
    chain = await _join(wires, Wire(f"{role} localnet", config.localnet_port))
    data_dir = folder / name
    data_dir.mkdir(mode=0o700)
    addresses = ",".join(f"127.0.0.1:{wire.port}" for wire in hosts)
    return replace(
        config,
        data_dir=data_dir,
        port=free_port("127.0.0.1", 0),
        database_url=f"postgresql://{ROLE}@{addresses}/{DATABASE}",
        redis_url=f"redis://127.0.0.1:{counter.port}/0",
        localnet_port=chain.port,
    )


def _child(name: str, config: Config, folder: Path) -> Child:
    role = name.partition("-")[0]
    return Child(
        name=name,
        argv=[*serve.PROCESS, role],
        env=clean_environment() | config.child_environment() | _own_clock(folder, name),
        ready=None if role == "worker" else lambda: healthy("127.0.0.1", config.port, "/healthz"),
        stop_seconds=config.drain_seconds + 5,
        stderr_file=folder / f"{name}.log",
    )


def clock_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.clock"


def _own_clock(folder: Path, name: str) -> dict[str, str]:
    """Variables of a process whose time of day can be moved while it runs."""
    if FAKETIME is None:
        return {}
    file = clock_file(folder, name)
    file.write_text("+0")
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DISABLE_SHM": "1",
    }
