"""Bursar's tools for Pydantic AI: `pip install "bursar-wallet[pydantic-ai]"`.

async with Toolkit() as toolkit:
    agent = Agent(model, tools=pydantic_tools(toolkit))
"""

from typing import Any

from pydantic_ai import Tool as AgentTool

from bursar.mcp.tool import Tool
from bursar.mcp.toolkit import Toolkit


def pydantic_tools(toolkit: Toolkit) -> list[AgentTool[Any]]:
    return [_wrapped(toolkit, tool) for tool in toolkit.tools]


def _wrapped(toolkit: Toolkit, tool: Tool) -> AgentTool[Any]:
    async def call(**arguments: Any) -> dict[str, Any]:
        return await toolkit.call(tool, arguments)

    return AgentTool[Any].from_schema(
        call,
        name=tool.name,
        description=tool.description,
        json_schema=tool.inputs.schema(),
    )
