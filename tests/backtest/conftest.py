"""A tenant of its own for each test."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from tests.support import Service


@pytest.fixture
async def client(service: Service) -> AsyncGenerator[httpx.AsyncClient]:
    async with await service.admin() as made:
        yield made
