"""An agent with a funded wallet, and the official MCP client over each transport."""

import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tests.processes import clean_environment
from tests.support import Service, new_account, new_agent

Connect = Callable[[str], AbstractAsyncContextManager[Client]]


@dataclass(frozen=True)
class Spender:
    """An agent of an account of its own: 50 in the wallet, 10 a day."""

    service: Service
    account: str
    agent_id: str
    key: str

    async def transactions(self) -> list[dict[str, Any]]:
        """What the books say, asked as an admin."""
        async with await self.service.admin(account=self.account) as admin:
            answer = await admin.get("/v1/transactions", params={"agentId": self.agent_id})
        return answer.json()["data"]


async def new_spender(service: Service, account: str | None = None, **policy: Any) -> Spender:
    account = account or new_account()
    async with await service.admin(account=account) as admin:
        agent = await new_agent(admin, policy={"dailyCap": "10.00", **policy})
    await service.fund(agent["id"], "50")
    key = await service.key(account=account, scope="agent", agent_id=agent["id"])
    return Spender(service, account, agent["id"], key)


@pytest.fixture
async def spender(service: Service) -> Spender:
    return await new_spender(service)


@asynccontextmanager
async def over_http(
    url: str, key: str, mode: Any = "auto", **options: Any
) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, verify=False) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            yield client


@asynccontextmanager
async def over_stdio(
    url: str, key: str, mode: Any = "auto", **options: Any
) -> AsyncGenerator[Client]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "bursar.cli.main", "mcp"],
        env={**clean_environment(), "BURSAR_API_KEY": key, "BURSAR_BASE_URL": url},
    )
    async with Client(server, mode=mode, **options) as client:
        yield client


@pytest.fixture(params=["http", "http before 2026", "stdio"])
def connect(request: pytest.FixtureRequest, service: Service) -> Connect:
    """Connects a client with a key, over the transport that the test is run with."""
    if request.param == "stdio":
        return lambda key: over_stdio(service.url, key)
    mode = "auto" if request.param == "http" else "legacy"
    return lambda key: over_http(service.url, key, mode)


def words(result: CallToolResult) -> str:
    """The text a model reads."""
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


def error_of(result: CallToolResult, code: str) -> dict[str, Any]:
    assert result.is_error, result
    # Fields would have to fit the output schema; strict clients throw away what does not.
    assert result.structured_content is None
    block = result.content[1]
    assert isinstance(block, TextContent)
    error = json.loads(block.text)["error"]
    assert error["code"] == code, error
    assert code in words(result)
    return error
