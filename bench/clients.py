"""What the SDKs weigh: the TypeScript package on its way to an edge or a browser, and the Python
one while it is imported."""

import gzip
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.rows import Row, below, within

_FOLDER: Final = Path(__file__).parents[1] / "clients/typescript"
_IMPORTS: Final = ("import httpx", "from bursar import AsyncBursar, Bursar")
_IN_ITS_OWN: Final = (
    "import time; start = time.process_time(); {}; print(time.process_time() - start)"
)
_TIMES: Final = 15

TYPESCRIPT_MISSING: Final = "The TypeScript client has no packages here: make test-stock"


def rows() -> list[Row]:
    return [_import_time(), *_size()]


def _import_time() -> Row:
    """Of the processor's time, in turns, each in a process of its own, so that a busy moment slows
    down both."""
    times: dict[str, list[float]] = {program: [] for program in _IMPORTS}
    for _ in range(_TIMES):
        for program, taken in times.items():
            command = [sys.executable, "-c", _IN_ITS_OWN.format(program)]
            said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
            taken.append(float(said) * 1000)
    httpx, ours = (statistics.median(taken) for taken in times.values())
    return below("import of the Python SDK (reference: httpx)", ours, "ms", httpx, 1.3)


def _size() -> list[Row]:
    node = shutil.which("node")
    if node is None or not (_FOLDER / "node_modules").exists():
        return []
    tools = _FOLDER / "node_modules"
    subprocess.run([node, tools / "typescript/bin/tsc"], cwd=_FOLDER, check=True)
    bundle = [tools / "esbuild/bin/esbuild", "dist/index.js", "--bundle", "--minify"]
    made = subprocess.run([*bundle, "--format=esm"], cwd=_FOLDER, check=True, capture_output=True)
    kilobytes = len(gzip.compress(made.stdout, 9)) / 1000
    return [within("TypeScript SDK, minified and compressed", kilobytes, "kB", 15.0)]
