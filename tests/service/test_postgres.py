"""Embedded PostgreSQL: private, durable, and back after whatever kills it, as root or not."""

import asyncio
import os
import pwd
import signal
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncpg
import psutil
import pytest

from bursar.errors import CommandFailed
from bursar.service import postgres
from bursar.service.postgres import EmbeddedPostgres, Identity, running_postgres
from bursar.service.programs import binary
from bursar.service.supervisor import Supervisor, launch_argv
from tests.processes import until
from tests.service.waiting import eventually, runs

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
BROKEN = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
NAMESPACE = Identity("namespace", 0, 0)


def nobody() -> Identity:
    user = pwd.getpwnam("nobody")
    return Identity(f"{user.pw_uid}:{user.pw_gid}", user.pw_uid, user.pw_gid, passes=True)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose database exists; tests on it leave its server stopped."""
    folder = tmp_path_factory.mktemp("made") / "data"
    asyncio.run(_make(folder))
    return folder


async def _make(folder: Path) -> None:
    await EmbeddedPostgres(folder, durable=False).prepare()


@asynccontextmanager
async def connected(dsn: str) -> AsyncGenerator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


async def write_row(server: EmbeddedPostgres, value: int) -> None:
    async with connected(server.dsn) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS kept (value int)")
        await connection.execute("INSERT INTO kept VALUES ($1)", value)


async def read_rows(server: EmbeddedPostgres) -> list[int]:
    async with connected(server.dsn) as connection:
        return [row["value"] for row in await connection.fetch("SELECT value FROM kept ORDER BY 1")]


def postmaster(server: EmbeddedPostgres) -> int:
    return int((server.cluster_dir / "postmaster.pid").read_text().split()[0])


async def test_rows_stay_over_a_restart_which_is_quick(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with running_postgres(tmp_path / "data") as server:
        await write_row(server, 1)
        processes = list(server.processes())
        assert processes
    assert not any(runs(process.pid) for process in processes)
    begin = loop.time()
    async with running_postgres(tmp_path / "data") as server:
        assert loop.time() - begin < 1.5
        assert await read_rows(server) == [1]


async def test_rows_stay_when_the_server_is_killed_in_the_middle_of_a_query(tmp_path: Path) -> None:
    async with running_postgres(tmp_path / "data") as server:
        await write_row(server, 1)
        connection = await asyncpg.connect(server.dsn, timeout=10)
        backend = await connection.fetchval("SELECT pg_backend_pid()")
        # Long enough that this backend, left alone, would bar the way for the whole test.
        query = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
        old = postmaster(server)
        os.kill(old, signal.SIGKILL)
        with pytest.raises(BROKEN):
            await query
        connection.terminate()
        await restarted(server, old)
        assert not runs(backend)
        assert await read_rows(server) == [1]


async def test_rows_stay_when_a_backend_is_killed(made: Path) -> None:
    async with running_postgres(made, durable=False) as server:
        await write_row(server, 1)
        old = postmaster(server)
        connection = await asyncpg.connect(server.dsn, timeout=10)
        os.kill(await connection.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
        await restarted(server, old)
        connection.terminate()
        assert 1 in await read_rows(server)


async def restarted(server: EmbeddedPostgres, old: int) -> None:
    def another() -> bool:
        try:
            return postmaster(server) != old
        except (OSError, IndexError):
            return False

    await eventually(another)
    await asyncio.wait_for(server.wait_ready(), 20)


async def test_a_server_left_by_a_killed_supervisor_is_replaced(made: Path) -> None:
    """Started without a supervisor, so that nothing but the folder tells of it."""
    server = EmbeddedPostgres(made, durable=False)
    await server.prepare()
    child = server.child()
    left = await asyncio.create_subprocess_exec(
        *launch_argv(child.argv, identity=child.identity), env=child.env, start_new_session=True
    )
    await asyncio.wait_for(server.wait_ready(), 20)
    async with running_postgres(made, durable=False) as again:
        assert postmaster(again) != left.pid
        assert await left.wait() == -signal.SIGKILL


async def test_the_lock_file_of_a_dead_server_is_not_believed(made: Path) -> None:
    """After a reboot, or in a container, its process id soon belongs to somebody else."""
    lock = made / "postgres" / "postmaster.pid"
    socket_lock = EmbeddedPostgres(made).socket_dir / ".s.PGSQL.5432.lock"
    somebody = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        for file in (lock, socket_lock):
            file.write_text(f"{somebody.pid}\n{lock.parent}\n1700000000\n5432\n\n\n\n")
        async with running_postgres(made, durable=False) as server:
            assert postmaster(server) != somebody.pid
    finally:
        somebody.kill()
        await somebody.wait()


async def test_a_first_start_that_was_cut_short_begins_again(tmp_path: Path) -> None:
    unfinished = tmp_path / "data" / "postgres.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    (unfinished.parent / "serve.lock").touch()
    async with running_postgres(tmp_path / "data", durable=False) as server:
        assert not unfinished.exists()
        await write_row(server, 1)


async def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(CommandFailed, match="made by PostgreSQL 17, and this Bursar brings 18"):
        await EmbeddedPostgres(tmp_path).prepare()


async def test_a_server_that_cannot_start_says_why(made: Path) -> None:
    override = made / "postgres" / "postgresql.auto.conf"
    before = override.read_text()
    override.write_text("no_such_setting = 1\n")
    try:
        with pytest.raises(CommandFailed, match="no_such_setting"):
            async with running_postgres(made, durable=False):
                pass
    finally:
        override.write_text(before)


@pytest.mark.parametrize("name", ["x" * 120, "with, comma and 'quote'", "größe"])
async def test_a_path_that_no_socket_can_have_gets_one_elsewhere(tmp_path: Path, name: str) -> None:
    async with running_postgres(tmp_path / name, durable=False) as server:
        await write_row(server, 1)
        elsewhere = server.socket_dir
        assert not elsewhere.is_relative_to(tmp_path)
        status = elsewhere.stat()
        assert stat.S_IMODE(status.st_mode) == 0o700
        assert status.st_uid == os.geteuid()
    # The same one again, also for a command that only knows the data folder.
    assert EmbeddedPostgres(tmp_path / name).socket_dir == elsewhere
    elsewhere.rmdir()
    # Cleaned away, and the name taken by somebody who lays a trap.
    trap = tmp_path / "trap"
    trap.mkdir()
    elsewhere.symlink_to(trap)
    async with running_postgres(tmp_path / name, durable=False) as server:
        assert server.socket_dir not in (elsewhere, trap)
        server_dir = server.socket_dir
    elsewhere.unlink()
    server_dir.rmdir()


def test_without_a_database_the_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="has no database yet"):
        _ = EmbeddedPostgres(tmp_path / ("x" * 120)).dsn


async def test_it_is_private_and_set_as_recorded(tmp_path: Path) -> None:
    async with running_postgres(tmp_path / "data") as server:
        assert stat.S_IMODE(server.cluster_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        listening = psutil.Process(postmaster(server)).net_connections(kind="inet")
        assert listening == []
        async with connected(server.dsn) as connection:
            settings = {
                row["name"]: row["setting"]
                for row in await connection.fetch("SELECT name, setting FROM pg_settings")
            }
            assert await connection.fetchval("SELECT current_user::text") == "bursar"
            assert not await connection.fetchval(
                "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication"
                " FROM pg_roles WHERE rolname = 'bursar'"
            )
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("COPY (SELECT 1) TO PROGRAM 'cat'")
        always_on = ("fsync", "synchronous_commit", "full_page_writes", "data_checksums")
        assert {settings[name] for name in always_on} == {"on"}
        assert settings["listen_addresses"] == ""
        assert settings["TimeZone"] == "UTC"
        assert settings["server_encoding"] == "UTF8"
        assert not await _wrong_lines(server)


async def _wrong_lines(server: EmbeddedPostgres) -> list[str]:
    async with connected(server.admin_dsn) as connection:
        rows = await connection.fetch(
            "SELECT name, error FROM pg_file_settings WHERE error IS NOT NULL OR NOT applied"
        )
    return [f"{row['name']}: {row['error']}" for row in rows]


async def test_neither_values_nor_statements_reach_its_log(made: Path) -> None:
    secret = "planted-6f1c"
    insert = "INSERT INTO secret VALUES ($1)"
    async with (
        running_postgres(made, durable=False) as server,
        connected(server.dsn) as connection,
    ):
        await connection.execute("DROP TABLE IF EXISTS secret")
        await connection.execute("CREATE TABLE secret (value text PRIMARY KEY)")
        await connection.execute(insert, secret)
        with pytest.raises(asyncpg.UniqueViolationError) as caught:
            await connection.execute(insert, secret)
        assert secret in str(caught.value.detail)  # it would be there to leak
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await connection.execute(f"SELECT broken '{secret}")
    logs = list((server.cluster_dir / "log").iterdir())
    assert logs
    assert all(secret not in log.read_text() for log in logs)


async def test_the_server_gets_none_of_our_environment(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BURSAR_MASTER_KEY", "secret")
    monkeypatch.setenv("PGDATA", "/elsewhere")
    server = EmbeddedPostgres(made, durable=False)
    await server.prepare()
    assert set(server.child().env) <= {"PATH", "TMPDIR", "LD_LIBRARY_PATH", "LC_ALL", "TZ"}


async def test_the_other_programs_work_with_it(made: Path, tmp_path: Path) -> None:
    async with running_postgres(made, durable=False) as server:
        for program, arguments in (
            ("psql", ["--dbname", server.dsn, "--command", "SELECT 1"]),
            ("pg_basebackup", ["--dbname", server.admin_dsn, "--pgdata", str(tmp_path / "copy")]),
        ):
            process = await asyncio.create_subprocess_exec(
                binary(program), *arguments, stdout=asyncio.subprocess.DEVNULL
            )
            assert await asyncio.wait_for(process.wait(), 30) == 0
    with pytest.raises(CommandFailed, match="no pg_nothing"):
        binary("pg_nothing")


def open_parents(folder: Path) -> None:
    """pytest's own folders are 0700."""
    for path in (folder, *folder.parents):
        if path.stat().st_mode & 0o001 == 0:
            path.chmod(path.stat().st_mode | 0o011)


@AS_ROOT
async def test_root_can_run_it_in_either_way_one_after_the_other(tmp_path: Path) -> None:
    open_parents(tmp_path)
    folder = tmp_path / "data"
    owners: list[int] = []
    for number, identity in enumerate((NAMESPACE, nobody(), NAMESPACE)):
        async with running_postgres(folder, durable=False, identity=identity) as server:
            await write_row(server, number)
            assert await read_rows(server) == list(range(number + 1))
            owners.append(server.cluster_dir.stat().st_uid)
            uids = psutil.Process(postmaster(server)).uids()
            assert uids.real == identity.uid
    assert owners == [0, nobody().uid, 0]


@AS_ROOT
async def test_root_prefers_the_namespace_and_needs_no_open_parent(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    async with running_postgres(private / "data", durable=False) as server:
        assert server.child().identity == "namespace"
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700


@AS_ROOT
async def test_root_is_told_when_no_way_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    absent = Identity("54321:54321", 54321, 54321, passes=True)
    monkeypatch.setattr(postgres, "_identities", lambda: [nobody(), absent])
    with pytest.raises(CommandFailed) as caught:
        await EmbeddedPostgres(private / "data").prepare()
    message = str(caught.value)
    assert "does not run as root" in message
    assert "Permission denied" in message
    assert "54321 has no name" in message
    assert "BURSAR_DATABASE_URL" in message
    assert stat.S_IMODE((private / "data").stat().st_mode) == 0o700


AS_ORDINARY_USER = """
import asyncio, os, sys
from dataclasses import replace
from pathlib import Path
import asyncpg
from bursar.service.postgres import running_postgres

async def main(folder):
    assert os.geteuid() != 0
    for _ in range(2):
        async with running_postgres(folder, durable=False) as server:
            assert server.child().identity == "self"
            connection = await asyncpg.connect(server.dsn)
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()

asyncio.run(main(Path(sys.argv[1])))
"""


@AS_ROOT
async def test_an_ordinary_user_runs_it_directly(tmp_path: Path) -> None:
    """The rest of this file shows it too when the tests themselves run as such a user."""
    argv = [sys.executable, "-c", AS_ORDINARY_USER, str(tmp_path / "data")]
    process = await asyncio.create_subprocess_exec(*launch_argv(argv, identity="namespace"))
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_two_servers_beside_each_other(made: Path, tmp_path: Path) -> None:
    async with (
        running_postgres(made, durable=False) as one,
        running_postgres(tmp_path / "two", durable=False) as two,
        Supervisor(tmp_path) as unrelated,
    ):
        assert one.dsn != two.dsn
        await two.clear()  # ends only its own; the supervisor of `two` brings it back
        assert unrelated.pid("postgres") is None
        assert runs(postmaster(one))


async def test_a_server_in_recovery_is_not_ready(tmp_path: Path):
    """Goal: nobody migrates or writes before the recovery has ended."""
    async with running_postgres(tmp_path / "data", durable=False) as server:
        pass
    (server.cluster_dir / "standby.signal").touch(mode=0o600)
    await server.prepare()
    child = replace(server.child(), ready=None)
    async with Supervisor(server.data_dir) as supervisor:
        await supervisor.start(child)

        async def answers() -> bool:
            try:
                return await _ask(server, "SELECT pg_is_in_recovery()") is True
            except (OSError, asyncpg.PostgresError):
                return False

        await until(answers, seconds=60)
        ready = asyncio.create_task(server.wait_ready())
        done, _ = await asyncio.wait({ready}, timeout=1)
        assert not done
        assert await _ask(server, "SELECT pg_promote(true, 30)") is True
        await asyncio.wait_for(ready, 60)


async def _ask(server: EmbeddedPostgres, query: str) -> object:
    connection = await asyncpg.connect(server.admin_dsn, timeout=5)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()
