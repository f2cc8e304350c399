"""Goal: in each framework, an agent with a scripted model buys from the demo shop: it meets its
cap, reads the refusal and buys something smaller."""

from pathlib import Path
from typing import Final

import pytest

from tests.stock.market import ROOT, STOCK, Market, run

EXAMPLES: Final = ROOT / "examples"
# Ten weather reports, and no forecast.
DAILY_CAP: Final = "0.01"
SAID: Final = (
    "The forecast was refused (daily_cap_exceeded); 0.001000 USDC:"
    ' {"place": "Lisbon", "sky": "clear", "celsius": 21}\n'
)


@pytest.mark.parametrize(
    "example", ["langgraph_agent.py", "openai_agents_agent.py", "pydantic_ai_agent.py"]
)
async def test_a_python_agent_buys_what_it_can_afford(market: Market, example: str):
    environment = await market.environment(await market.buyer(DAILY_CAP))
    environment["PYTHONPATH"] = str(ROOT / "src")
    python = STOCK / "frameworks/bin/python"
    said = await run(python, "-W", "error", example, cwd=EXAMPLES, environment=environment)
    assert said == SAID


@pytest.mark.parametrize("example", ["langgraph.mjs", "vercel-ai.mjs"])
async def test_a_typescript_agent_buys_what_it_can_afford(
    market: Market, typescript: Path, example: str
):
    environment = await market.environment(await market.buyer(DAILY_CAP))
    folder = EXAMPLES / "typescript"
    said = await run("node", example, cwd=folder, environment=environment)
    assert said == SAID
