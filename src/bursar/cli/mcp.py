"""`bursar mcp`: an agent's tools for an MCP client that starts its servers itself."""

import asyncio

from bursar.cli.connection import API_KEY, find_connection
from bursar.cli.printed import OutputLost
from bursar.cli.remote import ApiKey, BaseUrl, ProfileName
from bursar.errors import CommandFailed, ConfigError


def mcp(api_key: ApiKey = None, base_url: BaseUrl = None, profile: ProfileName = None) -> None:
    """Serve an agent's tools (budget, spend, buy and more) over standard input and output.

    Needs a key of scope agent. For MCP clients, which start it; docs/mcp.md has the lines to paste
    into theirs.
    """
    connection = find_connection(api_key=api_key, base_url=base_url, profile=profile)
    if connection.api_key is None:
        raise ConfigError(API_KEY, "set it to a key of scope agent")
    try:
        from bursar.mcp.stdio import serve
    except ModuleNotFoundError as problem:
        raise CommandFailed(
            f'{problem.name} is not installed; install it with: pip install "bursar-wallet[mcp]"'
        ) from None
    try:
        asyncio.run(serve(connection.base_url, connection.api_key))
    except ExceptionGroup as problems:
        # It writes by a descriptor of its own, in a task group.
        match problems.exceptions:
            case (OSError() as problem,):
                raise OutputLost(problem) from None
            case _:
                raise
