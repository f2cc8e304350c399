"""Back to an earlier state, as docs/backup.md says: what the chain remembers and the database does
not is named, and nothing is paid twice."""

import asyncio
import base64
import re
import secrets
import shutil
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bursar.config import Config, load_config
from bursar.db import Database
from bursar.migrations.migrate import migrate
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.ports import free_port
from bursar.service.postgres import ROLE
from bursar.service.supervisor import Supervisor
from tests.localnet.support import Rpc
from tests.nodes.cluster import Server
from tests.nodes.topology import SLOT_MS, Node
from tests.processes import Finished, bursar, until
from tests.settlement.books import ledger_is_chain, nothing_open, paid_times
from tests.simulation.wire import Connection
from tests.simulation.world import HOST, make_agent
from tests.support import Service

_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
archive_mode = on
archive_command = 'test ! -f {archive}/%f && cp %p {archive}/%f'
"""
_RESTORE = """
restore_command = 'cp {archive}/%f %p'
recovery_target_name = 'the_point'
recovery_target_action = 'promote'
"""
pytestmark = pytest.mark.timeout(1_200)


@dataclass
class Site:
    """One server with its archive, a chain, one API node and one worker."""

    folder: Path
    archive: Path
    server: Server
    config: Config
    rpc: Rpc
    api: Node
    worker: Node
    key: str = ""
    agents: list[str] = field(default_factory=list)

    def use(self, server: Server) -> None:
        """From now on this is the database."""
        self.server = server
        config = replace(self.config, database_url=server.dsn(ROLE))
        self.config = config
        for node in (self.api, self.worker):
            node.config = replace(node.config, database_url=config.database_url)

    @property
    def settings(self) -> str:
        return _SETTINGS.format(port=self.server.port, archive=self.archive)

    @asynccontextmanager
    async def database(self) -> AsyncGenerator[Database]:
        db = await Database.open(self.server.dsn(ROLE), 2, 10)
        try:
            yield db
        finally:
            await db.close()

    async def make_agents(self) -> None:
        async with self.database() as db:
            self.key = await Service(self.api.url, self.config, db).key(account="backup")
        connection = Connection(self.api.url, self.key)
        for _ in range(2):
            self.agents.append((await make_agent(connection))["id"])
            await self.fund(self.agents[-1], "100")
        connection.close()

    async def fund(self, agent_id: str, amount: str) -> None:
        connection = Connection(self.api.url, self.key)
        path = f"/v1/test/wallets/{agent_id}/fund"
        funded = await connection.request("POST", path, {"amount": amount})
        connection.close()
        assert funded.status == 201

    async def spend(self, agent_id: str, *amounts: str) -> list[str]:
        connection = Connection(self.api.url, self.key)
        made: list[str] = []
        for amount in amounts:
            body = {"agentId": agent_id, "amount": amount, "recipient": HOST}
            answer = await connection.request("POST", "/v1/spend/authorise", body)
            assert answer.data["status"] == "approved"
            made.append(answer.data["id"])
        connection.close()
        return made

    async def statuses(self, ids: Sequence[str]) -> dict[str, str]:
        async with self.database() as db, db.connection() as tx:
            rows = await tx.fetch("SELECT id, status FROM spend WHERE id = ANY($1)", ids)
        return {row["id"]: row["status"] for row in rows}

    async def settled(self) -> None:
        async with self.database() as db:
            await until(lambda: nothing_open(db), seconds=90, every=0.1)

    async def command(self, *arguments: str) -> Finished:
        return await bursar(
            *arguments,
            data_dir=str(self.config.data_dir),
            database_url=self.server.dsn(ROLE),
            localnet_port=str(self.config.localnet_port),
        )

    async def stop_nodes(self) -> None:
        for node in (self.api, self.worker):
            await node.end(signal.SIGTERM)

    async def each_paid_once(self, ids: Sequence[str]) -> None:
        """By what the chain remembers, which is all of it."""
        async with self.database() as db, db.connection() as tx:
            rows = await tx.fetch(
                "SELECT address FROM wallet WHERE agent_id = ANY($1)", self.agents
            )
        paid = await paid_times(self.rpc, [row["address"] for row in rows])
        assert {memo: times for (_, memo), times in paid.items()} == dict.fromkeys(ids, 1)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    config = load_config(
        {},
        data_dir=tmp_path / "localnet",
        localnet_port=0,
        rate_limits="off",
        log_level="warning",
        sweep_seconds=1,
        master_key=base64.b64encode(secrets.token_bytes(32)).decode(),
    )
    config.data_dir.mkdir(mode=0o700)
    archive = tmp_path / "archive"
    archive.mkdir(mode=0o700)
    server = Server("n0", tmp_path, free_port("127.0.0.1", 0))
    config = choose_ports(replace(config, database_url=server.dsn(ROLE), port=0))
    (chain,) = localnet_children(config)
    chain = replace(chain, argv=[*chain.argv, "--slot-ms", SLOT_MS, "--ws-port", "0"])
    nodes: list[Node] = []
    for role in ("api", "worker"):
        folder = tmp_path / role
        folder.mkdir(mode=0o700)
        port = free_port("127.0.0.1", 0)
        nodes.append(Node(role, replace(config, data_dir=folder, port=port)))
    async with aiohttp.ClientSession() as session, Supervisor(config.data_dir) as supervisor:
        await supervisor.start(chain)
        rpc = Rpc(config.localnet_port, session)
        site = Site(tmp_path, archive, server, config, rpc, nodes[0], nodes[1])
        await server.configure(site.settings)
        await server.start()
        await migrate(server.dsn(ROLE))
        try:
            for node in nodes:
                await node.start()
            await site.make_agents()
            yield site
        except BaseException:
            for node in nodes:
                print(f"--- {node.role}:\n{node.last_words()}")
            raise
        finally:
            for node in nodes:
                await node.end()
            await site.server.kill()


async def base_backup(site: Site, target: Path) -> None:
    await site.server.tool(
        *("pg_basebackup", "-D", str(target), "-h", "127.0.0.1", "-p", str(site.server.port)),
        *("-U", "postgres", "-X", "none", "-c", "fast", "--no-sync"),
    )


async def restore(site: Site, backup: Path) -> Server:
    """The base backup and the archive, up to the point, as a server of its own."""
    server = Server("n1", site.folder, free_port("127.0.0.1", 0))
    server.embedded.data_dir.mkdir(mode=0o700)
    await asyncio.to_thread(shutil.copytree, backup, server.folder, symlinks=True)
    settings = _SETTINGS.format(port=server.port, archive=site.archive)
    await server.configure(settings + _RESTORE.format(archive=site.archive))
    await server.tool("touch", str(server.folder / "recovery.signal"))
    await server.start()

    async def promoted() -> bool:
        return await server.ask("SELECT NOT pg_is_in_recovery()") is True

    await until(promoted, seconds=60)
    return server


async def test_restore_to_a_point_in_time(site: Site):
    """Goal: payments that were approved at the point and made after it are found on the chain, not
    made again; those made after it and forgotten are named one by one; deposits come back by
    themselves; once the forgotten are entered, the audit is clean."""
    first, second = site.agents
    before = await site.spend(first, "1", "2")
    await site.settled()
    backup = site.folder / "backup"
    await base_backup(site, backup)
    before += await site.spend(second, "3")
    await site.settled()
    await site.worker.end(signal.SIGTERM)
    approved = await site.spend(first, "4", "5")
    await site.server.ask("SELECT pg_create_restore_point('the_point')")
    await site.worker.start()
    await site.settled()
    forgotten = await site.spend(second, "6", "7.5")
    await site.fund(first, "50")
    await site.settled()
    archived = await site.server.ask("SELECT pg_walfile_name(pg_switch_wal())")
    await until(_exists(site.archive / str(archived)), seconds=30)
    await site.stop_nodes()
    await site.server.kill()

    site.use(await restore(site, backup))
    assert await site.statuses(before) == dict.fromkeys(before, "settled")
    assert await site.statuses(approved) == dict.fromkeys(approved, "approved")
    assert await site.statuses(forgotten) == {}

    await site.api.start()
    await site.worker.start()
    await site.settled()
    assert await site.statuses(approved) == dict.fromkeys(approved, "settled")

    # The deposit is back in the books; the wallet with payments that nobody remembers is frozen.
    async def as_it_should() -> bool:
        async with site.database() as db, db.connection() as tx:
            rows = await tx.fetch("SELECT agent_id, is_frozen, credits_posted::bigint FROM wallet")
        return {row[0]: (row[1], row[2]) for row in rows} == {
            first: (False, 150_000_000),
            second: (True, 100_000_000),
        }

    await until(as_it_should, seconds=60, every=0.1)
    audit = await site.command("audit")
    assert audit.code == 1
    assert f"{second} holds 13.500000 USDC less" in audit.out
    named = re.findall(
        rf"{second}: unknown payment of ([\d.]+) USDC, transaction (\w+) \(memo (\w+)\)", audit.out
    )
    assert {(amount, memo) for amount, _, memo in named} == {
        ("6.000000", forgotten[0]),
        ("7.500000", forgotten[1]),
    }
    assert first not in audit.out
    for _, signature, _ in named:
        done = await site.command("adopt", second, signature)
        assert done.code == 0, done.err

    async def clean() -> bool:
        return (await site.command("audit")).code == 0

    await until(clean, seconds=30)
    async with site.database() as db:
        assert await ledger_is_chain(site.rpc, db)
    await site.each_paid_once([*before, *approved, *forgotten])


async def test_a_snapshot_put_back_where_it_was(site: Site):
    """Goal: whoever knows may say so with `bursar database restored`; what was paid since is found,
    not paid again."""
    paid, approved = await _put_a_snapshot_back(site)
    done = await site.command("database", "restored")
    assert done.code == 0, done.err
    assert "Nothing is signed until" in done.out
    await _nothing_is_paid_twice(site, paid, approved)


@pytest.mark.parametrize("lost", ["the database", "the database and the worker's folder"])
async def test_a_snapshot_put_back_is_noticed(site: Site, lost: str):
    """Goal: nobody says a word. The worker's folder remembers what was signed; where that went back
    too, as with a snapshot of the whole machine, the chain does. Nothing is paid twice."""
    if lost == "the database":
        paid, approved = await _put_a_snapshot_back(site)
        # The chain would tell as well, if it had been looked at before.
        async with site.database() as db, db.connection() as tx:
            await tx.execute("UPDATE settlement_watch SET explained_slot = NULL")
    else:
        folder = site.worker.config.data_dir
        kept = site.folder / "folder"
        paid, approved = await _put_a_snapshot_back(site, lambda: _copy(folder, kept))
        await _replace(kept, folder)
    await _nothing_is_paid_twice(site, paid, approved)
    assert "database_older_than_its_payments" in site.worker.last_words()


async def test_a_machine_that_slept_is_not_restored(site: Site):
    """Goal: nothing was written for longer than any attempt lives, and nothing was forgotten: the
    next payment is made at once."""
    first, _ = site.agents
    paid = await site.spend(first, "1")
    await site.settled()
    await site.stop_nodes()
    await site.server.stop()
    height = await site.rpc("getBlockHeight")

    async def long_ago() -> bool:
        return await site.rpc("getBlockHeight") > height + 400

    await until(long_ago, seconds=60)
    await site.server.start()
    await site.api.start()
    await site.worker.start()
    paid += await site.spend(first, "2")
    await site.settled()
    async with site.database() as db, db.connection() as tx:
        row = await tx.fetchrow("SELECT quiet_until_height, careful_before FROM settlement_watch")
    assert row is not None
    assert tuple(row) == (0, None)
    await site.each_paid_once(paid)


async def _put_a_snapshot_back(
    site: Site, also: Callable[[], Awaitable[None]] | None = None
) -> tuple[list[str], list[str]]:
    """What was paid before the snapshot, and what was approved in it and paid after it."""
    first, second = site.agents
    paid = await site.spend(first, "1")
    await site.settled()
    await site.worker.end(signal.SIGTERM)
    approved = await site.spend(second, "2", "3")
    await site.api.end(signal.SIGTERM)
    await site.server.stop()
    snapshot = site.folder / "snapshot"
    await _copy(site.server.folder, snapshot)
    if also is not None:
        await also()
    await site.server.start()
    timeline = await _timeline(site.server)
    await site.worker.start()
    await site.settled()
    await site.worker.end(signal.SIGTERM)

    await site.server.stop()
    await _replace(snapshot, site.server.folder)
    await site.server.start()
    assert await _timeline(site.server) == timeline
    assert await site.statuses(approved) == dict.fromkeys(approved, "approved")
    return paid, approved


async def _nothing_is_paid_twice(site: Site, paid: list[str], approved: list[str]) -> None:
    await site.api.start()
    await site.worker.start()
    await site.settled()
    more = await site.spend(site.agents[0], "4")
    await site.settled()
    assert await site.statuses(approved) == dict.fromkeys(approved, "settled")
    await site.each_paid_once([*paid, *approved, *more])
    assert (await site.command("audit")).code == 0


async def _copy(folder: Path, to: Path) -> None:
    await asyncio.to_thread(shutil.copytree, folder, to, symlinks=True)


async def _replace(snapshot: Path, folder: Path) -> None:
    await asyncio.to_thread(shutil.rmtree, folder)
    await _copy(snapshot, folder)


async def _timeline(server: Server) -> Any:
    return await server.ask(
        "SELECT (SELECT system_identifier FROM pg_control_system()) || '/'"
        " || (SELECT timeline_id FROM pg_control_checkpoint())"
    )


def _exists(path: Path) -> Any:
    async def exists() -> bool:
        return await asyncio.to_thread(path.exists)

    return exists
