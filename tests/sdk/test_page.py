"""docs/sdk.md runs, from its first line to its last."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import clean_environment
from tests.sdk.test_surface import ENDPOINTS
from tests.support import Service, new_account
from tests.test_tidy import ROOT

PAGE = (ROOT / "docs/sdk.md").read_text("utf-8")


async def test_the_page_runs(served: Service, tmp_path: Path):
    """Goal: whoever copies the blocks one after the other gets what the page says."""
    blocks = re.findall(r"(?<!-->\n)^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    program = "\n".join(blocks)
    key = await served.key(account=new_account())
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        env=clean_environment() | {"BURSAR_API_KEY": key, "BURSAR_BASE_URL": served.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("settled 3.500000 ")
    assert lines[1] == "daily_cap_exceeded"
    assert any(line.startswith("404 not_found req_") for line in lines)
    assert any(line.startswith("policy.dailyCap ") for line in lines)
    assert lines[-1].startswith("researcher ")


def test_the_page_lists_every_method():
    """Goal: the table is the SDK."""
    listed = {
        f"{resource}.{method}"
        for resource, methods in re.findall(r"^\| `client\.(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
        for method in re.findall(r"`(\w+)`", methods)
    }
    assert listed == set(ENDPOINTS)
