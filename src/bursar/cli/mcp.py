"""`bursar mcp`: an agent's tools for an MCP client that starts its servers itself."""

import asyncio
from typing import Annotated

import typer

from bursar.errors import CommandFailed, ConfigError


def mcp(
    key: Annotated[
        str | None, typer.Option(envvar="BURSAR_API_KEY", help="An API key of scope agent.")
    ] = None,
    url: Annotated[
        str, typer.Option(envvar="BURSAR_BASE_URL", help="Where the service is.")
    ] = "http://127.0.0.1:8420",
) -> None:
    """Serve an agent's tools (budget, preview, spend, transactions) over standard input and output.

    For MCP clients, which start it; docs/mcp.md has the lines to paste into theirs.
    """
    if not key:
        raise ConfigError("BURSAR_API_KEY", "set it to a key of scope agent")
    try:
        from bursar.mcp.stdio import serve
    except ModuleNotFoundError as problem:
        raise CommandFailed(
            f'{problem.name} is not installed; install it with: pip install "bursar[mcp]"'
        ) from None
    asyncio.run(serve(url, key))
