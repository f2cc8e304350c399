"""Where the key goes: to the service and to nobody on the way."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator

import pytest

from bursar import AsyncBursar, Bursar
from bursar.errors import ConfigError
from tests.processes import clean_environment
from tests.sdk.scripted import ScriptedServer

KEY = "bur_test_00000000000000000000000000000000000000"
LIVE_KEY = KEY.replace("test", "live")
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture
async def server() -> AsyncGenerator[ScriptedServer]:
    async with ScriptedServer.running() as made:
        yield made


@pytest.fixture
async def proxy() -> AsyncGenerator[ScriptedServer]:
    async with ScriptedServer.running() as made:
        yield made


@pytest.fixture
def proxied(proxy: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.setenv(name, proxy.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("proxied")
async def test_the_sdk_asks_no_proxy_on_this_machine(server: ScriptedServer, proxy: ScriptedServer):
    """Goal: whatever HTTP_PROXY says, a key for this machine does not leave it."""
    server.script += ["ok"] * 3
    local = server.url.replace("127.0.0.1", "localhost")
    async with AsyncBursar(KEY, server.url) as client, AsyncBursar(KEY, local) as named:
        await client.wallets.fund("ag_1", amount="1")
        await named.wallets.fund("ag_1", amount="1")
    with Bursar(KEY, server.url) as blocking:
        await asyncio.to_thread(blocking.wallets.fund, "ag_1", amount="1")
    assert (len(server.requests), proxy.requests) == (3, [])


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize("words", [("fund", "ag_1", "1"), ("mcp",)])
async def test_commands_ask_no_proxy_on_this_machine(
    words: tuple[str, ...], server: ScriptedServer, proxy: ScriptedServer
):
    """Goal: the same for the command line and for an agent's tools."""
    server.script += ["ok"] * 3
    variables = {"BURSAR_API_KEY": KEY, "BURSAR_BASE_URL": server.url}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bursar.cli.main", *words),
        env=clean_environment() | variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if words == ("mcp",):
        for message in _MCP_CALL:
            process.stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(60):
            while not server.requests and not proxy.requests:
                assert await process.stdout.readline()
        process.kill()
    await asyncio.wait_for(process.communicate(), 60)
    assert len(server.requests) > 0
    assert proxy.requests == []


_MCP_CALL = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "get_budget", "arguments": {}},
    },
)


@pytest.mark.parametrize("url", ["http://bursar.example.com", "http://10.0.0.7:8420"])
async def test_a_live_key_is_not_sent_in_the_clear(url: str):
    """Goal: over plain HTTP to another machine a live key is refused before anything is sent."""
    for make in (Bursar, AsyncBursar):
        with pytest.raises(ConfigError, match="https"):
            make(LIVE_KEY, url)
        make(KEY, url)
        make(LIVE_KEY, url.replace("http:", "https:"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:8420", "http://localhost", "http://[::1]:8420"])
async def test_on_this_machine_it_is(url: str):
    """Goal: loopback needs no TLS, by any of its names."""
    assert url in repr(Bursar(LIVE_KEY, url))
