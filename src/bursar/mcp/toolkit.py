"""The tools for frameworks that have their own idea of a tool. Each adapter beside this file wraps
these five, with the names, words and answers that MCP clients get."""

import os
from typing import Any, Final

from bursar.client.variables import API_KEY, BASE_URL, DEFAULT_BASE_URL
from bursar.errors import ConfigError
from bursar.mcp.over_http import OverHttp, http_client
from bursar.mcp.tool import Tool, call_tool
from bursar.mcp.tools import TOOLS

NAMES: Final = ("get_budget", "preview_spend", "spend", "buy", "list_transactions")


class Toolkit:
    """One agent's tools. The key is one of scope `agent`, from BURSAR_API_KEY if not given."""

    def __init__(self, api_key: str | None = None, base_url: str | None = None) -> None:
        key = api_key or os.environ.get(API_KEY, "")
        if not key:
            raise ConfigError(API_KEY, "is not set; set it, or give api_key")
        self._client = http_client(base_url or os.environ.get(BASE_URL) or DEFAULT_BASE_URL, key)
        self._api = OverHttp(self._client)
        self.tools: tuple[Tool, ...] = tuple(TOOLS[name] for name in NAMES)

    async def call(self, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the model is told: a sentence, and the same as fields. Refusals and errors, too:
        a model can act on what it is told, and not on an exception."""
        result = await call_tool(tool, arguments, self._api)
        return {"summary": result.text, **result.fields}

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> "Toolkit":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
