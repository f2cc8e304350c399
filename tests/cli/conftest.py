from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.sdk.scripted import ScriptedServer
from tests.support import Service, new_account


@pytest.fixture
async def console(served: Service, tmp_path: Path) -> Console:
    """With an admin key of an account of its own, given by the two variables."""
    key = await served.key(account=new_account())
    return Console({"BURSAR_API_KEY": key, "BURSAR_BASE_URL": served.url}, tmp_path)


@pytest.fixture
async def server() -> AsyncGenerator[ScriptedServer]:
    async with ScriptedServer.running() as made:
        yield made


@pytest.fixture
def scripted(server: ScriptedServer, tmp_path: Path) -> Console:
    """Of a service that answers as a test tells it to."""
    key = "bur_test_00000000000000000000000000000000000000"
    return Console({"BURSAR_API_KEY": key, "BURSAR_BASE_URL": server.url}, tmp_path)
