"""The tools over standard input and output, for a service that runs elsewhere."""

from mcp.server.stdio import stdio_server

from bursar.mcp.over_http import reaching
from bursar.mcp.server import make_server


async def serve(base_url: str, key: str) -> None:
    """Answers until its client closes standard input."""
    async with reaching(base_url, key) as api, stdio_server() as (incoming, outgoing):
        server = make_server(lambda _: api)
        await server.run(incoming, outgoing, server.create_initialization_options())
