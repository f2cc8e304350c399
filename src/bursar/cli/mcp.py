"""`bursar mcp`: an agent's tools for an MCP client that starts its servers itself."""

import asyncio
from typing import Annotated

import typer

from bursar.cli.connection import API_KEY, find_connection
from bursar.errors import CommandFailed, ConfigError


def mcp(
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", "--key", help="A key of scope agent. [BURSAR_API_KEY]"),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", "--url", help="Where the service is. [BURSAR_BASE_URL]"),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="A saved connection, see `bursar login`. [BURSAR_PROFILE]")
    ] = None,
) -> None:
    """Serve an agent's tools (budget, preview, spend, transactions) over standard input and output.

    For MCP clients, which start it; docs/mcp.md has the lines to paste into theirs.
    """
    connection = find_connection(api_key=api_key, base_url=base_url, profile=profile)
    if connection.api_key is None:
        raise ConfigError(API_KEY, "set it to a key of scope agent")
    try:
        from bursar.mcp.stdio import serve
    except ModuleNotFoundError as problem:
        raise CommandFailed(
            f'{problem.name} is not installed; install it with: pip install "bursar[mcp]"'
        ) from None
    asyncio.run(serve(connection.base_url, connection.api_key))
