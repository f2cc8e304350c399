"""The docs keep up with the code: a name that is not explained fails here."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bursar.access.limits import Category
from bursar.api.event_examples import example, view
from bursar.config import load_defaults, variable
from bursar.errors import ErrorCode
from bursar.event.catalog import EventType
from bursar.policy.engine import RejectCode
from tests.documents import pages
from tests.documents.blocks import Block

ROOT: Final = Path(__file__).parents[1]
# What a block of code may be. `text` is for people: a drawing, or output.
LANGUAGES: Final = {"sh", "python", "json", "toml", "yaml", "ini", "text", "ts"}
DOCS: Final = ROOT / "docs"
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def _row(page: str, first_cell: str) -> list[str]:
    """The cells of the one table row that begins with `first_cell`."""
    rows = [line for line in page.splitlines() if line.startswith(f"| {first_cell} |")]
    assert len(rows) == 1, f"{first_cell}: {len(rows)} rows, not one"
    return [cell.strip() for cell in rows[0].strip("|").split(" | ")]


def _first_cells(page: str, pattern: str) -> set[str]:
    return set(re.findall(rf"^\| `({pattern})` \|", page, re.MULTILINE))


@pytest.mark.parametrize("name", load_defaults())
def test_every_setting_has_a_row_with_its_default(name: str):
    """Goal: docs/settings.md says what each variable does and what it is if nobody sets it."""
    cells = _row(_page("settings.md"), f"`{variable(name)}`")
    default = str(load_defaults()[name])
    assert cells[1] == (f"`{default}`" if default else "empty")
    assert len(cells[2]) > 10


def test_no_setting_is_made_up():
    """Goal: the page does not promise a variable that nobody reads."""
    known = {variable(name) for name in load_defaults()}
    assert _first_cells(_page("settings.md"), "BURSAR_[A-Z_]+") == known
    mentioned = {name for page in PAGES for name in re.findall(r"BURSAR_[A-Z_]+", page.read_text())}
    # These are the callers' side: the SDK and commands that talk to a service read them.
    callers = {"BURSAR_API_KEY", "BURSAR_BASE_URL", "BURSAR_PROFILE", "BURSAR_PROFILES_FILE"}
    assert mentioned - known == callers


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.value)
def test_every_error_code_has_a_paragraph(code: ErrorCode):
    """Goal: docs/errors.md says for each code its status, whether to retry, and what to do."""
    page = _page("errors.md")
    match = re.search(rf"^### `{code.value}`\n\n(.+?)(?=\n\n#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading ### `{code.value}`"
    start = f"{code.status}, retryable." if code.retryable else f"{code.status}."
    assert match[1].startswith(start)
    assert len(match[1].split()) > 12


def test_no_error_code_is_made_up():
    """Goal: the headings are the codes, in the order of the code."""
    headings = re.findall(r"^### `(\w+)`$", _page("errors.md"), re.MULTILINE)
    assert headings == [code.value for code in ErrorCode]


def test_the_reject_codes_are_the_engines_in_its_order():
    """Goal: the order of the table is the order of evaluation."""
    table = _page("errors.md").partition("## Reject codes")[2]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [c.value for c in RejectCode]


@pytest.mark.parametrize("event", list(EventType), ids=lambda event: event.value)
def test_every_event_has_a_row(event: EventType):
    """Goal: docs/events.md says when each fires and what it carries."""
    assert all(_row(_page("events.md"), f"`{event.value}`"))


@pytest.mark.parametrize("event", list(EventType), ids=lambda event: event.value)
def test_every_event_has_its_example(event: EventType):
    """Goal: the page shows each event in full, as the catalogue has it, and it is what the code
    sends."""
    made = msgspec.json.encode(example(event))
    pretty = msgspec.json.format(made, indent=2).decode()
    assert f"### `{event.value}`\n\n{event.doc}\n\n```json\n{pretty}\n```\n" in _page("events.md")
    data = msgspec.json.encode(msgspec.json.decode(made)["data"])
    assert msgspec.json.encode(msgspec.json.decode(data, type=view(event))) == data


def test_no_event_is_made_up():
    """Goal: the page's rows are the catalog."""
    assert _first_cells(_page("events.md"), r"[a-z_.]+") == {event.value for event in EventType}


@pytest.mark.parametrize("category", list(Category), ids=lambda category: category.label)
def test_every_rate_limit_has_a_row(category: Category):
    """Goal: docs/rate-limits.md shows the numbers that are enforced."""
    cells = _row(_page("rate-limits.md"), category.label)
    assert cells[1:3] == [str(category.live), str(category.test)]


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "tests/README.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(page: Path):
    """Goal: a relative link names a file that exists and a heading that it has."""
    assert [target for target in _links(page) if not _leads_somewhere(page, target)] == []


def test_files_that_are_named_exist():
    """Goal: a file that a page or comment names, such as `ledger/lock.py`, exists."""
    texts = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "tests/README.md"]
    texts += [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.sql")]
    homes = (ROOT / "src/bursar", ROOT / "src", ROOT, ROOT / "tests")
    named = {
        (text.relative_to(ROOT).as_posix(), name)
        for text in texts
        for name in re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+\.(?:py|sql))`", text.read_text("utf-8"))
    }
    assert len(named) > 100
    assert {pair for pair in named if not any((home / pair[1]).exists() for home in homes)} == set()


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_relative_to(ROOT) or not file.exists():
        return False
    return not anchor or file.suffix != ".md" or anchor in _anchors(file)


def _links(page: Path) -> Iterator[str]:
    text = _FENCE.sub("", page.read_text("utf-8"))
    for match in _LINK.finditer(text):
        target = match[1] or match[2]
        if not re.match(r"[a-z][a-z0-9+.-]*:", target):
            yield target


def _anchors(file: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", file.read_text("utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_table_of_contents():
    """Goal: whoever opens docs/ finds every page from docs/README.md."""
    listed = {target.partition("#")[0] for target in _links(DOCS / "README.md")}
    assert {page.name for page in DOCS.glob("*.md")} - listed == {"README.md"}


def test_every_metric_has_a_row():
    """Goal: docs/monitoring.md lists what /metrics shows, and nothing else."""
    names = set(re.findall(r'"(bursar_\w+)"', (ROOT / "src/bursar/metrics.py").read_text("utf-8")))
    assert _first_cells(_page("monitoring.md"), "bursar_[a-z_]+") == names


@pytest.mark.parametrize(
    ("shown", "measured"),
    [
        (r"([\d,]+) spends decided", "authorise, 64 connections, 1,000 agents (reference: TPC-B)"),
        (
            r"([\d,]+) payments settled",
            "settlements (reference: localnet payments, 16 in flight)",
        ),
        (r"([\d,]+) MB of memory at rest", "memory at rest, all processes (PSS)"),
    ],
)
def test_the_readmes_figures_are_those_measured(shown: str, measured: str):
    """Goal: whoever measures anew corrects the README, too."""
    figure = re.search(shown, (ROOT / "README.md").read_text("utf-8"))
    assert figure is not None
    results = json.loads((ROOT / "bench/results.json").read_text("utf-8"))
    (value,) = (row["value"] for row in results if row["name"] == measured)
    assert float(figure[1].replace(",", "")) == pytest.approx(value, rel=0.1)


# Blocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pages.PAGES)
def test_every_block_is_run_or_says_why_not(name: str):
    """Goal: nothing is on a page that nobody tried, or at least read for typing errors."""
    run = name in pages.RUN_HERE or name in pages.RUN_ELSEWHERE
    for block in pages.PAGES[name]:
        where = f"{name}, line {block.line}"
        assert block.language in LANGUAGES, f"{where}: give the block one of {sorted(LANGUAGES)}"
        assert run or not block.runs, (
            f"{where}: write `<!-- not run: why -->` above the block (tests/documents/blocks.py has"
            " the other notes), or have the page run, see tests/documents/pages.py"
        )
        if block.note == "not run":
            assert len(block.detail.split()) > 2, f"{where}: say why it is not run"
        _check_syntax(block, where)


def _check_syntax(block: Block, where: str) -> None:
    if block.note == "output":
        return
    if block.language == "sh":
        checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert checked.returncode == 0, f"{where}: {checked.stderr}"
        comment = block.runs and re.search(r"^\s*#|\s#\s", block.text, re.MULTILINE)
        assert not comment, f"{where}: zsh, as people type into it, takes no comments"
    elif block.language == "python":
        compile(block.text, where, "exec")
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)


@pytest.mark.parametrize(("page", "test"), pages.RUN_ELSEWHERE.items())
def test_the_other_pages_have_their_own_test(page: str, test: str):
    assert Path(page).name in (ROOT / test).read_text("utf-8")


def test_what_is_installed_is_ours():
    """Goal: no page and no message of the program sends a reader to the package `bursar` of the
    package index, which is another product: ours is called `bursar-wallet` there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == "bursar-wallet"
    texts = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "pyproject.toml"]
    texts += [path for folder in ("src", "deploy", "tests") for path in (ROOT / folder).rglob("*")]
    readable = {".md", ".py", ".toml", ".html", ".js", ".service", ".yaml", ".sh", ""}
    another = re.compile(r"install [\"']?bursar\b(?!-wallet)|\bbursar\[")
    wrong = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in texts
        if path.is_file() and path.suffix in readable and "node_modules" not in path.parts
        for found in another.findall(path.read_text("utf-8"))
    ]
    assert wrong == []
