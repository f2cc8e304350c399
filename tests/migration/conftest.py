"""Databases for migrations."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable

import asyncpg
import pytest

from bursar.service.postgres import ROLE, EmbeddedPostgres

_numbers = itertools.count(1)
# Makes an empty database and says its address.
NewDatabase = Callable[[], Awaitable[str]]


@pytest.fixture(scope="module")
async def new_database(postgres: EmbeddedPostgres) -> AsyncGenerator[NewDatabase]:
    """Makes empty databases, and drops them in the end."""
    made: list[str] = []

    async def create() -> str:
        name = f"migration_{next(_numbers)}"
        await _admin(postgres, f"CREATE DATABASE {name} OWNER {ROLE}")
        made.append(name)
        return postgres.dsn_for(name)

    yield create
    for name in made:
        await _admin(postgres, f"DROP DATABASE {name} WITH (FORCE)")


async def _admin(postgres: EmbeddedPostgres, statement: str) -> None:
    connection = await asyncpg.connect(postgres.admin_dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
