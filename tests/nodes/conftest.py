from collections.abc import AsyncGenerator

import pytest

from tests.nodes.redis_server import RedisServer


@pytest.fixture(scope="session")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[RedisServer]:
    """One for all tests of this folder, who bring keys of their own and leave it running."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    await server.start()
    yield server
    await server.stop()
