"""docs/cli.md: the day at the desk runs, the tables are the code."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from bursar.cli.exits import ExitCode
from tests.cli.console import Console
from tests.cli.test_commands import ELSEWHERE, paths
from tests.test_tidy import ROOT

PAGE = (ROOT / "docs/cli.md").read_text("utf-8")


async def test_the_day_at_the_desk_runs(console: Console, tmp_path: Path):
    """Goal: whoever copies the block gets what it says, without an error."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (day,) = [block for block in blocks if "agents create" in block]
    script = tmp_path / "day.sh"
    script.write_text(f'set -e\nbursar() {{ {sys.executable} -m bursar.cli.main "$@"; }}\n{day}')
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", str(script)],
        env=console.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "status\tsettled" in done.stdout
    assert "exit code 4: it waits for a person" in done.stdout
    assert "is terminated" in done.stdout


def test_the_exit_codes_are_the_codes():
    rows = re.findall(r"^\| `(\d+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [(str(code.value), code.doc) for code in ExitCode]


def test_every_command_is_on_the_page():
    tops = {path[0] for path in paths()} | ELSEWHERE
    named = set(re.findall(r"`([a-z]+)`", PAGE)) | set(re.findall(r"bursar ([a-z]+)", PAGE))
    assert tops - named == set()
    for group, row in re.findall(r"^\| `([a-z]+)` \| (`.+) \|$", PAGE, re.MULTILINE):
        below = {path[1] for path in paths() if path[0] == group}
        assert {name for name in below if f"`{name}`" not in row} == set(), group
