"""Rules about the source itself that a machine can check; `docs/architecture.md` says why."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src/bursar"

# The floor of every file. A file imports lower floors, its own folder and any `model.py`; the
# kernel (floor 0) imports only the kernel. A file that is not here is in the wrong place, or this
# table and docs/architecture.md need a line. "*" stands for all the other files of a folder.
FLOORS: Final[dict[str, dict[str, int]]] = {
    "": {
        "__init__": 0, "money": 0, "ids": 0, "base58": 0, "clock": 0, "errors": 0, "hostnames": 0,
        "config": 0,
        "db": 1, "logs": 1, "metrics": 1, "webhooks": 2,
    },
    "policy": {"model": 1, "engine": 1, "store": 2, "cache": 2},
    "event": {"catalog": 1, "model": 1, "examples": 2, "store": 2, "outbox": 2, "api": 6},
    "wallet": {"model": 1, "store": 2, "quarantine": 3, "fund": 4, "withdraw": 4, "api": 6},
    "ledger": {"model": 1, "store": 2, "book": 3, "audit": 3, "seal": 3},
    "recipient": {"model": 1, "store": 2, "resolve": 3, "api": 6},
    "agent": {"model": 1, "store": 3, "lifecycle": 5, "api": 6},
    "spend": {
        "model": 2, "store": 2, "stats": 2, "close": 4, "authorise": 4, "approve": 4, "settle": 4,
        "wait": 4, "api": 6,
    },
    "chain": {
        "networks": 0, "port": 1, "message": 1, "refusal": 1, "answers": 1, "store": 2, "node": 3,
        "solana": 4, "pin": 4,
    },
    "cost": {"model": 2, "store": 2, "payees": 3},
    "custody": {
        "model": 1, "provider": 1, "store": 2, "master": 3, "vault": 3, "setup": 4, "rotate": 4,
    },
    "settlement": {
        "model": 1, "evidence": 2, "store": 3, "outside": 3, "afford": 5, "outcome": 5, "worker": 5,
        "deposits": 5, "adopt": 5, "reconcile": 6, "by_hand": 6,
    },
    "webhook": {
        "model": 1, "signature": 1, "store": 2, "target": 3, "send": 4, "worker": 5, "api": 6,
    },
    "access": {
        "model": 1, "limits": 1, "store": 2, "shared_limits": 2, "trail": 3, "guard": 3,
        "idempotency": 3, "issue": 4, "session": 4, "api": 6,
    },
    "localnet": {"genesis": 0, "*": 5},
    "http": {
        "codec": 0, "query": 1, "cursor": 1, "export": 1, "router": 1, "request": 2,
        "unfinished": 3, "once": 4, "call": 5, "perform": 5, "way_out": 5, "dispatch": 6,
        "webhook_routes": 7, "routes": 7, "examples": 7, "openapi": 7, "docs": 7, "app": 7,
    },
    "heartbeat": {"model": 1, "store": 2},
    "migrations": {"migrate": 2},
    "console": {"*": 6},
    "mcp": {"words": 1, "tools": 2, "server": 3, "transport": 3, "stdio": 3, "endpoint": 6},
    "client": {"*": 2},
    "service": {"*": 8},
    "cli": {"*": 9},
}  # fmt: skip

QUERIES_IN: Final = ("store.py", "stats.py", "db.py", "migrate.py")
# The audit shares nothing with what it checks, so it has queries of its own; the localnet keeps
# its chain in sqlite.
ASKS_ITSELF: Final = ("ledger/audit.py", "localnet/disk.py")
MONEY: Final = ("money.py", "ledger/", "spend/", "policy/", "wallet/")
# Waiting is measured in seconds, and touches no amount.
NOT_MONEY: Final = ("spend/wait.py",)
MOST_LINES: Final = 600
MOST_COLUMNS: Final = 100

_SQL = re.compile(
    r"\s*(SELECT\s|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|WITH\s+\w+\s+AS|SET\s+LOCAL"
    r"|TRUNCATE\s|LOCK\s+TABLE|NOTIFY\s|LISTEN\s)"
)
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


def _floor(file: str) -> int | None:
    folder, _, name = file.removesuffix(".py").rpartition("/")
    rooms = FLOORS.get(folder.partition("/")[0], {})
    if name == "__init__" and folder:
        return 0
    return rooms.get(name, rooms.get("*"))


# Floors ------------------------------------------------------------------------------------------


def test_every_file_has_its_floor():
    """Goal: the tree is the table of contents; a new file is placed on purpose."""
    lost = [file for file in _files() if _floor(file) is None]
    assert lost == [], "give these files a floor in FLOORS, and the folder a line in the docs"


def test_every_floor_has_its_file():
    """Goal: the table names nothing that is gone."""
    named = {
        f"{folder}/{name}.py".lstrip("/") for folder, names in FLOORS.items() for name in names
    }
    gone = [file for file in named if not file.endswith("/*.py") and file not in _files()]
    assert gone == []


def test_folders_hold_no_code_in_their_init():
    """Goal: importing a folder runs nothing, so a command loads only what it names."""
    for file in _files():
        if file.endswith("/__init__.py"):
            body = _tree(file).body
            docstring = len(body) == 1 and isinstance(body[0], ast.Expr)
            assert not body or docstring, file


def test_imports_go_down():
    """Goal: a file can be read knowing only what lies below it."""
    wrong = [
        f"{file} ({_floor(file)}) imports {imported} ({_floor(imported)})"
        for file in _files()
        for imported in sorted(_imports(file))
        if not _may_import(file, imported)
    ]
    assert wrong == []
    assert len(_imports("http/routes.py")) > 10, "the test sees imports at all"


def _may_import(file: str, imported: str) -> bool:
    floor, below = _floor(file), _floor(imported)
    assert floor is not None, f"{file} has no floor"
    assert below is not None, f"{imported} has no floor"
    if floor == 0 or below == 0:
        return below == 0
    folder = file.rpartition("/")[0]
    same_folder = folder != "" and folder == imported.rpartition("/")[0]
    return below < floor or same_folder or imported.endswith("/model.py")


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
        if Path(file).name in QUERIES_IN or file in ASKS_ITSELF:
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
        if Path(file).name in ("store.py", "stats.py"):
            text = (SOURCE / file).read_text("utf-8")
            assert not re.search(r"\bnow\(\)|current_(timestamp|date)", text, re.IGNORECASE), file


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
        and not place.startswith("src/bursar/migrations/schema.sql")
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
