"""Peers that announce a body and then say nothing."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from bursar.config import Config
from bursar.http import exchange, unfinished
from tests.processes import running_api
from tests.support import Service, new_account

SILENT = 4_096
HEAD = b"POST /v1/agents HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n%b\r\n"


async def _silent(port: int, headers: bytes = b"") -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD % headers)
    return writer


async def test_thousands_of_silent_requests_take_nobody_down(config: Config, localnets: None):
    """Goal: without any key, and as many as there are connections: the service answers on."""
    async with running_api(replace(config, port=0)) as url:
        port = int(url.rpartition(":")[2])
        opened: list[asyncio.StreamWriter] = []
        async with httpx.AsyncClient(base_url=url, timeout=5) as other:
            while len(opened) < SILENT:
                async with asyncio.timeout(30):
                    opened += await asyncio.gather(*(_silent(port) for _ in range(256)))
                assert (await other.get("/healthz")).status_code == 200
            async with httpx.AsyncClient(base_url=url, timeout=5) as newcomer:
                assert (await newcomer.get("/healthz")).status_code == 200
        for writer in opened:
            writer.close()


async def test_the_first_byte_is_waited_for_only_so_long(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    """Goal: with a good key and a body that never begins the answer comes all the same."""
    monkeypatch.setattr(unfinished, "_BODY_SECONDS", 0.3)
    monkeypatch.setattr(exchange, "_DISCARD_SECONDS", 0.3)
    key = await service.key(account=new_account())
    port = int(service.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD % f"Authorization: Bearer {key}\r\n".encode())
    async with asyncio.timeout(10):
        assert b" 400 " in await reader.readline()
        assert b"did not arrive" in await reader.read(4096)
    writer.close()


async def test_a_peer_with_too_many_unfinished_requests_is_refused(service: Service):
    """Goal: beyond its bound a peer is hardly waited for: what it opens is answered and closed."""
    port, most = int(service.url.rpartition(":")[2]), service.config.unfinished_requests
    waiting = [await _silent(port) for _ in range(most)]
    async with asyncio.timeout(4):
        async with httpx.AsyncClient(base_url=service.url) as client:
            assert (await client.get("/healthz")).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD % b"")
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer.lower()
    for opened in (writer, *waiting):
        opened.close()
