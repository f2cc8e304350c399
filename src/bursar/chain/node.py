"""One RPC node: JSON-RPC over HTTP, bounded in time and size."""

import itertools
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from bursar.chain.port import ChainOutOfReach

# A page of 1,000 history lines or 100 accounts has about 100 KB; a large transaction somewhat more.
_MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024
_TOO_MANY_REQUESTS: Final = 429
# Some nodes send JSON-RPC errors with a 4xx status. With a 5xx nothing is known, whatever the body
# says.
_SERVER_FAULT: Final = 500

T = TypeVar("T")


class NodeError(ChainOutOfReach):
    """The node answered with an error of its own."""

    def __init__(self, name: str, code: int, message: str, data: Any) -> None:
        super().__init__(f"{name}: {code} {message[:200]}")
        self.code = code
        self.message = message
        self.data = data


class NotReached(ChainOutOfReach):
    """There was no connection, so the request was not sent."""


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
        # The genesis hash that this node has shown.
        self.genesis: str | None = None
        # By method, and the event loop's clock: until then it is not asked what others can answer.
        self.silent_until: dict[str, float] = {}

    async def call(self, method: str, *params: Any) -> Any:
        """The result. Raises NodeError, NotReached or ChainOutOfReach, never anything else."""
        number = next(self._numbers)
        status, raw = await self._post(_request(number, method, params))
        answer = _decode(raw, _Answer) if status < _SERVER_FAULT else None
        if answer is None or answer.id != number or (status != 200 and answer.error is None):
            raise self._unanswered(status)
        result = self._result(answer)
        if isinstance(result, ChainOutOfReach):
            raise result
        return result

    async def calls(self, many: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Many calls in one request: methods and their parameters. Returns for each its result, or
        the exception that `call` would raise.

        Raises ChainOutOfReach when there is no answer to the request as a whole.
        """
        requests = [_request(next(self._numbers), method, params) for method, params in many]
        status, raw = await self._post(requests)
        answers = _decode(raw, list[_Answer]) if status < _SERVER_FAULT else None
        if answers is None:
            raise self._unanswered(status)
        found = {answer.id: self._result(answer) for answer in answers}
        lost = ChainOutOfReach(f"{self.name}: no answer to a part of the request")
        return [found.get(request["id"], lost) for request in requests]

    async def _post(self, body: Any) -> tuple[int, bytes]:
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
        return status, raw

    def _unanswered(self, status: int) -> ChainOutOfReach:
        return ChainOutOfReach(f"{self.name}: HTTP {status}, no JSON-RPC answer")

    def _result(self, answer: "_Answer") -> Any:
        if answer.error is not None:
            error = answer.error
            return NodeError(f"{self.name}", error.code, error.message, error.data)
        if answer.result is msgspec.UNSET:
            return ChainOutOfReach(f"{self.name}: neither a result nor an error")
        return answer.result


def _request(number: int, method: str, params: Sequence[Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


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
    # Null is a valid result; a missing one is not.
    result: Any = msgspec.UNSET
    error: _Error | None = None


def _decode(raw: bytes, type_: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=type_)
    except (ValueError, RecursionError):
        return None
