"""Waits until a process that was started answers over HTTP."""

import asyncio
from typing import Final

_ANSWER_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02


async def healthy(host: str, port: int, path: str) -> None:
    """Return once `GET path` answers 200; the caller bounds the wait."""
    while True:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                if await _status(host, port, path) == 200:
                    return
        except (OSError, TimeoutError):
            pass  # not listening yet
        await asyncio.sleep(_POLL_SECONDS)


async def _status(host: str, port: int, path: str) -> int | None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii"))
        parts = (await reader.readline()).split()
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None
    finally:
        writer.close()
