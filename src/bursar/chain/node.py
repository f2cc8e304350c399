"""One RPC node: JSON-RPC over HTTP, bounded in time and size."""

import itertools
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from bursar.chain.port import ChainOutOfReach

# A page of 1,000 history lines or 100 accounts has some 100 KB; a large transaction somewhat more.
_MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024
_TOO_MANY_REQUESTS: Final = 429


class NodeError(ChainOutOfReach):
    """The node answered with an error of its own."""

    def __init__(self, name: str, code: int, message: str, data: Any) -> None:
        super().__init__(f"{name}: {code} {message[:200]}")
        self.code = code
        self.message = message
        self.data = data


class NotReached(ChainOutOfReach):
    """There was no connection, so the request was not even sent."""


class Node:
    def __init__(
        self, session: aiohttp.ClientSession, address: str, timeout_seconds: float
    ) -> None:
        self._session = session
        self._address = address
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._numbers = itertools.count(1)
        parts = urlsplit(address)
        # The path and the query may hold an access token.
        self.name = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        # The genesis hash that this node was seen to have.
        self.genesis: str | None = None

    async def call(self, method: str, *params: Any) -> Any:
        """The result. Raises NodeError, NotReached or ChainOutOfReach, never anything else."""
        number = next(self._numbers)
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            async with self._session.post(
                self._address,
                data=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                status, raw = response.status, await _read(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as problem:
            raise NotReached(f"{self.name}: {type(problem).__name__}") from None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            # The message of an aiohttp error may quote the address with its token.
            raise ChainOutOfReach(f"{self.name}: {type(problem).__name__}") from None
        if status == _TOO_MANY_REQUESTS:
            raise NodeError(f"{self.name}", status, "too many requests", None)
        # Some nodes answer errors with 4xx. Behind a 5xx nothing is known, whatever the body says.
        answer = _decode(raw) if status < 500 else None
        if answer is None or answer.id != number or (status != 200 and answer.error is None):
            raise ChainOutOfReach(f"{self.name}: HTTP {status}, no JSON-RPC answer")
        if answer.error is not None:
            error = answer.error
            raise NodeError(f"{self.name}", error.code, error.message, error.data)
        return answer.result


async def _read(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        raw += chunk
        if len(raw) > _MOST_ANSWER_BYTES:
            raise ValueError("an answer larger than any that is asked for")
    return bytes(raw)


class _Error(msgspec.Struct):
    code: int
    message: str
    data: Any = None


class _Answer(msgspec.Struct):
    id: int
    # Null is a result like any other; none at all is not.
    result: Any = msgspec.UNSET
    error: _Error | None = None


def _decode(raw: bytes) -> _Answer | None:
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
    except (ValueError, RecursionError):
        return None
    return None if answer.result is msgspec.UNSET and answer.error is None else answer
