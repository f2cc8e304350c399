"""Bursar's tools for the OpenAI Agents SDK: `pip install "bursar-wallet[openai-agents]"`.

async with Toolkit() as toolkit:
    agent = Agent(name="shopper", tools=openai_tools(toolkit))
"""

import json
from typing import Any

from agents import FunctionTool
from agents import Tool as AgentTool

from bursar.mcp.tool import Tool
from bursar.mcp.toolkit import Toolkit


def openai_tools(toolkit: Toolkit) -> list[AgentTool]:
    return [_wrapped(toolkit, tool) for tool in toolkit.tools]


def _wrapped(toolkit: Toolkit, tool: Tool) -> FunctionTool:
    async def call(_: Any, arguments: str) -> str:
        return json.dumps(await toolkit.call(tool, json.loads(arguments or "{}")))

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.inputs.schema(),
        on_invoke_tool=call,
        # In its strict mode every argument would be required.
        strict_json_schema=False,
    )
