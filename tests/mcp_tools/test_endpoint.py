"""/mcp itself: who gets in, what is taken, what it counts as, and that it costs nothing at rest."""

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import pytest

from bursar.mcp.tools import TOOLS
from tests.mcp_tools.conftest import Spender, new_spender, over_http, over_stdio
from tests.mcp_tools.conftest import error_of as tool_error_of
from tests.processes import bursar, running_api
from tests.sdk.scripted import ScriptedServer
from tests.support import Service, error_of

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_only_agent_keys_get_in(service: Service, spender: Spender):
    """Goal: 401 without a key, 403 for every other scope, with what to do in the message."""
    async with service.client(None) as client:
        answer = await client.post("/mcp", json=LIST)
        error_of(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    for scope in ("admin", "approver", "read"):
        key = await service.key(account=spender.account, scope=scope)
        async with service.client(key) as client:
            error = error_of(await client.post("/mcp", json=LIST), 403, "forbidden")
            assert "scope agent" in error["message"]
        async with over_stdio(service.url, key) as tools:
            tool_error_of(await tools.call_tool("get_budget"), "forbidden")
    async with service.client(spender.key) as client:
        assert (await client.post("/mcp", json=LIST)).status_code == 200


async def test_a_terminated_agents_key_is_worth_nothing(service: Service, spender: Spender):
    """Goal: what stops a key elsewhere stops it here."""
    async with await service.admin(account=spender.account) as admin:
        assert (await admin.delete(f"/v1/agents/{spender.agent_id}")).status_code == 200
    async with service.client(spender.key) as client:
        error_of(await client.post("/mcp", json=call("get_budget")), 401, "unauthorized")


async def test_there_is_no_stream_to_open(service: Service, spender: Spender):
    """Goal: only POST; a client that tries a stream or ends a session is told so at once."""
    async with service.client(spender.key) as client:
        for method in ("GET", "DELETE", "PUT"):
            answer = await client.request(method, "/mcp")
            error_of(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == "POST"
        error_of(await client.post("/mcp/", json=LIST), 404, "not_found")


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"", 400, "validation_error"),
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, "invalid_json"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}', 400, "invalid_json"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":NaN}', 400, "invalid_json"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', 400, "validation_error"),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, "validation_error"),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', 400, "validation_error"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, "validation_error"),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', 400, "validation_error"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 400, "validation_error"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","key":"x"}', 400, "validation_error"),
        (b'{"id":1,"method":"tools/call","params":{"name":"\\u0000"}}', 400, "invalid_json"),
        (b'{"params":' + b"[" * 40 + b"]" * 40 + b"}", 400, "invalid_json"),
        (b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 600_000 + b'"}', 413, "payload_too_large"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_bodies_are_as_strict_as_everywhere(
    spender: Spender, raw: bytes, status: int, code: str
):
    """Goal: the API's own rules for JSON hold before the protocol sees a byte."""
    async with spender.service.client(spender.key) as client:
        error_of(await client.post("/mcp", content=raw), status, code)


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": []}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call"},
        call("withdraw", amount="1"),
        call("__class__"),
        {**call("get_budget"), "params": {"name": "get_budget", "arguments": "all"}},
        {"jsonrpc": "2.0", "id": 1, "method": "no/such/method"},
        {"jsonrpc": "2.0", "id": 1, "method": "resources/templates/list"},
        {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///etc"}},
        {"jsonrpc": "2.0", "id": 1, "method": "prompts/list"},
        {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen"},
        {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "debug"}},
    ],
    ids=lambda message: str(message)[:60],
)
async def test_other_messages_are_refused_by_the_protocol(
    spender: Spender, message: dict[str, Any]
):
    """Goal: an agent's key can call the tools, read its policy and nothing else; nothing hangs or
    crashes."""
    async with spender.service.client(spender.key) as client:
        for headers in ({}, {"mcp-protocol-version": "2026-07-28"}, {"mcp-session-id": "x" * 99}):
            answer = await client.post("/mcp", json=message, headers=headers)
            assert answer.status_code < 500, answer.text
            assert answer.json()["error"]["code"] < 0
    assert await spender.transactions() == []


async def test_strange_versions_are_refused(spender: Spender):
    async with spender.service.client(spender.key) as client:
        for version in ("1999-01-01", "x" * 500, "2026-07-28, 2025-06-18"):
            headers = {"mcp-protocol-version": version}
            answer = await client.post("/mcp", json=LIST, headers=headers)
            assert answer.status_code == 400
            assert "error" in answer.json()


async def test_a_tool_counts_as_its_endpoint_and_once(service: Service, spender: Spender):
    """Goal: the count is the API's, one for each call, and anything else is a read."""

    async def remaining(client: httpx.AsyncClient, message: dict[str, Any]) -> tuple[int, int]:
        answer = await client.post("/mcp", json=message)
        return int(answer.headers["ratelimit-limit"]), int(answer.headers["ratelimit-remaining"])

    async with service.client(spender.key) as client:
        assert await remaining(client, LIST) == (1200, 1199)
        assert await remaining(client, call("get_budget")) == (1200, 1198)
        assert await remaining(client, call("no_such_tool")) == (1200, 1197)
        await client.get(f"/v1/agents/{spender.agent_id}/budget")
        assert await remaining(client, call("get_budget", agentId="x")) == (1200, 1195)
        spend = call("spend", amount="1", recipient="api.example.com", idempotencyKey="k")
        assert await remaining(client, spend) == (3000, 2999)
        assert await remaining(client, call("list_transactions")) == (600, 599)


async def test_what_cannot_be_read_counts_too(service: Service, spender: Spender):
    """Goal: a refused message is no way around the limit."""
    admin = await service.key(account=spender.account)
    for key, content, kind, status in (
        (spender.key, b"{", "application/json", 400),
        (spender.key, b"{}", "text/plain", 415),
        (spender.key, b" " * 600_000, "application/json", 413),
        (admin, b"{}", "application/json", 403),
    ):
        async with service.client(key) as client:
            before = await client.get("/v1/me")
            answer = await client.post("/mcp", content=content, headers={"Content-Type": kind})
            assert answer.status_code == status
            after = await client.get("/v1/me")
        counts = [int(a.headers["ratelimit-remaining"]) for a in (before, answer, after)]
        assert counts == [counts[0], counts[0] - 1, counts[0] - 2]


async def test_over_the_limit_is_429(service: Service, spender: Spender):
    """Goal: the exact limit, with Retry-After, and no spend behind it."""
    async with service.client(spender.key) as client:
        answers = [
            await client.post("/mcp", json=call("get_transaction", id="txn_1")) for _ in range(601)
        ]
    assert {answer.status_code for answer in answers[:600]} == {200}
    error_of(answers[600], 429, "rate_limit_exceeded")
    assert int(answers[600].headers["retry-after"]) >= 1


async def test_log_lines_share_the_request_id(service: Service, spender: Spender):
    """Goal: one id leads from the message to what was done."""
    async with service.client(spender.key) as client:
        answer = await client.post(
            "/mcp",
            json=call("get_transaction", id="txn_" + "0" * 26),
            headers={"x-request-id": "mine-1"},
        )
    assert answer.headers["x-request-id"] == "mine-1"
    assert '"requestId": "mine-1"' in answer.json()["result"]["content"][1]["text"]


async def test_many_at_once(service: Service, spender: Spender):
    """Goal: messages of one client do not wait for each other, nor mix up their answers."""
    async with over_http(service.url, spender.key) as client:
        results = await asyncio.gather(
            *(
                client.call_tool(
                    "spend",
                    {
                        "amount": f"0.{n:06}",
                        "recipient": "api.example.com",
                        "idempotencyKey": f"k{n}",
                    },
                )
                for n in range(1, 51)
            )
        )
    amounts = [result.structured_content["amount"] for result in results]
    assert amounts == [f"0.{n:06}" for n in range(1, 51)]


async def test_two_agents_never_meet(service: Service):
    """Goal: the tools of one connection are its own key's, also side by side."""
    one, two = await new_spender(service), await new_spender(service)
    async with over_http(service.url, one.key) as first, over_http(service.url, two.key) as second:
        await first.call_tool(
            "spend", {"amount": "2", "recipient": "api.example.com", "idempotencyKey": "k"}
        )
        budgets = await asyncio.gather(
            *(client.call_tool("get_budget") for client in (first, second) for _ in range(10))
        )
    spent = [result.structured_content["spentToday"] for result in budgets]
    assert spent == ["2.000000"] * 10 + ["0.000000"] * 10


async def test_it_works_in_a_process_of_its_own_and_stops_in_order(
    service: Service, spender: Spender
):
    """Goal: loading on first use works under the real server, and the process still ends well."""
    async with (
        running_api(service.config) as url,
        over_http(url, spender.key) as client,
    ):
        budget = await client.call_tool("get_budget")
        assert budget.structured_content["maxAmountNow"] == "10.000000"


async def test_a_service_that_is_away_is_an_error_a_model_can_read(spender: Spender):
    """Goal: `bursar mcp` starts without the service, and says what to do when it is not there."""
    async with over_stdio("http://127.0.0.1:9", spender.key) as client:
        assert len((await client.list_tools()).tools) == len(TOOLS)
        result = await client.call_tool("get_budget")
    error = tool_error_of(result, "unavailable")
    assert error["retryable"] is True
    assert spender.key not in str(result)


@pytest.mark.parametrize("answer", ["gateway", "page", "dated", "redirect"])
async def test_somebody_in_between_answers(answer: str):
    """Goal: a model learns that it is not known what became of its spend, and what to do."""
    async with (
        ScriptedServer.running() as server,
        over_stdio(server.url, "bur_test_nonsense") as client,
    ):
        server.script = ["me", answer]
        spend = {"amount": "1", "recipient": "api.example.com", "idempotencyKey": "k"}
        error = tool_error_of(await client.call_tool("spend", spend), "unavailable")
    assert error["retryable"] is True
    assert "same idempotencyKey" in error["message"] or answer == "dated"
    assert error.get("retryAfterSeconds", 1) == 1


async def test_a_wrong_key_is_told(service: Service):
    async with over_stdio(service.url, "bur_test_nonsense") as client:
        tool_error_of(await client.call_tool("get_budget"), "unauthorized")


async def test_the_command_needs_a_key():
    finished = await bursar("mcp")
    assert finished.code == 2
    assert "BURSAR_API_KEY" in finished.err


def test_nothing_is_loaded_before_it_is_needed():
    """Goal: neither the service nor a command pays for the protocol's package at its start."""
    program = (
        "import sys, bursar.service.api, bursar.cli.main;"
        "assert not [name for name in sys.modules if name.partition('.')[0] in"
        " ('mcp', 'mcp_types', 'pydantic', 'starlette')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_command_needs_nothing_of_the_server():
    """Goal: `bursar mcp` runs where only `bursar-wallet[mcp]` is installed."""
    program = (
        "import sys\n"
        "for name in ('msgspec', 'asyncpg', 'httptools', 'structlog', 'solders', 'aiohttp',"
        " 'prometheus_client', 'uvloop'): sys.modules[name] = None\n"
        "import bursar.mcp.stdio\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
