"""The official package's streamable HTTP, without sessions. Imported by `endpoint.py` when
needed."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from bursar.form.strict_json import MAX_BODY_BYTES
from bursar.mcp.server import Context, make_server
from bursar.mcp.tool import Api


@asynccontextmanager
async def running(api_of: Callable[[Context], Api]) -> AsyncGenerator[Any]:
    """The protocol as an ASGI application, for as long as the context is open."""
    manager = StreamableHTTPSessionManager(
        make_server(api_of),
        json_response=True,
        stateless=True,
        max_request_body_size=2 * MAX_BODY_BYTES,
    )
    async with manager.run():
        yield manager.handle_request
