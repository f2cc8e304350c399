"""Goal: the TypeScript client needs nothing that only Node has: the same program does the same in
Deno, Bun and workerd, which runs what Cloudflare runs at the edge."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.parts import missing
from tests.stock.market import ROOT, Market, run

FOLDER: Final = ROOT / "tests/stock/runtimes"
# Each is in the package for this machine; the scripts that would link it elsewhere are not run.
BINARIES: Final = {
    "deno": "@deno/*/deno",
    "bun": "@oven/*/bin/bun",
    "workerd": "@cloudflare/*/bin/workerd",
}
SEEN: Final[dict[str, Any]] = {
    "settled": ["settled", "1.500000", True],
    "refused": ["rejected", "daily_cap_exceeded"],
    "pending": "pending",
    "listed": True,
    "exported": 3,
    "bought": [200, True, "0.001000", "clear"],
    "tooDear": "max_amount_exceeded",
    "unknown": "not_found",
    "nowhere": True,
    "late": "TimeoutError",
    "event": "agent.paused",
    "forged": True,
}


@pytest.fixture(scope="module")
async def worker(market: Market, typescript: Path) -> Path:
    """One file, as it would be sent to the edge."""
    built = FOLDER / "build/worker.js"
    source = typescript / "build/tests/runtimes/worker.js"
    esbuild = (typescript / "node_modules/esbuild/bin/esbuild", source, f"--outfile={built}")
    options = ("--bundle", "--format=esm", "--log-level=error")
    await run(*esbuild, *options, cwd=typescript, environment=await market.environment())
    return built


async def _seen(market: Market, runtime: str, *arguments: str | Path) -> Any:
    binary = next(FOLDER.glob(f"node_modules/{BINARIES[runtime]}"), None)
    if binary is None:
        missing(f"{runtime}, which has no package for this machine")
    environment = await market.environment() | {"DENO_NO_UPDATE_CHECK": "1"}
    said = await run(binary, *arguments, cwd=FOLDER, environment=environment)
    # workerd says something before and after it.
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    return json.loads(line)


async def test_deno(market: Market, typescript: Path):
    """Goal: where everything is forbidden, the network and the names of its settings are enough."""
    allowed = ("--allow-net=127.0.0.1", "--allow-env=BURSAR_API_KEY,BURSAR_BASE_URL,SHOP_URL")
    program = typescript / "build/tests/runtimes/program.js"
    assert await _seen(market, "deno", "run", "--no-prompt", *allowed, program) == SEEN


async def test_bun(market: Market, typescript: Path):
    program = typescript / "build/tests/runtimes/program.js"
    assert await _seen(market, "bun", "--no-install", program) == SEEN


@pytest.mark.usefixtures("worker")
async def test_workerd(market: Market):
    assert await _seen(market, "workerd", "test", "worker.capnp") == SEEN
