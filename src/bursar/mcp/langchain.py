"""Bursar's tools for LangChain and LangGraph: `pip install "bursar-wallet[langchain]"`.

async with Toolkit() as toolkit:
    agent = create_agent(model, langchain_tools(toolkit))
"""

from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from bursar.mcp.tool import Tool
from bursar.mcp.toolkit import Toolkit


def langchain_tools(toolkit: Toolkit) -> list[BaseTool]:
    return [_wrapped(toolkit, tool) for tool in toolkit.tools]


def _wrapped(toolkit: Toolkit, tool: Tool) -> BaseTool:
    async def call(**arguments: Any) -> dict[str, Any]:
        return await toolkit.call(tool, arguments)

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.inputs.schema(),
        coroutine=call,
    )
