"""One world for all simulations that do not break it."""

from collections.abc import AsyncGenerator

import pytest

from tests.simulation.world import World, make_world


@pytest.fixture(scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    async with make_world(tmp_path_factory.mktemp("world")) as made:
        yield made
