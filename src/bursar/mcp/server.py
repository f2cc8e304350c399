"""Our tools behind the official `mcp` package, for both transports.

Importing this takes a second and 60 MB, so it is imported only when needed. We use the package's
low-level server: the high-level one would derive schemas and checks from Python signatures, and
ours exist already and are stricter.
"""

import json
import logging
from collections.abc import Callable
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp.types import Tool as ShownTool

from bursar import __version__
from bursar.mcp.tool import Api, Result, Tool, call_tool
from bursar.mcp.tools import INSTRUCTIONS, TOOLS

Context = ServerRequestContext[Any, Any]

# Clients are told their mistakes. Logging them too would let anybody fill our log.
logging.getLogger("mcp").setLevel(logging.ERROR)


def make_server(api_of: Callable[[Context], Api]) -> Server[Any]:
    """A server with our tools and nothing else. `api_of` gives the API as the calling key sees
    it."""
    listed = ListToolsResult(tools=[_shown(tool) for tool in TOOLS.values()])

    async def list_tools(
        context: Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        del context, params
        return listed

    async def call(context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            names = ", ".join(TOOLS)
            raise MCPError(INVALID_PARAMS, f"There is no such tool. There are: {names}.")
        return _answer(await call_tool(tool, params.arguments or {}, api_of(context)))

    return Server(
        "bursar",
        version=__version__,
        title="Bursar",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=lambda name: TOOLS[name].inputs.schema() if name in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call,
    )


def _shown(tool: Tool) -> ShownTool:
    return ShownTool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.inputs.schema(),
        output_schema=tool.output,
        annotations=ToolAnnotations(
            read_only_hint=not (tool.spends or tool.changes),
            destructive_hint=tool.spends,
            # A spend has an idempotency key, a purchase is known by what it buys, so repeating
            # either is harmless.
            idempotent_hint=True,
            open_world_hint=tool.spends,
        ),
    )


def _answer(result: Result) -> CallToolResult:
    """The sentence first, then the fields as text, for clients that show only text."""
    return CallToolResult(
        content=[
            TextContent(text=result.text),
            TextContent(text=json.dumps(result.fields, ensure_ascii=False)),
        ],
        # An error carries no structured fields: a strict client would check them against the tool's
        # output schema, which describes successes, and drop the error before the model reads it.
        structured_content=None if result.is_error else result.fields,
        is_error=result.is_error,
    )
