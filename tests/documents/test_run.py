"""Every command and snippet of README and docs, run against a live service, or checked at least."""

import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from bursar.config import PREFIX
from bursar.service.ports import free_port
from tests.documents.blocks import Block, PageFailed, blocks, run_page, running
from tests.processes import clean_environment

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    path.relative_to(ROOT).as_posix(): blocks(path.read_text("utf-8"))
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
}
# These have a test of their own that runs them.
RUN_ELSEWHERE: Final = {
    "docs/sdk.md": "tests/sdk/test_page.py",
    "docs/mcp.md": "tests/mcp_tools/test_page.py",
}
RUN_HERE: Final = [
    name
    for name, page in PAGES.items()
    if name not in {"README.md", *RUN_ELSEWHERE} and any(block.runs for block in page)
]
# What a block may be. `text` is for people: a drawing, or output.
LANGUAGES: Final = {"sh", "python", "json", "toml", "yaml", "ini", "text"}
# The ports that pages name, with the setting of each; a test takes free ones instead.
PORTS: Final = {8420: "PORT", 8899: "LOCALNET_PORT", 8898: "LIVE_LOCALNET_PORT", 3000: None}
README_SECONDS: Final = 120
_CLEAR_OF_MIDNIGHT: Final = timedelta(minutes=3)


@dataclass(frozen=True)
class Clone:
    """A folder like a fresh clone after `make install`, in which the README was followed."""

    folder: Path
    environment: dict[str, str]
    ports: dict[int, int]

    def rewrite(self, script: str) -> str:
        """Other ports, and no files outside of the folder."""
        script = script.replace("/tmp/", f"{self.folder}/")
        return re.sub(r"\b(8420|8899|8898|3000)\b", lambda m: str(self.ports[int(m[1])]), script)


def _new_clone(folder: Path) -> Clone:
    for name in ("Makefile", "locks", "pyproject.toml", "src"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / ".venv" / ".server").touch()
    ports = {port: free_port("127.0.0.1", 0) for port in PORTS}
    settings = {f"{PREFIX}{name}": str(ports[port]) for port, name in PORTS.items() if name}
    # Soon enough for the recipe of a spend that nobody approves.
    settings |= {f"{PREFIX}LOG_LEVEL": "error", f"{PREFIX}APPROVAL_SECONDS": "8"}
    environment = clean_environment() | settings | {"PYTHONPATH": str(ROOT / "src")}
    return Clone(folder, environment, ports)


@dataclass(frozen=True)
class Followed:
    clone: Clone
    said: dict[int, str]
    seconds: float


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """The README, followed from top to bottom; the service that it starts stays for the others."""
    clone = _new_clone(tmp_path_factory.mktemp("clone"))
    _wait_until_clear_of_midnight()
    started = time.monotonic()
    with running(PAGES["README.md"], clone.folder, clone.environment, clone.rewrite) as said:
        yield Followed(clone, said, time.monotonic() - started)


def _wait_until_clear_of_midnight() -> None:
    """A day's cap starts again at midnight UTC, which would surprise a page half-way."""
    now = datetime.now(UTC)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    if midnight - now < _CLEAR_OF_MIDNIGHT:
        time.sleep((midnight - now).total_seconds())


def test_the_readme_ends_in_a_settled_spend(readme: Followed):
    """Goal: in a fresh clone, after the install, the README takes less than two minutes."""
    assert '"status":"settled"' in "".join(readme.said.values())
    assert readme.seconds < README_SECONDS


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_page_does_what_it_says(readme: Followed, name: str):
    """Goal: whoever copies the blocks one after the other sees what the page shows."""
    clone = readme.clone
    assert run_page(PAGES[name], clone.folder, clone.environment, clone.rewrite)


@pytest.mark.parametrize(("page", "test"), RUN_ELSEWHERE.items())
def test_the_other_pages_have_their_own_test(page: str, test: str):
    assert Path(page).name in (ROOT / test).read_text("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_or_says_why_not(name: str):
    """Goal: nothing is on a page that nobody tried. See tests/documents/blocks.py for the notes."""
    for block in PAGES[name]:
        where = f"{name}, line {block.line}"
        assert block.language in LANGUAGES, f"{where}: give the block one of {sorted(LANGUAGES)}"
        if block.note == "not run":
            assert len(block.detail.split()) > 2, f"{where}: say why it is not run"
        _check_syntax(block, where)


def _check_syntax(block: Block, where: str) -> None:
    if block.note == "output":
        return
    if block.language == "sh":
        checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert checked.returncode == 0, f"{where}: {checked.stderr}"
    elif block.language == "python":
        compile(block.text, where, "exec")
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)


def test_a_page_that_lies_is_found_out(tmp_path: Path):
    """Goal: the runner sees a failure, an error that is not announced, and other output."""
    for page in (
        "```sh\nfalse\n```\n",
        "```sh\ntrue | false | true\n```\n",
        "```sh\necho $UNSET_BY_ALL\n```\n",
        "```sh\necho no\n```\n\n<!-- output -->\n```text\nyes\n```\n",
    ):
        with pytest.raises(PageFailed):
            run_page(blocks(page), tmp_path, clean_environment())
