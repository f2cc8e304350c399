"""One PostgreSQL primary and two standbys, of which any one must have a commit before it counts.

As docs/several-machines.md sets them up, each in a folder and on a port of its own.
"""

import asyncio
import shutil
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from bursar.service.environment import bare_environment
from bursar.service.ports import free_port
from bursar.service.postgres import ADMIN_ROLE, DATABASE, ROLE, EmbeddedPostgres
from bursar.service.programs import binary, run_program
from bursar.service.supervisor import launch_argv
from tests.processes import until

_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
cluster_name = '{name}'
max_connections = 100
max_wal_senders = 10
wal_keep_size = 256MB
synchronous_standby_names = 'ANY 1 (n0, n1, n2)'
# A standby finds the primary by itself, whoever that is now.
primary_conninfo = 'user=postgres {hosts} target_session_attrs=read-write connect_timeout=2'
wal_retrieve_retry_interval = 100ms
"""
_RULES = """
host  all          all  127.0.0.1/32  trust
host  replication  all  127.0.0.1/32  trust
"""


class Server:
    """One of the three. Whether it is the primary is for `standby.signal` to say."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name = name
        self.port = port
        self.embedded = EmbeddedPostgres(folder / name, durable=False)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def folder(self) -> Path:
        return self.embedded.cluster_dir

    def dsn(self, role: str = ADMIN_ROLE, database: str = DATABASE) -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}"

    async def configure(self, settings: str) -> None:
        """Makes the database, if there is none yet, and writes its configuration."""
        await self.embedded.prepare()
        for file, text in (("postgresql.conf", settings), ("pg_hba.conf", _RULES)):
            with (self.folder / file).open("a", encoding="utf-8") as handle:
                handle.write(text)

    async def start(self) -> None:
        await self.embedded.clear()
        argv = [str(binary("postgres")), "-D", str(self.folder)]
        self._process = await asyncio.create_subprocess_exec(
            *launch_argv(argv, identity=self.embedded._chosen().spec),
            env=bare_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        await until(self.answers, seconds=60)

    async def answers(self) -> bool:
        try:
            await self.ask("SELECT 1")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    async def ask(self, query: str) -> object:
        connection = await asyncpg.connect(self.dsn(), timeout=5)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close(timeout=5)

    async def stop(self) -> None:
        """In order, as for a maintenance: everything is on disk afterwards."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        await asyncio.wait_for(self._process.wait(), 60)
        self._process = None

    async def kill(self) -> None:
        """The machine is gone: every process at once, nothing said to anybody."""
        await self.embedded.clear()
        if self._process is not None:
            await self._process.wait()
            self._process = None

    async def copy_from(self, primary: "Server", settings: str) -> None:
        """A new standby, from nothing."""
        if self.folder.exists():
            await asyncio.to_thread(shutil.rmtree, self.folder)
        self.embedded.data_dir.mkdir(mode=0o700, exist_ok=True)
        await self.embedded._choose_identity()
        await self.tool(
            *("pg_basebackup", "-D", str(self.folder), "-h", "127.0.0.1", "-p", str(primary.port)),
            *("-U", ADMIN_ROLE, "-X", "stream", "-c", "fast", "--no-sync"),
        )
        await self.configure(settings)
        await self.tool("touch", str(self.folder / "standby.signal"))

    async def tool(self, name: str, *arguments: str) -> None:
        """Runs a program as whoever owns the database's files."""
        program = f"/usr/bin/{name}" if name == "touch" else str(binary(name))
        argv = launch_argv([program, *arguments], identity=self.embedded._chosen().spec)
        await run_program(argv, seconds=120)


class Cluster:
    def __init__(self, folder: Path) -> None:
        ports = [free_port("127.0.0.1", 0) for _ in range(3)]
        self.servers = [Server(f"n{n}", folder, port) for n, port in enumerate(ports)]
        self.primary = self.servers[0]

    @property
    def dsn(self) -> str:
        """What Bursar is given: all three, because any of them may be the primary."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"postgresql://{ROLE}@{hosts}/{DATABASE}"

    @property
    def standbys(self) -> list[Server]:
        return [server for server in self.servers if server is not self.primary]

    def settings(self, server: Server) -> str:
        hosts = ",".join("127.0.0.1" for _ in self.servers)
        ports = ",".join(str(each.port) for each in self.servers)
        return _SETTINGS.format(
            port=server.port, name=server.name, hosts=f"host={hosts} port={ports}"
        )

    async def start(self) -> None:
        await self.primary.configure(self.settings(self.primary))
        await self.primary.start()
        for standby in self.standbys:
            await self.join(standby)
        await self.until_followed(2)

    async def join(self, server: Server) -> None:
        """A server that was lost comes back, as a standby of whoever is the primary now."""
        await server.copy_from(self.primary, self.settings(server))
        await server.start()

    async def until_followed(self, count: int) -> None:
        async def followed() -> bool:
            query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
            return await self.primary.ask(query) == count

        await until(followed, seconds=60)

    async def fail_over(self) -> Server:
        """Kills the primary and promotes the standby that has more; returns the old primary.

        With `ANY 1` a commit that was acknowledged is on one of the two, so both are asked."""
        lost = self.primary
        await lost.kill()
        await self.promote_best()
        return lost

    async def promote_best(self) -> None:
        received: Mapping[Server, int] = {
            standby: await _position(standby) for standby in self.standbys
        }
        best = max(received, key=lambda server: received[server])
        assert await best.ask("SELECT pg_promote(true, 30)") is True
        self.primary = best

    async def stop(self) -> None:
        for server in self.servers:
            await server.kill()


async def _position(standby: Server) -> int:
    found = await standby.ask(
        "SELECT (greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0')::bigint"
    )
    assert isinstance(found, int)
    return found


@asynccontextmanager
async def running_cluster(folder: Path) -> AsyncGenerator[Cluster]:
    cluster = Cluster(folder)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
