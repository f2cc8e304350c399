"""Rules about the source itself that a machine can check; `docs/architecture.md` says why."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from bursar import advisory

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src/bursar"

# Every folder of the package, the lowest first. A file imports its own folder and those below; the
# kernel, which has no folder, is at the bottom. docs/architecture.md says what lives in each.
ORDER: Final = (
    "", "form", "outbound", "migrations", "chain", "trail", "heartbeat", "custody", "policy",
    "budget", "cost", "event", "wallet", "ledger", "stop", "access", "recipient", "withdrawal",
    "spend", "agent", "backtest", "webhook", "settlement", "purchase", "api", "http", "mcp",
    "console", "service", "cli",
)  # fmt: skip
# Beside the house: the SDK knows the kernel and nothing else.
ASIDE: Final = "client"
# Imports that run up, each with its reason. Never more than five.
EXCEPTIONS: Final[dict[tuple[str, str], str]] = {}

# Each concept's queries: `store.py`, or `payment_store.py` where a folder has several concepts.
STORES: Final = re.compile(r"(.*/)?((\w+_)?store|stats|totals|feed|lock)\.py")
QUERIES_IN: Final = ("db.py", "sql.py", "migrate.py")
# The audit shares nothing with what it checks, so it has queries of its own.
ASKS_ITSELF: Final = ("ledger/audit.py", "ledger/meter_questions.py")
MONEY: Final = ("money.py", "ledger/", "spend/", "policy/", "wallet/")
# Waiting is measured in seconds, and touches no amount.
NOT_MONEY: Final = ("spend/wait.py",)
MOST_LINES: Final = 600
MOST_COLUMNS: Final = 100

_SQL = re.compile(
    r"\s*(SELECT\s|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|WITH\s+\w+\s+AS|SET\s+LOCAL"
    r"|TRUNCATE\s|LOCK\s+TABLE|NOTIFY\s|LISTEN\s)"
)
_ADVISORY = re.compile(r"pg_(?:try_)?advisory_(?:xact_)?(?:un)?lock\w*\(([^,)]+)")
_QUERY_CALLS = {"execute", "executemany", "fetch", "fetchrow", "fetchval", "cursor"}
_WALL_CLOCK = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"},
    "datetime": {"now", "utcnow", "today", "fromtimestamp"},
    "date": {"today", "fromtimestamp"},
}


@cache
def _files() -> tuple[str, ...]:
    """Python files of the package, as `spend/store.py`."""
    found = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
    return tuple(sorted(found))


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text("utf-8"), file)


def _folder(file: str) -> str:
    # `bursar.x402` is a door of the SDK, at the top because callers import it by that name.
    if file == "x402.py":
        return ASIDE
    return file.partition("/")[0] if "/" in file else ""


# Folders -----------------------------------------------------------------------------------------


def test_every_folder_has_its_place():
    """Goal: the tree is the table of contents; a new folder is placed on purpose."""
    folders = {_folder(file) for file in _files()}
    assert folders == {*ORDER, ASIDE}
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    assert [name for name in ORDER[1:] if f"`{name}/`" not in page] == []
    drawn = (ROOT / "docs/img/house.svg").read_text("utf-8")
    assert [name for name in ORDER[1:] if f">{name}</text>" not in drawn] == []


def test_folders_hold_no_code_in_their_init():
    """Goal: importing a folder runs nothing, so a command loads only what it names."""
    for file in _files():
        if file.endswith("/__init__.py"):
            body = _tree(file).body
            docstring = len(body) == 1 and isinstance(body[0], ast.Expr)
            assert not body or docstring, file


def test_imports_go_down():
    """Goal: a file can be read knowing only what lies below it."""
    wrong = {
        (file, imported)
        for file in _files()
        for imported in _imports(file)
        if not _lies_below(_folder(imported), _folder(file))
    }
    assert wrong == set(EXCEPTIONS)
    assert len(EXCEPTIONS) <= 5
    assert len(_imports("api/routes.py")) > 5, "the test sees imports at all"


def _lies_below(imported: str, folder: str) -> bool:
    if folder == ASIDE:
        return imported in (ASIDE, "")
    if imported == ASIDE:
        # The SDK is for callers: the command line and `bursar mcp` are two of them.
        return folder in ("cli", "mcp")
    return ORDER.index(imported) <= ORDER.index(folder)


@pytest.mark.parametrize("package", ["bursar_localnet", "bursar_shop"])
def test_what_stands_beside_knows_nothing_of_bursar(package: str):
    """Goal: the node in a box and the shop can be used, read and replaced without the service."""
    for path in (ROOT / "src" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not [name for name in names if name.split(".")[0] == "bursar"], path


def test_json_names_stay_in_views():
    """Goal: how a concept shows itself is one file of its folder; the rest speaks Python."""
    shown = ("client/", "console/", "mcp/", "api/", "http/")
    # An attempt is stored as the API shows it; the other is a file of PostgreSQL's.
    stored = ("webhook/model.py", "service/restore.py")
    wrong = [
        f"{file}:{node.lineno}"
        for file in _files()
        if not file.endswith("/view.py") and not file.startswith((*shown, *stored))
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.ClassDef) and any(word.arg == "rename" for word in node.keywords)
    ]
    assert wrong == []


def test_the_source_asserts_nothing():
    """Goal: `python -O` drops assert; what must hold is held by `check()` and `present()`."""
    wrong = [
        f"{file}:{node.lineno}"
        for file in _files()
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Assert)
    ]
    assert wrong == []


def test_imports_make_no_circle():
    """Goal: no file needs itself, however far around."""
    finished: set[str] = set()

    def visit(file: str, path: tuple[str, ...]) -> None:
        assert file not in path, " -> ".join((*path[path.index(file) :], file))
        if file not in finished:
            for imported in sorted(_imports(file)):
                visit(imported, (*path, file))
            finished.add(file)

    for file in _files():
        visit(file, ())
    assert len(finished) == len(_files())


@cache
def _imports(file: str) -> frozenset[str]:
    """The package's own files that a file imports; not those only for type checkers."""
    found: set[str] = set()
    for node in _running_nodes(_tree(file)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            # `from bursar.access import store` names a module, or something inside one.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {target for name in names if (target := _module_file(name)) is not None}
    return frozenset(found - {file})


def _module_file(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "bursar":
        return None
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[1:end])
        for candidate in (f"{path}.py", f"{path}/__init__.py".lstrip("/")):
            if candidate in _files():
                return candidate
    raise AssertionError(f"{name} is no file of the package")


def _running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`."""
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        children = node.orelse if node.test.id == "TYPE_CHECKING" else ast.iter_child_nodes(node)
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _running_nodes(child)


# What stays in its place -------------------------------------------------------------------------


def test_queries_stay_in_stores():
    """Goal: whoever wants to know what the database is asked reads the stores."""
    wrong: list[str] = []
    for file in _files():
        if STORES.fullmatch(file) or Path(file).name in QUERIES_IN or file in ASKS_ITSELF:
            continue
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if _SQL.match(node.value):
                    wrong.append(f"{file}:{node.lineno}: {node.value[:40]!r}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                receiver = ast.unparse(node.func.value)
                if node.func.attr in _QUERY_CALLS and receiver.endswith(("tx", "connection")):
                    wrong.append(f"{file}:{node.lineno}: {receiver}.{node.func.attr}")
    assert wrong == []


def test_stores_ask_for_the_moment():
    """Goal: no query uses now(), the start of the transaction, which lies before its locks."""
    for file in _files():
        if STORES.fullmatch(file):
            text = (SOURCE / file).read_text("utf-8")
            assert not re.search(r"\bnow\(\)|current_(timestamp|date)", text, re.IGNORECASE), file


def test_advisory_locks_are_listed():
    """Goal: no two things are locked by one number, and `advisory.py` shows them all."""
    numbers = {name: n for name, n in vars(advisory).items() if isinstance(n, int)}
    assert len(set(numbers.values())) == len(numbers)
    in_sql = [
        argument
        for path in (SOURCE / "migrations").glob("*.sql")
        for argument in _ADVISORY.findall(path.read_text("utf-8"))
    ]
    used = {name for name, number in numbers.items() if str(number) in in_sql}
    assert len(used) == len(set(in_sql)), in_sql
    for file in _files():
        texts = [n.value for n in ast.walk(_tree(file)) if isinstance(n, ast.Constant)]
        calls = _ADVISORY.findall("\n".join(text for text in texts if isinstance(text, str)))
        # An idempotency key is locked by a hash of it.
        calls = [argument for argument in calls if not argument.startswith("hashtextextended")]
        assert not [argument for argument in calls if argument[0] not in "$:"], file
        named = {node.id for node in ast.walk(_tree(file)) if isinstance(node, ast.Name)}
        assert len(named & numbers.keys()) == len(calls) or file == "advisory.py", file
        used |= named & numbers.keys() if calls else set()
    assert used == numbers.keys()


def test_only_clock_reads_the_wall_clock():
    """Goal: every decision about time can be tested at any time."""
    wrong: list[str] = []
    for file in _files():
        if file == "clock.py":
            continue
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value).rpartition(".")[2]
                if node.attr in _WALL_CLOCK.get(owner, ()):
                    wrong.append(f"{file}:{node.lineno}: {owner}.{node.attr}")
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                names = {alias.name for alias in node.names}
                if names & _WALL_CLOCK["time"]:
                    wrong.append(f"{file}:{node.lineno}: from time import {names}")
    assert wrong == []


def test_no_float_near_money():
    """Goal: amounts are integers from end to end."""
    wrong: list[str] = []
    for file in _files():
        if not file.startswith(MONEY) or file in NOT_MONEY:
            continue
        for node in ast.walk(_tree(file)):
            literal = isinstance(node, ast.Constant) and isinstance(node.value, float)
            named = isinstance(node, ast.Name) and node.id in ("float", "round")
            divided = isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)
            if literal or named or divided:
                wrong.append(f"{file}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}")
    assert wrong == []


def test_only_commands_print():
    """Goal: the service speaks through its log, and commands through the one file that keeps a
    terminal from obeying foreign text."""
    for file in _files():
        if file != "cli/show.py":
            calls = [ast.unparse(n.func) for n in ast.walk(_tree(file)) if isinstance(n, ast.Call)]
            assert not {"print", "typer.echo", "typer.secho"} & set(calls), file


def test_modules_stay_readable():
    """Goal: no catch-all module; one that grows this long is two."""
    sizes = {file: (SOURCE / file).read_text("utf-8").count("\n") for file in _files()}
    assert {file: size for file, size in sizes.items() if size > MOST_LINES} == {}


# Every file of the project -----------------------------------------------------------------------


@cache
def _texts() -> dict[str, str]:
    """Path and content of every text file of the project, as git would commit it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:  # an unpacked source archive
        folders = ("src", "tests", "docs", "bench", "locks", ".ci")
        paths = [path for name in folders for path in (ROOT / name).rglob("*")]
        paths += [path for path in ROOT.glob("*") if path.is_file()]
    texts: dict[str, str] = {}
    for path in paths:
        if path.is_file() and "__pycache__" not in path.parts:
            raw = path.read_bytes()
            if b"\0" not in raw:
                texts[path.relative_to(ROOT).as_posix()] = raw.decode("utf-8")
    return texts


def _lines(*suffixes: str) -> Iterator[tuple[str, str]]:
    for path, text in _texts().items():
        if path.endswith(suffixes):
            for number, line in enumerate(text.splitlines(), 1):
                yield f"{path}:{number}", line


def test_lines_fit():
    """Goal: two files fit side by side on a screen."""
    wide = [
        place
        for place, line in _lines(".py", ".sql")
        if len(line.partition("  # noqa")[0]) > MOST_COLUMNS
    ]
    assert wide == []


# In pieces, so that this file does not contain them.
_LEFT_OVER = ("TO" + "DO", "FIX" + "ME", "XX" + "X:", "<<<<" + "<<<", ">>>>" + ">>>")
_MACHINE = (".." + "/shared", *("/" + name + "/" for name in ("work", "root", "home", "Users")))
_HOSTS = ("py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com")


@pytest.mark.parametrize(
    "words", [_LEFT_OVER, _MACHINE, _HOSTS], ids=["left over", "machine paths", "registries"]
)
def test_no_file_holds(words: tuple[str, ...]):
    """Goal: nothing half-done, nothing of one machine, no address of a package registry."""
    found = [
        f"{path}: {word}"
        for path, text in _texts().items()
        for word in words
        if word in text and path != "LICENSE"
    ]
    assert found == []


def test_text_files_end_in_order():
    """Goal: no trailing blanks, one newline at the end, no carriage returns."""
    wrong = [
        path
        for path, text in _texts().items()
        if text
        and not path.startswith("LICENSE")
        and (not text.endswith("\n") or text.endswith("\n\n") or re.search(r"[ \t]\n|\r", text))
    ]
    assert wrong == []
