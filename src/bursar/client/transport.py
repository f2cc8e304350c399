"""Sends calls, retries them where that is safe, and reads answers; blocking and asynchronous.

Both transports use the same pure functions to decide; only the waiting differs.
"""

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeVar

import httpx

from bursar import __version__
from bursar.client.address import past_proxies
from bursar.client.codec import UNREADABLE
from bursar.client.errors import (
    ConnectionFailed,
    NotSent,
    RequestFailed,
    ServiceError,
    TimedOut,
    UnexpectedAnswer,
    failure_of,
)

T = TypeVar("T")
Read = Callable[[Any], T]

RETRIES_MOST: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.5
_JITTER_SECONDS: Final = 0.2
# If the service asks to wait longer than this, the error is raised instead.
_LONGEST_PAUSE_SECONDS: Final = 120.0
_TOO_MANY: Final = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, ready to be sent any number of times."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes | None
    idempotency_key: str | None
    # Seconds added to the timeout, because the service was asked to wait for the outcome.
    patience_seconds: float

    @property
    def once(self) -> bool:
        """Whether sending it twice has the same effect as sending it once."""
        return self.method == "GET" or self.idempotency_key is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """When a failed call is sent again: after a 429, a few times, each pause twice as long as the
    last."""

    most: int
    # Whether to wait for Retry-After if that is longer.
    honour_retry_after: bool
    # Whether to retry after a broken connection, too: only calls that are safe to send twice.
    broken_connections: bool

    def pause(self, retry: int, call: Call, failure: RequestFailed, chance: float) -> float | None:
        """Seconds to wait before retry number `retry` (from 0); None: raise the failure instead.

        `chance`, from 0 to 1, is the random part.
        """
        if retry >= self.most:
            return None
        seconds = _FIRST_PAUSE_SECONDS * 2**retry + _JITTER_SECONDS * chance
        if isinstance(failure, ServiceError) and failure.status == _TOO_MANY:
            if self.honour_retry_after:
                seconds = max(seconds, failure.retry_after or 0)
            return seconds if seconds <= _LONGEST_PAUSE_SECONDS else None
        if isinstance(failure, ConnectionFailed) and self.broken_connections and call.once:
            return seconds
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where the service is, and the key. The key appears in no repr and no message."""

    base_url: str
    headers: dict[str, str]
    timeout: float
    retries: Retries

    @classmethod
    def of(cls, api_key: str, base_url: str, timeout: float, retries: Retries) -> "Service":
        headers = {
            "Authorization": f"Bearer {api_key}",
            "Accept": "application/json",
            "User-Agent": f"bursar-python/{__version__}",
        }
        return cls(base_url=base_url, headers=headers, timeout=timeout, retries=retries)

    def __repr__(self) -> str:
        return f"Service({self.base_url!r})"

    def request(self, http: "httpx.Client | httpx.AsyncClient", call: Call) -> httpx.Request:
        return http.build_request(
            call.method,
            call.path,
            params=call.query or None,
            headers=call.headers,
            content=call.content,
            timeout=self.timeout + call.patience_seconds,
        )


class Transport:
    """Blocks until the answer is there. May be used by several threads."""

    def __init__(self, service: Service, sleep: Callable[[float], None] = time.sleep) -> None:
        self._service = service
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=service.base_url,
            headers=service.headers,
            mounts=past_proxies(service.base_url),
        )

    @property
    def base_url(self) -> str:
        return self._service.base_url

    def run(self, call: Call, read: Read[T]) -> T:
        return _read(call, self._send(call), read)

    def stream(self, call: Call) -> Iterator[bytes]:
        response = self._send(call, stream=True)
        try:
            yield from response.iter_bytes()
        except httpx.RequestError as problem:
            raise _broken(problem, call) from problem
        finally:
            response.close()

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def close(self) -> None:
        self._http.close()

    def _send(self, call: Call, *, stream: bool = False) -> httpx.Response:
        for retry in count():
            try:
                request = self._service.request(self._http, call)
                response = self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                response.read()
                failure = _refused(response, call)
            except httpx.RequestError as problem:
                failure = _broken(problem, call, first=retry == 0)
            pause = self._service.retries.pause(retry, call, failure, random.random())  # noqa: S311
            if pause is None:
                raise failure from failure.__cause__
            self._sleep(pause)
        raise AssertionError("unreachable")


async def _sleep(seconds: float) -> None:
    # Costly to import, and loaded already in a program that awaits this.
    import asyncio

    await asyncio.sleep(seconds)


class AsyncTransport:
    """The same without blocking, for one event loop."""

    def __init__(
        self, service: Service, sleep: Callable[[float], Awaitable[None]] = _sleep
    ) -> None:
        self._service = service
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=service.base_url,
            headers=service.headers,
            mounts=past_proxies(service.base_url),
        )

    @property
    def base_url(self) -> str:
        return self._service.base_url

    async def run(self, call: Call, read: Read[T]) -> T:
        return _read(call, await self._send(call), read)

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        response = await self._send(call, stream=True)
        try:
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.RequestError as problem:
            raise _broken(problem, call) from problem
        finally:
            await response.aclose()

    async def pause(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, call: Call, *, stream: bool = False) -> httpx.Response:
        for retry in count():
            try:
                request = self._service.request(self._http, call)
                response = await self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                await response.aread()
                failure = _refused(response, call)
            except httpx.RequestError as problem:
                failure = _broken(problem, call, first=retry == 0)
            pause = self._service.retries.pause(retry, call, failure, random.random())  # noqa: S311
            if pause is None:
                raise failure from failure.__cause__
            await self._sleep(pause)
        raise AssertionError("unreachable")


def _read(call: Call, response: httpx.Response, read: Read[T]) -> T:
    try:
        return read(response.json() if response.content else None)
    except UNREADABLE as problem:
        raise UnexpectedAnswer(
            f"The answer to {call.method} {call.path} cannot be read. Is base_url the address of"
            " the service, and is this client as new as it?",
            status=response.status_code,
            request_id=response.headers.get("x-request-id"),
            idempotency_key=call.idempotency_key,
        ) from problem


def _refused(response: httpx.Response, call: Call) -> ServiceError:
    try:
        body = response.json()
    except ValueError:
        body = None
    return failure_of(response.status_code, body, response.headers, call.idempotency_key)


def _broken(problem: httpx.RequestError, call: Call, *, first: bool = False) -> ConnectionFailed:
    url = problem.request.url
    service = f"{url.scheme}://{url.netloc.decode()}"
    why = f"({type(problem).__name__}: {problem})"
    # Of a later try this would say nothing about those before it.
    if first and isinstance(problem, httpx.ConnectError | httpx.ConnectTimeout):
        kind = NotSent
        message = f"{service} could not be reached {why}: nothing was sent."
    else:
        kind = TimedOut if isinstance(problem, httpx.TimeoutException) else ConnectionFailed
        known = "" if call.method == "GET" else " Whether it was done is not known."
        message = f"{call.method} {service}{url.path} got no answer {why}.{known}"
    failure = kind(message, idempotency_key=call.idempotency_key)
    failure.__cause__ = problem
    return failure
