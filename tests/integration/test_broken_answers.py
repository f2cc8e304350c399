"""An answer that breaks off after its status was sent: told in log and metrics, never taken for
the whole."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
import structlog
from prometheus_client import REGISTRY
from structlog.testing import LogCapture

from bursar.api import export
from bursar.api.call import Stream
from bursar.clock import SystemClock
from bursar.http import answer
from bursar.http.request import Request
from bursar.service.api import Api
from tests.console.support import browser_of, cookie_of, sign_in
from tests.support import Service, new_account, new_agent, spend

# Rows of a page here; one more is on the next page.
PAGE = 20


def _broken(path: str) -> float:
    labels = {"route": f"GET {path}"}
    return REGISTRY.get_sample_value("bursar_http_answers_broken_total", labels) or 0


@pytest.mark.parametrize("path", ["/v1/transactions/export", "/console/transactions.csv"])
async def test_half_an_export_is_counted_and_logged(
    service: Service, monkeypatch: pytest.MonkeyPatch, path: str
):
    """Goal: the database goes away between two pages: the end of the body is never sent, the metric
    counts it, and the log names request and cause."""
    told = LogCapture()
    monkeypatch.setattr(export, "ROWS", PAGE)
    monkeypatch.setattr(answer, "_log", structlog.wrap_logger(None, processors=[told]))
    account = new_account()
    key = await service.key(account=account)
    async with service.client(key) as client:
        agent = await new_agent(client, policy={"dailyCap": "0.00"})
        await asyncio.gather(*(spend(client, agent["id"], "1") for _ in range(PAGE + 1)))
    async with browser_of(service) as http:
        await sign_in(http, key)
        cookie = f"bursar_console={http.cookies[cookie_of(service)]}"
    assert service.config.database_url is not None
    blocker = await asyncpg.connect(service.config.database_url)
    lock = blocker.transaction()
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            # The first page is out; no other can be read now.
            await lock.start()
            await blocker.execute("LOCK TABLE spend IN ACCESS EXCLUSIVE MODE")

    api = await Api.start(replace(service.config, database_timeout_seconds=3), SystemClock())
    before = _broken(path)
    try:
        await api._app(
            {
                "type": "http",
                "method": "GET",
                "path": path,
                "query_string": f"agentId={agent['id']}".encode(),
                "headers": [
                    (b"authorization", f"Bearer {key}".encode()),
                    (b"cookie", cookie.encode()),
                    (b"x-request-id", b"half-an-export"),
                ],
            },
            receive,
            send,
        )
    finally:
        await lock.rollback()
        await blocker.close()
        await api.stop()
    start, first = sent
    assert start["status"] == 200
    assert first["more_body"], "the body has no end"
    assert first["body"].count(b"\r\n") == PAGE + 1
    assert _broken(path) == before + 1
    (line,) = told.entries
    assert line["event"] == "answer_broken"
    assert line["request_id"] == "half-an-export"
    assert line["route"] == f"GET {path}"
    assert isinstance(line["exc_info"], asyncpg.LockNotAvailableError)


async def test_the_head_of_an_export_is_not_the_whole():
    """Goal: whoever asks for the headers alone has nothing read for them."""
    sent: list[MutableMapping[str, Any]] = []

    async def pieces() -> AsyncGenerator[bytes]:
        pytest.fail("a piece was made")
        yield b""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    request = Request({"method": "HEAD", "path": "/"}, {}, receive)
    await answer.send_stream(Stream("text/csv", "x.csv", pieces()), request, [], send)
    assert [message.get("body") for message in sent] == [None, b""]
