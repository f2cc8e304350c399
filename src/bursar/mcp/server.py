"""Our tools behind the official `mcp` package, for both transports.

Importing this takes a second and 60 MB, so it is imported only when needed. We use the package's
low-level server: the high-level one would derive schemas and checks from Python signatures, and
ours exist already and are stricter.
"""

import json
import logging
from collections.abc import Callable
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp.types import Tool as ShownTool

from bursar import __version__
from bursar.mcp import approval
from bursar.mcp.tool import Api, Result, Tool, call_tool, read_policy
from bursar.mcp.tools import INSTRUCTIONS, TOOLS

Context = ServerRequestContext[Any, Any]
_LOOK: Final = TOOLS["get_purchase"]

# Clients are told their mistakes. Logging them too would let anybody fill our log.
logging.getLogger("mcp").setLevel(logging.ERROR)


_POLICY: Final = Resource(
    uri="bursar://policy",
    name="policy",
    title="Your spending policy",
    description="What people allow this agent: caps, limits, the threshold above which a person has"
    " to approve, whom it may pay, and whether it is frozen. Only people can change it.",
    mime_type="application/json",
)


def make_server(api_of: Callable[[Context], Api]) -> Server[Any]:
    """A server with our tools and the agent's policy. `api_of` gives the API as the calling key
    sees it."""
    listed = ListToolsResult(tools=[_shown(tool) for tool in TOOLS.values()])

    async def list_tools(
        context: Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        del context, params
        return listed

    async def call(
        context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            names = ", ".join(TOOLS)
            raise MCPError(INVALID_PARAMS, f"There is no such tool. There are: {names}.")
        api, given, responses = api_of(context), params.arguments or {}, params.input_responses
        if responses is not None and approval.has_agreed(responses):
            given = approval.patient(tool, given)
        if responses is not None and params.request_state is not None and tool.name == "buy":
            # A person may have said no meanwhile, and then a `buy` would be another purchase.
            return _answer(await call_tool(_LOOK, {"id": params.request_state}, api))
        result = await call_tool(tool, given, api)
        if responses is None and approval.is_asked(context.session, tool, result):
            asked = await approval.ask(context.session, result)
            if isinstance(asked, InputRequiredResult):
                return asked
            if asked and result.purchase_id is not None:
                result = await call_tool(_LOOK, {"id": result.purchase_id}, api)
            elif asked:
                result = await call_tool(tool, approval.patient(tool, given), api)
        return _answer(result)

    async def list_resources(
        context: Context, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        del context, params
        return ListResourcesResult(resources=[_POLICY])

    async def read_resource(
        context: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        if params.uri != _POLICY.uri:
            raise MCPError(
                INVALID_PARAMS,
                f"There is no such resource. There is: {_POLICY.uri}.",
                data={"uri": params.uri},
            )
        return _contents(await read_policy(api_of(context)))

    return Server(
        "bursar",
        version=__version__,
        title="Bursar",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=lambda name: TOOLS[name].inputs.schema() if name in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
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


def _contents(result: Result) -> ReadResourceResult:
    if result.is_error:
        raise MCPError(INTERNAL_ERROR, result.text, data=result.fields)
    shown = json.dumps(result.fields, ensure_ascii=False, indent=2)
    return ReadResourceResult(
        contents=[TextResourceContents(uri=_POLICY.uri, mime_type=_POLICY.mime_type, text=shown)]
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
