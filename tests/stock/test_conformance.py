"""Goal: every client does the same: one list of scenarios, against one service."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.runner import SCENARIOS, run_scenario
from tests.stock.market import ROOT, Market, run
from tests.support import new_account


def test_the_list_is_as_long_as_promised():
    names = [scenario["name"] for scenario in SCENARIOS]
    assert len(set(names)) == len(names) >= 30


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"])
async def test_python(market: Market, scenario: dict[str, Any]):
    known = {"shop": market.shop, "shopHost": httpx.URL(market.shop).host}
    key = await market.service.key(account=new_account())
    await run_scenario(scenario, key, market.service.url, known)


async def test_typescript(market: Market, typescript: Path):
    keys = [await market.service.key(account=new_account()) for _ in SCENARIOS]
    said = await run(
        "node",
        typescript / "build/tests/conformance.js",
        ROOT / "tests/conformance/scenarios.json",
        cwd=typescript,
        environment=await market.environment(),
        given="\n".join(keys),
    )
    assert json.loads(said) == {scenario["name"]: "" for scenario in SCENARIOS}
