"""What docs/mcp.md tells people to paste works when it is pasted."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from bursar.mcp.tools import TOOLS
from tests.mcp_tools.conftest import Spender, over_http
from tests.processes import bursar, clean_environment

PAGE = (Path(__file__).parents[2] / "docs/mcp.md").read_text("utf-8")


def snippets() -> list[Any]:
    return [json.loads(text) for text in re.findall(r"```json\n(.+?)```", PAGE, re.DOTALL)]


async def test_the_http_lines_work(spender: Spender):
    """Goal: address and header are where the page says."""
    server = snippets()[0]["mcpServers"]["bursar"]
    assert server["url"].endswith("/mcp")
    assert server["headers"] == {"Authorization": "Bearer bur_test_…"}
    async with over_http(spender.service.url, spender.key) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)


async def test_the_stdio_lines_work(spender: Spender):
    """Goal: the command, its arguments and its two variables, as they are pasted."""
    server = snippets()[1]["mcpServers"]["bursar"]
    assert set(server["env"]) == {"BURSAR_API_KEY", "BURSAR_BASE_URL"}
    filled = {"BURSAR_API_KEY": spender.key, "BURSAR_BASE_URL": spender.service.url}
    parameters = StdioServerParameters(
        command=str(Path(sys.executable).with_name(server["command"])),
        args=server["args"],
        env={**clean_environment(), **filled},
    )
    async with Client(parameters) as client:
        budget = await client.call_tool("get_budget")
    assert budget.structured_content["maxAmountNow"] == "10.000000"


async def test_the_key_line_makes_a_key_that_gets_in(spender: Spender):
    """Goal: the command that the page starts with gives a key for this."""
    line = next(line for line in PAGE.splitlines() if line.startswith("bursar keys create"))
    words = line.replace("ag_…", spender.agent_id).split()[1:]
    url = spender.service.config.database_url
    assert url is not None
    made = await bursar(*words, "--account", spender.account, database_url=url)
    assert made.code == 0, made.err
    async with over_http(spender.service.url, made.out.strip()) as client:
        assert not (await client.call_tool("get_budget")).is_error


def test_the_refusal_shown_has_the_fields_of_one():
    shown = snippets()[2]
    assert set(shown) <= set(TOOLS["spend"].output["properties"])


def test_every_tool_has_its_row():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == list(TOOLS)
