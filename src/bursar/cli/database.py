"""Commands that work on the database itself, beside the running service."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from bursar.config import Config
from bursar.errors import CommandFailed

if TYPE_CHECKING:
    from bursar.db import Database

T = TypeVar("T")


def on_database(config: Config, work: "Callable[[Database], Awaitable[T]]") -> T:
    """Runs `work` on the configured database, or on the data folder's own."""
    import asyncpg

    from bursar.db import OUT_OF_REACH, Database
    from bursar.service.postgres import EmbeddedPostgres

    async def session() -> T:
        dsn = config.database_url or EmbeddedPostgres(config.data_dir).dsn
        db = await Database.open(dsn, 2, config.database_timeout_seconds)
        try:
            return await work(db)
        finally:
            await db.close()

    try:
        return asyncio.run(session())
    except OUT_OF_REACH as problem:
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
            " and start `bursar serve` once: it brings the database up to date."
        ) from None
