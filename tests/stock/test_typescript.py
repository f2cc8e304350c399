"""Goal: the TypeScript client works against a running service, as its source and as it is packed;
its page runs from the first line to the last."""

import re
import shutil
import time
from pathlib import Path
from typing import Final

from tests.documents.blocks import blocks
from tests.documents.samples import samples
from tests.stock.market import ROOT, Market, run

PAGE: Final = (ROOT / "docs/typescript.md").read_text("utf-8")
FIRST_SPEND_SECONDS: Final = 10


async def test_its_own_tests_pass(market: Market, typescript: Path):
    programs = sorted((typescript / "build/tests").glob("*.test.js"))
    assert len(programs) >= 3
    environment = await market.environment()
    said = await run("node", "--test", *programs, cwd=typescript, environment=environment)
    assert re.search(r"fail 0$", said, re.MULTILINE), said


async def test_a_first_spend_from_an_empty_folder(market: Market, packed: Path, tmp_path: Path):
    """Goal: the commands of the page, in the time that it promises."""
    program, output = blocks(PAGE)[1:3]
    script = re.sub(r"npm install \S+", f"npm install --silent --offline {packed}", program.text)
    assert str(packed) in script
    started = time.monotonic()
    said = await run("bash", "-ec", script, cwd=tmp_path, environment=await market.environment())
    assert said.endswith(output.text)
    assert time.monotonic() - started < FIRST_SPEND_SECONDS
    installed = tmp_path / "node_modules"
    assert [path.name for path in installed.iterdir() if path.name[0] != "."] == ["bursar"]


async def test_the_page_runs(market: Market, typescript: Path):
    """Goal: its blocks, one after the other, are a program that TypeScript finds nothing wrong
    with, and that does what they say."""
    program = [block.text for block in blocks(PAGE) if block.language == "ts"]
    imports = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
    lines = {line for text in program for line in imports.findall(text)}
    folder = typescript / "build/page"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "page.ts").write_text(
        "".join(sorted(lines)) + "".join(imports.sub("", text) for text in program)
    )
    environment = await market.environment()
    options = ("--module", "nodenext", "--target", "es2022", "--strict", "--types", "node")
    compiler = ("node", "node_modules/typescript/bin/tsc", *options, folder / "page.ts")
    await run(*compiler, cwd=typescript, environment=environment)
    said = await run("node", folder / "page.js", cwd=typescript, environment=environment)
    assert "daily_cap_exceeded 25.000000 null" in said
    assert "404 not_found" in said
    assert "200 0.001000 { place: 'Lisbon'" in said
    assert "max_amount_exceeded" in said
    assert said.endswith("200\n")


async def test_the_samples_of_the_reference_compile(typescript: Path, market: Market):
    """Goal: what /docs shows in TypeScript has the types of the client."""
    folder = typescript / "build/samples"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = 'import { Bursar } from "bursar";\nconst bursar = new Bursar();\n'
    each = [f"{{\n{sample['typescript']}\n}}\n" for sample in samples().values()]
    (folder / "samples.ts").write_text(begin + "".join(each))
    options = ("--module", "nodenext", "--target", "es2022", "--strict", "--noEmit")
    compiler = ("node", "node_modules/typescript/bin/tsc", *options, folder / "samples.ts")
    await run(*compiler, cwd=typescript, environment=await market.environment())
