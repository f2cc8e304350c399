"""An endpoint, described once: the descriptor gives the synchronous client a function that returns
the answer, and the asynchronous one a coroutine function, with the same typed parameters.

    @operation("GET /v1/agents/:id", Agent)
    def get(self, agent_id: str) -> Request: ...

    Bursar().agents.get("ag_1")               # Agent
    await AsyncBursar().agents.get("ag_1")    # Agent
"""

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from inspect import Signature, signature
from types import NoneType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload
from urllib.parse import quote
from uuid import uuid4

from bursar.client.codec import read
from bursar.client.pages import AsyncPages, Pages
from bursar.client.transport import AsyncTransport, Call, Transport
from bursar.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
Carrier = TypeVar("Carrier", Transport, AsyncTransport)


class Unset(Enum):
    """The default of arguments for which None has a meaning of its own."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class Resource(Generic[Carrier]):
    """A group of endpoints, over one transport."""

    def __init__(self, transport: Carrier) -> None:
        self.transport: Carrier = transport

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.transport.base_url}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request that a call's arguments make."""

    path: Mapping[str, str] = field(default_factory=dict[str, str])
    # Parameters that are None are not sent.
    query: Mapping[str, object] = field(default_factory=dict[str, object])
    body: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    # Seconds that the service may wait for the outcome before it answers.
    wait: int | None = None
    # Seconds that its work may take beyond the usual, such as asking others.
    patience: int = 0


class Endpoint(Generic[P, T]):
    """A route, the type of its answer, and the function that turns arguments into a request."""

    def __init__(
        self, route: str, answer: type[T], describe: Callable[Concatenate[Any, P], Request]
    ) -> None:
        self.method, _, self.path = route.partition(" ")
        self.answer = answer
        self.describe = describe
        self.__doc__ = describe.__doc__
        _, *parameters = signature(describe).parameters.values()
        # The signature for `help()`: without `self`, and returning the answer instead of a Request.
        self._signature = Signature(parameters)

    def call(self, request: Request) -> Call:
        headers: dict[str, str] = {}
        key = request.idempotency_key
        if self.method == "POST":
            key = uuid4().hex if key is None else key
            headers["Idempotency-Key"] = key
        content = None
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(request.body, ensure_ascii=False).encode()
        if request.wait is not None:
            headers["Prefer"] = f"wait={request.wait}"
        return Call(
            method=self.method,
            path="/".join(_segment(part, request.path) for part in self.path.split("/")),
            query={name: str(value) for name, value in request.query.items() if value is not None},
            headers=headers,
            content=content,
            idempotency_key=key,
            patience_seconds=(request.wait or 0) + request.patience,
        )

    def bound(self, resource: object, run: Callable[[Call], Any]) -> Callable[P, Any]:
        @wraps(self.describe)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run(self.call(self.describe(resource, *args, **kwargs)))

        call.__signature__ = self._signature  # pyright: ignore[reportAttributeAccessIssue]
        return call

    def read(self, body: Any) -> T | None:
        return None if self.answer is NoneType else read(self.answer, body["data"])


class Operation(Endpoint[P, T]):
    """One request, one answer."""

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Transport], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, resource: Resource[AsyncTransport], owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        if resource is None:
            return self
        return self.bound(resource, lambda call: resource.transport.run(call, self.read))


class Listing(Endpoint[P, T]):
    """A list that is read page by page, as far as the caller iterates."""

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Transport], owner: type) -> Callable[P, Pages[T]]: ...
    @overload
    def __get__(
        self, resource: Resource[AsyncTransport], owner: type
    ) -> Callable[P, AsyncPages[T]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        if resource is None:
            return self
        pages: Any = Pages if isinstance(resource.transport, Transport) else AsyncPages
        return self.bound(resource, lambda call: pages(resource.transport, call, self.answer))


class Download(Endpoint[P, bytes]):
    """An answer that is not JSON, piece by piece as it arrives."""

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self, resource: Resource[Transport], owner: type
    ) -> Callable[P, Iterator[bytes]]: ...
    @overload
    def __get__(
        self, resource: Resource[AsyncTransport], owner: type
    ) -> Callable[P, AsyncIterator[bytes]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        if resource is None:
            return self
        return self.bound(resource, resource.transport.stream)


def operation(
    route: str, answer: type[T]
) -> Callable[[Callable[Concatenate[Any, P], Request]], Operation[P, T]]:
    return lambda describe: Operation(route, answer, describe)


def listing(
    route: str, item: type[T]
) -> Callable[[Callable[Concatenate[Any, P], Request]], Listing[P, T]]:
    return lambda describe: Listing(route, item, describe)


def download(route: str) -> Callable[[Callable[Concatenate[Any, P], Request]], Download[P]]:
    return lambda describe: Download(route, bytes, describe)


def given(**fields: Any) -> dict[str, Any]:
    """The fields that were given: None is a value of theirs, UNSET is not."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def present(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _segment(part: str, values: Mapping[str, str]) -> str:
    if not part.startswith(":"):
        return part
    value = values[part[1:]]
    # Any of these would change the path, and so call another endpoint.
    if value in ("", ".", ".."):
        raise ConfigError(part[1:], f"must name something, not {value!r}")
    return quote(value, safe="")
