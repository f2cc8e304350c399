from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.support import Service, new_account


@pytest.fixture
async def console(served: Service, tmp_path: Path) -> Console:
    """With an admin key of an account of its own, given by the two variables."""
    key = await served.key(account=new_account())
    return Console({"BURSAR_API_KEY": key, "BURSAR_BASE_URL": served.url}, tmp_path)
