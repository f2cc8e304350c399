"""Goal: the OpenAPI document is one that tools like: validators find nothing, and generators make
clients of it that compile and spend."""

import shutil
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.stock.market import ROOT, STOCK, Market, run

PYTHON: Final = STOCK / "openapi/bin"
NODE: Final = ROOT / "tests/stock/openapi"


@pytest.fixture(scope="module")
async def document(market: Market, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("document") / "openapi.json"
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{market.service.url}/openapi.json")
    file.write_bytes(answer.content)
    return file


async def test_it_is_valid(market: Market, document: Path, tmp_path: Path):
    validator = (PYTHON / "openapi-spec-validator", document)
    said = await run(*validator, cwd=tmp_path, environment=await market.environment())
    assert said.endswith(": OK\n")


async def test_spectral_finds_nothing(market: Market, document: Path):
    """Goal: by its own rules for OpenAPI, not even a hint."""
    lint = ("lint", document, "--ruleset", "spectral.yaml", "--fail-severity", "hint")
    program = ("node", "node_modules/@stoplight/spectral-cli/dist/index.js", *lint)
    await run(*program, cwd=NODE, environment=await market.environment())


async def test_a_generated_python_client_spends(market: Market, document: Path, tmp_path: Path):
    environment = await market.environment(await market.buyer("10.00"))
    environment["PATH"] = f"{PYTHON}:{environment['PATH']}"
    made = tmp_path / "bursar_client"
    options = ("--path", document, "--output-path", made, "--meta", "none", "--fail-on-warning")
    generator = (PYTHON / "openapi-python-client", "generate", *options)
    await run(*generator, cwd=tmp_path, environment=environment)
    compiled = (PYTHON / "python", "-m", "compileall", "-q", made)
    await run(*compiled, cwd=tmp_path, environment=environment)
    program = (PYTHON / "python", ROOT / "tests/stock/programs/generated_client.py")
    environment["PYTHONPATH"] = str(tmp_path)
    said = await run(*program, cwd=tmp_path, environment=environment)
    assert said == "settled 1.500000 True 1.500000\n"


async def test_a_generated_typescript_client_spends(market: Market, document: Path):
    environment = await market.environment(await market.buyer("10.00"))
    build = NODE / "build"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir()
    shutil.copy(NODE / "spend.ts", build)
    (build / "package.json").write_text('{"type": "module"}')
    generator = ("node_modules/openapi-typescript/bin/cli.js", document, "-o", "build/schema.ts")
    await run("node", *generator, cwd=NODE, environment=environment)
    await run("node", "node_modules/typescript/bin/tsc", cwd=NODE, environment=environment)
    said = await run("node", "build/spend.js", cwd=NODE, environment=environment)
    assert said == "settled 1.500000 1.500000\n"
