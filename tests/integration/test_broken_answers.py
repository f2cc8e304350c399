"""An answer that breaks off after its status was sent: told in log and metrics, never taken for
the whole."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

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
from tests.http_server.wire import Wire, arrived
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

    async def at_the_first_page() -> None:
        """No other can be read now."""
        await lock.start()
        await blocker.execute("LOCK TABLE spend IN ACCESS EXCLUSIVE MODE")

    wire = Wire(taken=at_the_first_page)
    api = await Api.start(replace(service.config, database_timeout_seconds=3), SystemClock())
    before = _broken(path)
    try:
        headers = {
            b"authorization": f"Bearer {key}".encode(),
            b"cookie": cookie.encode(),
            b"x-request-id": b"half-an-export",
        }
        exchange = arrived(
            wire, path=path, query=f"agentId={agent['id']}".encode(), headers=headers
        )
        await api._app(exchange)
    finally:
        await lock.rollback()
        await blocker.close()
        await api.stop()
    head, first = wire.written
    assert head.startswith(b"HTTP/1.1 200 ")
    assert first.count(b"\r\n") == PAGE + 1 + 2, "the page, and the ends of its chunk"
    assert exchange.is_begun
    assert not exchange.is_answered
    assert _broken(path) == before + 1
    (line,) = told.entries
    assert line["event"] == "answer_broken"
    assert line["request_id"] == "half-an-export"
    assert line["route"] == f"GET {path}"
    assert isinstance(line["exc_info"], asyncpg.LockNotAvailableError)


async def test_the_head_of_an_export_is_not_the_whole():
    """Goal: whoever asks for the headers alone has nothing read for them."""

    async def pieces() -> AsyncGenerator[bytes]:
        pytest.fail("a piece was made")
        yield b""

    wire = Wire()
    exchange = arrived(wire, "HEAD")
    answers = answer.Answers(SystemClock(), logs=False)
    await answers.stream(Request(exchange), Stream("text/csv", "x.csv", pieces()), [], 0)
    assert exchange.is_answered
    [head] = wire.written
    assert head.endswith(b"\r\n\r\n")
