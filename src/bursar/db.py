"""The pool, and the ways to use it: `connection` for single statements, `transact` for changes, and
`transaction` for what is not worth doing again."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from bursar.errors import CommandFailed, ConfigError
from bursar.pool import Pool

Row = asyncpg.Record
if TYPE_CHECKING:
    Tx = asyncpg.Connection[asyncpg.Record]
else:  # the class is generic only in its stubs
    Tx = asyncpg.Connection

T = TypeVar("T")

# How often `transact` does it again. More than a few in a row means something is wrong that
# patience does not cure.
_TRIES: Final = 5

# Each of these rolled everything back, so doing it again is safe.
ROLLED_BACK: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    # A migration changed what a prepared statement returns; the driver has forgotten it by now.
    asyncpg.InvalidCachedStatementError,
)
# The same, and what a statement by itself raises where the database's defaults are not what it
# needs: then it needs a transaction that says what it wants.
NOT_ALONE: Final = (*ROLLED_BACK, asyncpg.InvalidTransactionStateError)

# One of so many connections is for statements that may take long.
_REPORTS_SHARE: Final = 4

# How often a process that starts looks for a database that is not there yet.
_OPEN_AGAIN_SECONDS: Final = 0.2

# Errors that mean "the database did not do it, or we cannot know": answered 503, never 500.
OUT_OF_REACH: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    # A connection that is used between the server's last word and its end.
    asyncpg.InternalClientError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.LockNotAvailableError,
    asyncpg.PostgresSystemError,
)


class ValueRefused(Exception):
    """A value that the driver cannot write, such as a number beyond 64 bits. The driver says so by
    an error of the same family as its lost connections, but it is the value that is wrong."""


# Of these, what says that the server at the other end is gone, or cannot be reached; the last is
# all that is said of a connection that is used once more after it broke.
_LOST: Final = (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)

# Where several hosts are named, one that does not even refuse (its machine is off, its cable cut)
# is given up for the next after this long.
_HOST_SECONDS: Final = 2.0
# What a host may be like that is not the primary, or not any more.
_NOT_THERE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    # A standby.
    asyncpg.InternalClientError,
)


class Hosts:
    """The servers that an address names, of which one is the primary; the others follow it.

    `postgresql://user:password@one:5432,two:5432,three:5432/bursar`. A connection only ever leads
    to a server that takes writes, so that after a failover it leads to the new primary.
    """

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        login, at, hosts = parts.netloc.rpartition("@")
        # Each with the address of its own.
        self._addresses = [
            parts._replace(netloc=f"{login}{at}{host}").geturl() if host else dsn
            for host in hosts.split(",")
        ]
        self._primary = 0

    async def connect(self, *, timeout: float = 10.0, **options: Any) -> "asyncpg.Connection[Row]":
        """Starts with the one that was the primary the last time."""
        count = len(self._addresses)
        problem: Exception = OSError("no host")
        for number in (*range(self._primary, count), *range(self._primary)):
            try:
                connection: asyncpg.Connection[Row] = await asyncpg.connect(
                    self._addresses[number],
                    timeout=timeout if count == 1 else min(timeout, _HOST_SECONDS),
                    target_session_attrs=SessionAttribute.read_write,
                    **options,
                )
            except _NOT_THERE as failure:
                problem = failure
            else:
                self._primary = number
                return connection
        raise problem


# What a commit promises must not hang on a default of the role, the database or the server. It is
# said in the transaction itself, in the round trip that begins it, because a pooler may lead each
# transaction to another session.
_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = {commit}"
)
_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Promises more than `on`: who chose it as the default keeps it.
_STRONGER: Final = "remote_apply"


@asynccontextmanager
async def _in_transaction(connection: Tx, begin: str) -> AsyncGenerator[None]:
    await connection.execute(begin)
    try:
        yield
    except BaseException:
        # Of a connection that broke nothing can be asked, and the server rolls back by itself.
        with suppress(*_LOST, asyncpg.InternalClientError):
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")


def _is_refused(problem: BaseException) -> bool:
    return isinstance(problem, asyncpg.InterfaceError) and isinstance(problem, ValueError)


class _Using:
    """A connection of the pool while it is used. A class, because every spend goes through it, and
    a generator would take several times as long."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def __aenter__(self) -> Tx:
        try:
            self._connection = await self._pool.acquire()
        except _LOST as problem:
            if _is_refused(problem):
                raise ValueRefused(str(problem)) from problem
            self._pool.expire()
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: object
    ) -> None:
        if problem is None:
            self._pool.release(self._connection, is_sound=True)
            return
        is_refused = _is_refused(problem)
        is_lost = isinstance(problem, _LOST) and not is_refused
        if is_lost:
            # Most likely the others lead to the same server that is no more; without this each
            # would be found out by a time-out of its own.
            self._pool.expire()
        # What is no Exception left its statement in the middle.
        is_broken = not isinstance(problem, Exception) or is_lost
        is_sound = not is_broken and not isinstance(problem, asyncpg.InternalClientError)
        self._pool.release(self._connection, is_sound=is_sound)
        if is_refused:
            raise ValueRefused(str(problem)) from problem


class Database:
    def __init__(self, pool: Pool, timeout_seconds: float, begin: str) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        self._reports = asyncio.Semaphore(max(1, pool.most // _REPORTS_SHARE))
        self._begin = begin

    @classmethod
    async def open(cls, dsn: str, connections: int, timeout_seconds: float) -> Self:
        connect = partial(
            Hosts(dsn).connect,
            timeout=timeout_seconds,
            command_timeout=timeout_seconds,
            server_settings={
                "application_name": "bursar",
                "timezone": "UTC",
                # Statements wait for rows that others hold only so long: a little less than
                # for an answer, so that the server says which it was.
                "lock_timeout": f"{int(timeout_seconds * 900)}",
                "idle_in_transaction_session_timeout": f"{int(timeout_seconds * 2000)}",
                # A machine that vanished holds the locks of its sessions until the server
                # notices: within some ten seconds, not after two hours.
                "tcp_keepalives_idle": "5",
                "tcp_keepalives_interval": "2",
                "tcp_keepalives_count": "3",
                "tcp_user_timeout": f"{int(timeout_seconds * 1000)}",
            },
        )
        pool = Pool(connect, connections, timeout_seconds)
        try:
            first = await pool.acquire()
        except ValueError:
            # The problem is not quoted: it holds pieces of the address, and so of the password.
            raise ConfigError(
                "BURSAR_DATABASE_URL", "is no address of a PostgreSQL; is its password quoted?"
            ) from None
        try:
            default = await first.fetchval("SELECT current_setting('synchronous_commit')")
        except BaseException:
            pool.release(first, is_sound=False)
            raise
        pool.release(first, is_sound=True)
        commit = _STRONGER if default == _STRONGER else "on"
        return cls(pool, timeout_seconds, _BEGIN.format(commit=commit))

    @classmethod
    async def open_or_fail(cls, dsn: str, connections: int, timeout_seconds: float) -> Self:
        """As `open`, for a process that is nothing without it: waits for one that is starting or
        changing hands, then ends in one clear sentence."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while True:
            try:
                db = await cls.open(dsn, connections, timeout_seconds)
                await _refuse_forgetful(db)
                return db
            except (*OUT_OF_REACH, asyncpg.PostgresError) as problem:
                passes = isinstance(problem, OUT_OF_REACH)
                if not passes or asyncio.get_running_loop().time() > deadline:
                    raise CommandFailed(
                        "The database of BURSAR_DATABASE_URL lets nobody in"
                        f" ({type(problem).__name__})."
                    ) from None
            await asyncio.sleep(_OPEN_AGAIN_SECONDS)

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), self._timeout_seconds)
        except TimeoutError:
            self._pool.terminate()

    def connection(self) -> AbstractAsyncContextManager[Tx]:
        """A connection outside any transaction: each statement sees what was committed before."""
        return _Using(self._pool)

    @asynccontextmanager
    async def report(self) -> AsyncGenerator[Tx]:
        """As `connection`, for what may take long: however many ask, most connections stay free."""
        async with asyncio.timeout(self._timeout_seconds):
            await self._reports.acquire()
        try:
            async with self.connection() as connection:
                yield connection
        finally:
            self._reports.release()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Tx]:
        async with self.connection() as connection, _in_transaction(connection, self._begin):
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[Tx]:
        """A connection whose statements all see the same moment, and change nothing."""
        async with self.connection() as connection, _in_transaction(connection, _SNAPSHOT):
            yield connection

    async def alone(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Runs `work`, whose statements are transactions by themselves and call `durably()` (in the
        schema): without the round trips that begin and commit one. As a transaction after all where
        one lost a deadlock, say, or where the database's defaults are not what it needs: those
        before it are then done twice."""
        try:
            async with self.connection() as tx:
                return await work(tx)
        except NOT_ALONE:
            return await self.transact(work)

    async def transact(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Runs `work` in one transaction; again from the start if it lost a deadlock, say."""
        for attempt in range(1, _TRIES + 1):
            try:
                async with self.transaction() as tx:
                    return await work(tx)
            except ROLLED_BACK:
                if attempt == _TRIES:
                    raise
        raise AssertionError("unreachable")


async def _refuse_forgetful(db: Database) -> None:
    """A server that does not write to its disk loses payments that were acknowledged. The mark is
    set by the servers of tests, which have nothing to lose."""
    async with db.connection() as tx:
        safe: bool = await tx.fetchval(
            "SELECT current_setting('fsync') = 'on'"
            " OR coalesce(current_setting('bursar.may_forget', true), '') = 'on'"
        )
    if not safe:
        await db.close()
        raise CommandFailed(
            "The database of BURSAR_DATABASE_URL has fsync = off: a power cut would lose payments"
            " that were acknowledged. Set fsync = on in its postgresql.conf."
        )


async def moment(tx: Tx) -> datetime:
    """The database's clock, which every process shares."""
    return await tx.fetchval("SELECT moment()")


# Rows as PostgreSQL writes them: joining text costs a tenth of handing over a list, whose every
# element the driver looks at, and to read an array of rows costs PostgreSQL a quarter to a half of
# as many arrays as a row has fields.


def records(rows: Iterable[str]) -> str:
    """An array of rows, for `$1::text::some_type[]`. Each is given as its fields, with commas
    between them: null is empty, numbers, ids and names of ours stand as they are, any other text is
    `quoted`."""
    joined = ')","('.join(rows)
    return f'{{"({joined})"}}' if joined else "{}"


def quoted(value: str | None) -> str:
    """Any text as a field of `records`: quoted for the row, and that once more for the array."""
    if value is None:
        return ""
    if '"' in value or "\\" in value:
        value = value.replace("\\", "\\" * 4).replace('"', '\\"\\"')
    return f'\\"{value}\\"'
