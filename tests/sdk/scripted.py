"""An HTTP server that answers by a script, for what a healthy service never does.

ok  a deposit          late  a deposit, after half a second    429, any error code  that error
me  an agent's key     gateway  JSON that is not ours, 504     dated  503 until a date
page  HTML, 502        nonsense  JSON that is no answer        redirect  to another place
reset  the connection is reset without an answer               silence  no answer at all
cut  the connection ends within the answer                     pending, settled  a transaction
packed  not gzip, though it says so
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from bursar.api.examples import ANSWERS
from bursar.errors import ErrorCode

DEPOSIT = {
    "id": "dep_1",
    "agentId": "ag_1",
    "amount": "1.000000",
    "currency": "USDC",
    "sender": None,
    "signature": "s",
    "blockTime": None,
    "status": "credited",
    "createdAt": "2026-11-15T09:30:00.123Z",
    "creditedAt": None,
}


@dataclass(frozen=True)
class Received:
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    def __init__(self, url: str = "") -> None:
        self.url = url
        self.script: list[str] = []
        self.requests: list[Received] = []

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncGenerator[Self]:
        made = cls()
        server = await asyncio.start_server(made._connected, "127.0.0.1", 0)
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield made
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            headers = {name.lower(): value for name, _, value in (h.partition(": ") for h in head)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append(Received(headers, body))
            step = self.script.pop(0)
            if step == "reset":
                reset(writer)
            elif step == "silence":
                await reader.read()
            else:
                await asyncio.sleep(0.5 if step == "late" else 0)
                answer = _answer(step)
                writer.write(answer[:-10] if step == "cut" else answer)
                await writer.drain()
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with RST, as a crash or a firewall would."""
    found = writer.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _answer(step: str) -> bytes:
    more = ""
    if step in ("ok", "late", "cut"):
        status, body = 201, json.dumps({"data": DEPOSIT})
    elif step in ("pending", "settled"):
        status, body = 200, json.dumps({"data": {**ANSWERS["Transaction"], "status": step}})
    elif step == "me":
        status, body = 200, json.dumps({"data": {"scope": "agent", "agentId": "ag_1"}})
    elif step == "gateway":
        status, body = 504, json.dumps({"message": "Endpoint request timed out"})
    elif step == "dated":
        error = {"code": "unavailable", "message": "No.", "retryable": True, "requestId": "req_1"}
        status, body = 503, json.dumps({"error": error})
        more = "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\n"
    elif step == "page":
        status, body = 502, "<html>Bad gateway</html>"
    elif step == "nonsense":
        status, body = 201, json.dumps({"data": {"id": "dep_1"}})
    elif step == "packed":
        status, body, more = 200, json.dumps({"data": DEPOSIT}), "Content-Encoding: gzip\r\n"
    elif step == "redirect":
        status, body, more = 302, "", "Location: /elsewhere\r\n"
    else:
        code = ErrorCode.RATE_LIMIT_EXCEEDED if step == "429" else ErrorCode(step)
        error = {"code": code.value, "message": "No.", "retryable": code.retryable}
        status, body, more = code.status, json.dumps({"error": error}), "Retry-After: 7\r\n"
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}"
    return f"{head}Content-Type: application/json\r\n\r\n{body}".encode()
