"""Embedded PostgreSQL: the real server, from a wheel, as a child of ours on a Unix socket.

Only the wheel's binaries are used; its Python code is not even imported, because it changes
permissions and system users as it goes. `docs/decisions/0002-embedded-postgresql.md` has the why
and the figures behind the settings.
"""

import asyncio
import os
import pwd
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import asyncpg
import psutil

from bursar.errors import CommandFailed
from bursar.service import launch
from bursar.service.datadir import let_others_pass, open_data_dir
from bursar.service.environment import bare_environment
from bursar.service.programs import (
    MAJOR_VERSION,
    binary,
    run_program,
)
from bursar.service.roster import kill_all
from bursar.service.supervisor import Child, Supervisor, launch_argv

DATABASE: Final = "bursar"
# The service's role owns its database and nothing else. It is not a superuser, so that a hole in
# the service cannot make PostgreSQL read files or run programs.
ROLE: Final = "bursar"
ADMIN_ROLE: Final = "postgres"

# macOS allows 103 bytes for the path of a socket, Linux 107.
_SOCKET_PATH_BYTES: Final = 103
_PORT: Final = 5432  # not a TCP port, only the last part of the socket's name
_SOCKET_NAME: Final = f".s.PGSQL.{_PORT}"
# Paths that can be written unquoted in a DSN, in PostgreSQL's list of socket folders and in
# asyncpg's list of hosts.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9/._@+~-]+")

_INIT_SECONDS: Final = 120.0
# Crash recovery replays about `max_wal_size` at most: seconds, or minutes on a slow disk. Killing
# it would only make it start over.
_READY_SECONDS: Final = 300.0
_READY_POLL_SECONDS: Final = 0.01
_CONNECT_SECONDS: Final = 5.0
# A fast shutdown writes a checkpoint. Past this bound it is killed, and recovers at the next start.
_STOP_SECONDS: Final = 20.0
_PROBE_SECONDS: Final = 10.0

# The server is starting, recovering, full or not there yet: all of these pass.
_NOT_READY: Final = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
)

SETTINGS: Final = """\
# Written by Bursar at every start; changes here are lost. To change a setting for good, connect as
# the superuser and use ALTER SYSTEM, which writes postgresql.auto.conf.

# --- Reachable only through the socket, whose folder only its owner may enter
listen_addresses = ''
port = {port}
unix_socket_directories = '{socket_dir}'
unix_socket_permissions = 0700
max_connections = {max_connections}
# Seen in `ps`.
cluster_name = 'bursar'

# --- What is acknowledged is on disk: these four are never traded for speed
{durability}
synchronous_commit = on
full_page_writes = on
# (Page checksums are on too, from initdb.)

# --- Memory: the whole service rests below 400 MB, and this cache is counted once for all
# connections. The hot rows of thousands of wallets are a few MB; the rest is in the page cache.
shared_buffers = 64MB
# A batch of spends writes far less than this; more was not faster, only resident.
wal_buffers = 2MB
work_mem = 4MB
maintenance_work_mem = 32MB
effective_cache_size = 512MB
# Reads that miss the cache are few; three idle processes that read ahead are not worth their
# memory.
io_method = sync
huge_pages = off

# --- Write-ahead log
# This build knows only pglz, which costs more processor time than its smaller log gives back.
wal_compression = off
# Checkpoints by time rather than by volume: each makes the next write of every page a full one.
checkpoint_timeout = 15min
# Bounds the disk used and the replay after a crash.
max_wal_size = 512MB
min_wal_size = 128MB
# The log as it is backed up, and two base backups at once, which take two each. No logical
# replication: one idle process less.
max_wal_senders = 8
# A backup folder that is away holds back so much log and no more; then its slot is lost.
max_slot_wal_keep_size = 2GB
max_logical_replication_workers = 0

# --- Planner
# Compiling a query costs more than any of our short ones; this build has no JIT anyway.
jit = off
# Solid state disks: a random page costs hardly more than the next one.
random_page_cost = 1.1
max_parallel_workers_per_gather = 0

# --- Vacuum: wallets and usage rows are updated thousands of times a minute. Most of their dead
# versions are cleared where they are met; the rest twice a minute, not at 20 % of a table. Every
# ten seconds cost a spend a fifth of its processor time.
autovacuum_naptime = 30s
autovacuum_max_workers = 2
autovacuum_worker_slots = 4
autovacuum_vacuum_scale_factor = 0.02
autovacuum_analyze_scale_factor = 0.1
autovacuum_vacuum_insert_scale_factor = 0.05
autovacuum_vacuum_cost_delay = 1ms

# --- A client that hangs must not hold locks for ever; how long a statement may take is for each
# session to say
idle_in_transaction_session_timeout = 60s
# After a crash of one of its processes the server ends, and the supervisor starts it again: one
# place that restarts. (PostgreSQL 18.4 restarting by itself can also miss a request to stop.)
restart_after_crash = off
# A client whose process is gone is noticed even while its query runs.
client_connection_check_interval = 5s

# --- One language, one time zone, whatever the machine's
timezone = 'UTC'
log_timezone = 'UTC'
datestyle = 'iso, ymd'
lc_messages = 'C'
lc_monetary = 'C'
lc_numeric = 'C'
lc_time = 'C'
default_text_search_config = 'pg_catalog.simple'

# --- Log: a file a weekday, each overwritten after a week. Neither failed statements nor their
# values are written: they may hold secrets, and the service logs its errors itself.
logging_collector = on
log_directory = 'log'
log_filename = 'postgresql-%u.log'
log_file_mode = 0600
log_rotation_age = 1d
log_rotation_size = 0
log_truncate_on_rotation = on
log_min_messages = log
log_min_error_statement = panic
log_error_verbosity = terse
log_parameter_max_length_on_error = 0
log_checkpoints = off
log_autovacuum_min_duration = -1
"""

# Anybody who can enter the socket's folder can also read the database's files, so a password would
# protect nothing. There is no line for TCP.
ACCESS_RULES: Final = """\
# Written by Bursar at every start; changes here are lost.
local  all          all  trust
local  replication  all  trust
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that PostgreSQL runs as; it refuses root. `spec` is for `launch.py`. `uid` and `gid`
    own its files, as seen from outside. `passes`: this user must be let through our private data
    folder."""

    spec: str
    uid: int
    gid: int
    passes: bool = False


class EmbeddedPostgres:
    """The PostgreSQL of one data folder. Its starter must hold the folder's lock.

    `durable=False` is for tests only: what is acknowledged survives a kill of any process, but may
    be lost when the whole machine stops.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        max_connections: int = 100,
        durable: bool = True,
        identity: Identity | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.cluster_dir = self.data_dir / "postgres"
        self._max_connections = max_connections
        self._durable = durable
        self._identity = identity
        self._start_log = self.data_dir / "postgres-start.log"

    @property
    def dsn(self) -> str:
        """For the service: the database `bursar` as its owner. Known once `prepare` has run."""
        return self.dsn_for(DATABASE)

    @property
    def admin_dsn(self) -> str:
        """For tools: the superuser, who may make databases and take base backups."""
        return self.dsn_for("postgres", ADMIN_ROLE)

    def dsn_for(self, database: str, role: str = ROLE) -> str:
        return f"postgresql://{role}@/{quote(database, safe='')}?host={self.socket_dir}"

    @property
    def socket_dir(self) -> Path:
        """Inside the data folder if the path is short and plain enough for a socket, otherwise
        the folder that `prepare` made elsewhere and wrote down."""
        inside = self.data_dir / "run"
        if _fits_socket(inside):
            return inside
        try:
            return Path(self._elsewhere.read_text("utf-8").strip())
        except FileNotFoundError:
            raise CommandFailed(
                f"The data folder {self.data_dir} has no database yet; bursar serve makes it."
            ) from None

    async def prepare(self) -> None:
        """Make the database if there is none, and write its configuration. Not while it runs."""
        open_data_dir(self.data_dir)
        identity = await self._choose_identity()
        if identity.passes:
            let_others_pass(self.data_dir)
        self._make_socket_dir(identity)
        # Left by an attempt that was cut short; a finished cluster appears only by renaming.
        unfinished = self.data_dir / "postgres.new"
        if unfinished.exists():
            await asyncio.to_thread(shutil.rmtree, unfinished)
        if self.cluster_dir.exists():
            self._check_version()
            await asyncio.to_thread(_give, self.cluster_dir, identity)
        else:
            await self._initialise(unfinished, identity)
        self._write_configuration(self.cluster_dir, identity)

    def child(self) -> Child:
        """What the supervisor keeps alive; `prepare` first."""
        return Child(
            name="postgres",
            argv=[str(binary("postgres")), "-D", str(self.cluster_dir)],
            env=bare_environment(),
            ready=self.wait_ready,
            ready_seconds=_READY_SECONDS,
            # SIGINT is PostgreSQL's "fast" shutdown: it does not wait for its clients.
            stop_signal=signal.SIGINT,
            stop_seconds=_STOP_SECONDS,
            death_signal=signal.SIGINT,
            identity=self._chosen().spec,
            clear=self.clear,
            stderr_file=self._start_log,
        )

    async def wait_ready(self) -> None:
        """Return once the database can be connected and written to, which it cannot while it is
        still being recovered from an archive; the caller bounds the wait."""
        while True:
            try:
                connection = await asyncpg.connect(self.dsn, timeout=_CONNECT_SECONDS)
            except _NOT_READY:
                pass
            else:
                recovering = connection.get_settings().in_hot_standby == "on"
                await connection.close(timeout=_CONNECT_SECONDS)
                if not recovering:
                    return
            await asyncio.sleep(_READY_POLL_SECONDS)

    async def clear(self) -> None:
        """Remove what a killed server left: processes, and the files that would keep the next one
        from starting.

        Backends that outlive a killed postmaster end by themselves, but only after their query,
        and until then no new server may start on the folder.
        """
        await kill_all(self.processes)
        # PostgreSQL takes these files as proof of a running server if *any* process has the id in
        # them. After a reboot or in a container another process soon has it, and so does a killed
        # server that its parent has not reaped. We hold the folder's lock and just saw that no
        # server runs on it, so the files are stale.
        (self.cluster_dir / "postmaster.pid").unlink(missing_ok=True)
        with suppress(CommandFailed):  # there is no folder for the socket yet
            (self.socket_dir / f"{_SOCKET_NAME}.lock").unlink(missing_ok=True)

    def processes(self) -> Iterator[psutil.Process]:
        """Every process of this server, found by its working folder, the cluster's. (Its
        environment is no mark: PostgreSQL overwrites it with its process titles.)"""
        folder = str(self.cluster_dir.resolve())
        for process in psutil.process_iter():
            try:
                if process.name() == "postgres" and process.cwd() == folder:
                    yield process
            except (psutil.Error, OSError):
                continue  # gone, or somebody else's

    @property
    def _elsewhere(self) -> Path:
        return self.data_dir / "run.path"

    def _chosen(self) -> Identity:
        if self._identity is None:
            raise CommandFailed("EmbeddedPostgres.prepare() comes first")
        return self._identity

    async def _choose_identity(self) -> Identity:
        """The first way of not being root that works here."""
        candidates = [self._identity] if self._identity is not None else _identities()
        problems: list[str] = []
        for identity in candidates:
            problem = await self._probe(identity)
            if problem is None:
                self._identity = identity
                return identity
            problems.append(problem)
        tried = "\n".join(f"  - {problem}" for problem in problems)
        raise CommandFailed(
            "PostgreSQL does not run as root, and no way around that works here:\n"
            f"{tried}\n"
            "Run bursar serve as an ordinary user, or keep the data folder and Bursar itself"
            " where other users may pass (--data-dir /var/lib/bursar, say), or set"
            " BURSAR_DATABASE_URL to a PostgreSQL of your own."
        )

    async def _probe(self, identity: Identity) -> str | None:
        if identity.spec == "self":
            return None
        folder = self.data_dir / "postgres.probe"
        mode = stat.S_IMODE(self.data_dir.stat().st_mode)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, identity.uid, identity.gid)
            if identity.passes:
                let_others_pass(self.data_dir)
            command = [launch.CAN_USE, str(folder), str(binary("postgres"))]
            await run_program(launch_argv(command, identity=identity.spec), seconds=_PROBE_SECONDS)
        except (OSError, CommandFailed) as error:
            self.data_dir.chmod(mode)
            return str(error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return None

    def _make_socket_dir(self, identity: Identity) -> None:
        inside = self.data_dir / "run"
        if _fits_socket(inside):
            _private_dir(inside, identity)
            return
        with suppress(FileNotFoundError, CommandFailed):
            _private_dir(Path(self._elsewhere.read_text("utf-8").strip()), identity, ours=False)
            return
        # mkdtemp makes it with mode 0700 and a name that nobody could have taken before.
        made = Path(tempfile.mkdtemp(prefix="bursar-"))
        if not _fits_socket(made):
            made.rmdir()
            raise CommandFailed(
                f"The path {inside} is too long or too unusual for a Unix socket, and so is the"
                " temporary folder. Choose a shorter --data-dir or TMPDIR."
            )
        _private_dir(made, identity)
        self._elsewhere.write_text(f"{made}\n", "utf-8")

    @contextmanager
    def leaving_no_socket_dir(self) -> Generator[None]:
        """Removes the socket's folder at the end if it is outside the data folder; the next start
        makes another."""
        try:
            yield
        finally:
            # Not empty: a server that could not be stopped still uses it.
            with suppress(OSError):
                Path(self._elsewhere.read_text("utf-8").strip()).rmdir()

    def _check_version(self) -> None:
        try:
            version = (self.cluster_dir / "PG_VERSION").read_text("ascii").strip()
        except OSError as error:
            raise CommandFailed(
                f"{self.cluster_dir} is not a PostgreSQL folder that we can read: {error}."
            ) from error
        if version != MAJOR_VERSION:
            raise CommandFailed(
                f"{self.cluster_dir} was made by PostgreSQL {version}, and this Bursar brings"
                f" {MAJOR_VERSION}. Dump it with the older Bursar and restore it with this one."
            )

    async def _initialise(self, folder: Path, identity: Identity) -> None:
        """Makes a cluster with role and database. It gets its final name only when it is complete
        and on disk."""
        _private_dir(folder, identity)
        initdb = [
            *(str(binary("initdb")), "-D", str(folder), "--username", ADMIN_ROLE),
            # Bytewise order, independent of the machine's libraries; letters of all scripts are
            # still known to lower() and the like.
            *("--encoding", "UTF8", "--locale", "C"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
            *("--auth", "trust", "--data-checksums", "--no-instructions"),
            *(() if self._durable else ("--no-sync",)),
        ]
        await run_program(launch_argv(initdb, identity=identity.spec), seconds=_INIT_SECONDS)
        self._write_configuration(folder, identity)
        # Single-user mode needs no server. It takes one statement per line and has no exit code for
        # a failed one, so its output is searched for errors.
        single = [str(binary("postgres")), "--single", "-D", str(folder), "postgres"]
        statements = (
            f"CREATE ROLE {ROLE} LOGIN\n"
            f"CREATE DATABASE {DATABASE} OWNER {ROLE} STRATEGY file_copy\n"
        )
        await run_program(
            launch_argv(single, identity=identity.spec),
            seconds=_INIT_SECONDS,
            stdin=statements.encode(),
            faulty=b"ERROR:",
        )
        _rename(folder, self.cluster_dir)

    def _write_configuration(self, folder: Path, identity: Identity) -> None:
        settings = SETTINGS.format(
            port=_PORT,
            socket_dir=self.socket_dir,
            max_connections=self._max_connections,
            durability="fsync = on" if self._durable else "fsync = off\nbursar.may_forget = on",
        )
        _write_file(folder / "postgresql.conf", settings, identity)
        _write_file(folder / "pg_hba.conf", ACCESS_RULES, identity)


@asynccontextmanager
async def running_postgres(
    folder: Path,
    *,
    max_connections: int = 100,
    durable: bool = True,
    identity: Identity | None = None,
) -> AsyncGenerator[EmbeddedPostgres]:
    """A server for the length of the block, restarted if it dies: for tests and benchmarks."""
    server = EmbeddedPostgres(
        folder, max_connections=max_connections, durable=durable, identity=identity
    )
    open_data_dir(server.data_dir)
    async with Supervisor(server.data_dir) as supervisor:
        await server.clear()
        await server.prepare()
        await supervisor.start(server.child())
        yield server


def _identities() -> list[Identity]:
    """Ways to run PostgreSQL, the best first."""
    if os.geteuid() != 0:
        return [Identity("self", os.geteuid(), os.getegid())]
    # A user namespace comes first: the files stay root's, and no other account is involved.
    found = [Identity("namespace", 0, 0)]
    # An account made for Bursar is better than `nobody`, which other services may share.
    for name in ("bursar", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            spec = f"{user.pw_uid}:{user.pw_gid}"
            found.append(Identity(spec, user.pw_uid, user.pw_gid, passes=True))
    return found


def _fits_socket(folder: Path) -> bool:
    path = os.fsencode(folder / _SOCKET_NAME)
    return len(path) <= _SOCKET_PATH_BYTES and _PLAIN_PATH.fullmatch(str(folder)) is not None


def _private_dir(folder: Path, identity: Identity, *, ours: bool = True) -> None:
    """Ensure that `folder` is a real folder, owned by the identity and closed to everyone else.

    `ours`: its parent is a folder that only we can write to, so we made whatever is there.
    Elsewhere somebody else may have taken the name, so its owner must be right already.
    """
    if ours:
        folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    trusted = ours or status.st_uid in (os.geteuid(), identity.uid)
    if not stat.S_ISDIR(status.st_mode) or not trusted:
        raise CommandFailed(f"{folder} is not a folder of ours; remove it and start again.")
    folder.chmod(0o700)
    if status.st_uid != identity.uid:
        os.chown(folder, identity.uid, identity.gid)


def _give(folder: Path, identity: Identity) -> None:
    """Make `identity` the owner of all of `folder`, if it is not yet: root may have chosen another
    identity the last time."""
    if folder.stat().st_uid == identity.uid:
        return
    if os.geteuid() != 0:
        raise CommandFailed(
            f"{folder} belongs to user id {folder.stat().st_uid}. Run as that user or as root."
        )
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(path) / name, identity.uid, identity.gid, follow_symlinks=False)
    # The top folder last: its owner tells the next start that the rest is done.
    os.chown(folder, identity.uid, identity.gid)


def _write_file(path: Path, content: str, identity: Identity) -> None:
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    # O_EXCL does not follow links, which matters because a less trusted user may own the folder.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        if os.geteuid() != identity.uid:
            os.fchown(descriptor, identity.uid, identity.gid)
        os.fsync(descriptor)
    new.replace(path)


def _rename(folder: Path, final: Path) -> None:
    """Renames and syncs the parent folder, so that the new name survives a power cut."""
    folder.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
