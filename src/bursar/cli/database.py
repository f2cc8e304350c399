"""Commands that work directly on the database, while the service may be running."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from bursar.cli.show import say
from bursar.config import Config, load_config
from bursar.errors import CommandFailed

if TYPE_CHECKING:
    from bursar.db import Database

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Upgrade the database, and restore it.")
_DataDir = Annotated[str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")]
# What a disk says, and never a connection.
_OF_A_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@app.command("migrate")
def migrate_database(
    after_deploy: Annotated[
        bool,
        typer.Option("--after-deploy", help="Also apply what breaks nodes of the older version."),
    ] = False,
    data_dir: _DataDir = None,
) -> None:
    """Apply the migrations of this version, while nodes of the older one go on.

    Run it before the first node is upgraded, and with --after-deploy when the last one is.
    """
    from bursar.migrations.migrate import migrate

    config = load_config(os.environ, data_dir=data_dir)
    done = attempt(lambda: migrate(_dsn(config), after_deploy=after_deploy))
    numbers = ", ".join(str(number) for number in done)
    say(f"Applied: {numbers}." if done else "Nothing to do.")


@app.command()
def restored(data_dir: _DataDir = None) -> None:
    """Say that the database was put back to an older state, so that nothing is paid twice.

    A restore and a snapshot that was put back are noticed without it, once what was paid since is
    final on the chain. Run this before any worker starts if you do not want to wait for that.
    """
    from bursar.settlement.watch_store import forget_timelines

    async def work(db: "Database") -> int:
        async with db.transaction() as tx:
            return await forget_timelines(tx)

    count = on_database(load_config(os.environ, data_dir=data_dir), work)
    say(
        "Nothing is signed until what was forgotten can no longer land (about a minute and a half"
        " on mainnet), and payments from before are looked for on the chain first."
        if count
        else "Nothing was ever paid from this database, so there is nothing to look for."
    )


def on_database(config: Config, work: "Callable[[Database], Awaitable[T]]") -> T:
    """Runs `work` on the configured database, or on the embedded one of the data folder."""
    from bursar.db import Database

    async def session() -> T:
        db = await Database.open(_dsn(config), 2, config.database_timeout_seconds)
        try:
            return await work(db)
        finally:
            await db.close()

    return attempt(session)


def _dsn(config: Config) -> str:
    from bursar.service.postgres import EmbeddedPostgres

    return config.database_url or EmbeddedPostgres(config.data_dir).dsn


def attempt(session: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs it; turns an error of the database, or of a file, into CommandFailed with a sentence
    that says what to do."""
    import asyncpg

    from bursar.db import OUT_OF_REACH

    try:
        return asyncio.run(session())
    except OUT_OF_REACH as problem:
        if isinstance(problem, OSError) and (problem.filename or problem.errno in _OF_A_DISK):
            raise CommandFailed(f"A file cannot be read or written: {problem}") from None
        raise CommandFailed(
            "The database does not answer. Is `bursar serve` running, with the same --data-dir or"
            f" BURSAR_DATABASE_URL? ({type(problem).__name__})"
        ) from None
    except (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.InsufficientPrivilegeError,
    ) as problem:
        raise CommandFailed(
            f"The database refuses: {problem}. Check BURSAR_DATABASE_URL."
        ) from None
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        raise CommandFailed(
            "This database is not one of Bursar's, or not up to date. Check BURSAR_DATABASE_URL,"
            " and run `bursar database migrate`: it brings the database up to date."
        ) from None
