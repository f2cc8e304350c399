"""The commands and snippets of README and docs, run against a live service."""

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from bursar.client.variables import BASE_URL
from bursar.config import PREFIX
from bursar.service.ports import free_port
from tests.documents.blocks import PageFailed, blocks, run_page, running
from tests.documents.pages import PAGES, ROOT, RUN_HERE
from tests.processes import clean_environment

# The ports that pages name, with the setting of each; a test takes free ones instead.
PORTS: Final = {8420: "PORT", 8899: "LOCALNET_PORT", 8898: "LIVE_LOCALNET_PORT"}
PORTS_OF_PROGRAMS: Final = (3000, 8402)
README_SECONDS: Final = 120
_CLEAR_OF_MIDNIGHT: Final = timedelta(minutes=3)


@dataclass(frozen=True)
class Clone:
    """A folder like a fresh clone after `make install`, in which the README was followed."""

    folder: Path
    environment: dict[str, str]
    ports: dict[int, int]

    def rewrite(self, script: str) -> str:
        """Other ports, no files outside of the folder, and the key that a terminal would show."""
        script = script.replace("/tmp/", f"{self.folder}/")
        script = script.replace("bur_test_…", "$(cat .bursar/first-test.key)")
        named = "|".join(map(str, self.ports))
        return re.sub(rf"\b({named})\b", lambda m: str(self.ports[int(m[1])]), script)


def _new_clone(folder: Path) -> Clone:
    for name in ("Makefile", "locks", "pyproject.toml", "src"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / ".venv" / ".server").touch()
    ports = {port: free_port("127.0.0.1", 0) for port in (*PORTS, *PORTS_OF_PROGRAMS)}
    settings = {f"{PREFIX}{name}": str(ports[port]) for port, name in PORTS.items()}
    # Soon enough for the recipes of a spend that nobody approves, and of one too many.
    settings |= {f"{PREFIX}APPROVAL_SECONDS": "15", f"{PREFIX}PENDING_MAX": "5"}
    settings |= {f"{PREFIX}LOG_LEVEL": "error", BASE_URL: f"http://127.0.0.1:{ports[8420]}"}
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
    assert "status\tsettled" in "".join(readme.said.values())
    assert readme.seconds < README_SECONDS


@pytest.mark.parametrize("name", RUN_HERE[1:])
def test_a_page_does_what_it_says(readme: Followed, name: str):
    """Goal: whoever copies the blocks one after the other sees what the page shows."""
    clone = readme.clone
    # In a terminal that knows what the service was started with, as the README's second one does.
    environment = clone.environment | {f"{PREFIX}LIVE_NETWORK": "localnet"}
    assert run_page(PAGES[name], clone.folder, environment, clone.rewrite)


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
