"""An answer that breaks off after its status was sent: told in log and metrics, never taken for
the whole."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
import structlog
from prometheus_client import REGISTRY
from structlog.testing import LogCapture

from bursar.clock import SystemClock
from bursar.http import dispatch
from bursar.service.api import Api
from tests.support import Service, new_account, new_agent, spend

# One page of an export and a row.
SPENDS = 501


def _broken() -> float:
    labels = {"route": "GET /v1/transactions/export"}
    return REGISTRY.get_sample_value("bursar_http_answers_broken_total", labels) or 0


async def test_half_an_export_is_counted_and_logged(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    """Goal: the database goes away between two pages: the end of the body is never sent, the metric
    counts it, and the log names request and cause."""
    told = LogCapture()
    monkeypatch.setattr(dispatch, "_log", structlog.wrap_logger(None, processors=[told]))
    account = new_account()
    key = await service.key(account=account)
    async with service.client(key) as client:
        agent = await new_agent(client, policy={"dailyCap": "0.00"})
        await asyncio.gather(*(spend(client, agent["id"], "1") for _ in range(SPENDS)))
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

    api = await Api.start(replace(service.config, database_timeout_seconds=1), SystemClock())
    before = _broken()
    try:
        await api._app(
            {
                "type": "http",
                "method": "GET",
                "path": "/v1/transactions/export",
                "query_string": f"agentId={agent['id']}".encode(),
                "headers": [
                    (b"authorization", f"Bearer {key}".encode()),
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
    assert first["body"].count(b"\r\n") == 501
    assert _broken() == before + 1
    (line,) = told.entries
    assert line["event"] == "answer_broken"
    assert line["request_id"] == "half-an-export"
    assert line["route"] == "GET /v1/transactions/export"
    assert isinstance(line["exc_info"], TimeoutError)
