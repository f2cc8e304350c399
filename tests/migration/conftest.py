"""Databases for migrations."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from bursar.service.postgres import ROLE, EmbeddedPostgres
from tests.databases import administer

_numbers = itertools.count(1)
# Makes an empty database and says its address.
NewDatabase = Callable[[], Awaitable[str]]


@pytest.fixture(scope="module")
async def new_database(postgres: EmbeddedPostgres) -> AsyncGenerator[NewDatabase]:
    """Makes empty databases, and drops them in the end."""
    made: list[str] = []

    async def create() -> str:
        name = f"migration_{next(_numbers)}"
        await administer(postgres, f"CREATE DATABASE {name} OWNER {ROLE}")
        made.append(name)
        return postgres.dsn_for(name)

    yield create
    for name in made:
        await administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")
