"""`POST /mcp`: the tools over streamable HTTP, for agent keys.

To the dispatcher it is a route like any other, so key, scope, body and limits are checked as usual.
Each tool then performs an API route as the same caller, so a tool can do nothing that the key
itself could not.

Every message is complete in itself: there are no sessions and no streams, so any process can answer
it. GET, which would open a stream, is answered 405.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from urllib.parse import urlencode

import msgspec

from bursar.access.limits import Category
from bursar.access.model import Scope
from bursar.api.call import Answer, Call, DatabaseUse, Route
from bursar.api.perform import check_scope, explain, perform, prepare
from bursar.errors import Fault, of_kind, present
from bursar.form.kind import Schema
from bursar.form.kinds import Choice, Text
from bursar.form.record import Field, Record
from bursar.http.reached import reached_at
from bursar.http.router import Router
from bursar.mcp.tool import CONSOLE, ApiAnswer, ApiRequest

PATH: Final = "/mcp"
# The rate limit of each tool: that of its API route. Every other message counts as a read.
CATEGORIES: Final = {
    "get_budget": Category.AGENT_READS,
    "list_limits": Category.AGENT_READS,
    "list_recipients": Category.AGENT_READS,
    "preview_spend": Category.SPEND_AUTHORISE,
    "spend": Category.SPEND_AUTHORISE,
    "cancel_spend": Category.SPEND_AUTHORISE,
    "get_transaction": Category.TRANSACTIONS,
    "wait_for_transaction": Category.TRANSACTIONS,
    "list_transactions": Category.TRANSACTIONS,
    "buy": Category.SPEND_AUTHORISE,
    "get_purchase": Category.TRANSACTIONS,
    "continue_purchase": Category.SPEND_AUTHORISE,
    "retry_purchase": Category.SPEND_AUTHORISE,
}
# The key in the ASGI scope under which a tool finds the API of its caller.
API_KEY: Final = "bursar.api"
# Fixed, whatever headers the client sent: our answers are JSON and never streams.
_HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]
_CLOSE_SECONDS: Final = 5

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Asgi = Callable[[Message, Receive, Callable[[Message], Awaitable[None]]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of the message whose content the protocol's package validates."""

    kinds: tuple[type, ...]
    what: str

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, self.kinds) or isinstance(value, bool):
            faults.append(Fault(path, f"{path} must be {self.what}."))
        return value

    def schema(self) -> Schema:
        return {}


MESSAGE: Final = Record(
    "JSON-RPC message",
    (
        Field("jsonrpc", Choice(("2.0",)), "The version of JSON-RPC.", required=True),
        Field("id", _Member((str, int), "a string or a whole number"), "Of a request."),
        Field("method", Text(1, 100), "What is asked.", required=True),
        Field("params", _Member((dict,), "an object"), "The method's parameters."),
    ),
)


class Endpoint:
    """Loads the protocol's package at the first message and keeps it running."""

    def __init__(self, router: Router[Route]) -> None:
        """`router` finds the routes that the tools perform."""
        self._router = router
        self._running: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Asgi] | None = None
        self._closing = asyncio.Event()
        self.route = Route(
            method="POST",
            path=PATH,
            handler=self.handle,
            summary="Model Context Protocol",
            tag="MCP",
            scopes=frozenset({Scope.AGENT}),
            category=_category,
            database=DatabaseUse.OWN,
            body=MESSAGE,
        )

    async def handle(self, call: Call) -> Answer:
        protocol = await self._started()
        headers = [item for item in call.headers.items() if item[0].startswith(b"mcp-")]
        scope = _scope([*headers, *_HEADERS])
        scope[API_KEY] = _InProcess(self._router, call)
        status, body = await _exchange(protocol, scope, msgspec.json.encode(call.body))
        return Answer(status, msgspec.Raw(body) if body else None)

    async def close(self) -> None:
        self._closing.set()
        if self._running is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._running, _CLOSE_SECONDS)

    async def _started(self) -> Asgi:
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._ready))
        return await asyncio.shield(self._ready)

    async def _run(self, ready: "asyncio.Future[Asgi]") -> None:
        try:
            # In a thread, because importing takes a second and other requests must not wait for it.
            transport: _Transport = await asyncio.to_thread(
                importlib.import_module, "bursar.mcp.transport"
            )  # pyright: ignore[reportAssignmentType]
            async with transport.running(_api_of) as protocol:
                ready.set_result(protocol)
                await self._closing.wait()
        except Exception as problem:
            if ready.done():
                raise
            # Every waiting message gets the error; the next message tries again.
            ready.set_exception(problem)
            self._ready = None


class _Transport(Protocol):
    def running(
        self, api_of: Callable[[Any], "_InProcess"]
    ) -> contextlib.AbstractAsyncContextManager[Asgi]: ...


def _api_of(context: Any) -> "_InProcess":
    return context.request.scope[API_KEY]


class _InProcess:
    """The API as this caller's key sees it. The message counted towards the limit, so the tool's
    request does not."""

    def __init__(self, router: Router[Route], call: Call) -> None:
        self._router = router
        self._call = call

    @property
    def console(self) -> str | None:
        """At the address that the client itself reached us by."""
        headers = self._call.headers
        tls = self._call.services.config.tls_in_front
        secure = tls or headers.get(b"x-forwarded-proto") == b"https"
        address = reached_at(headers, is_secure=secure)
        return None if address is None else f"{address}{CONSOLE}"

    async def agent_id(self) -> str:
        return present(self._call.caller.agent_id, "only agent keys come here")

    async def send(self, request: ApiRequest) -> ApiAnswer:
        route_name = f"{request.method} {request.path}"
        try:
            answer = await self._perform(request)
        except Exception as problem:  # noqa: BLE001 - the last line of defence
            error = explain(problem, self._call.request_id, route_name)
            return _answer(error.code.status, error.headers, error.body(self._call.request_id))
        return _answer(answer.status, answer.headers, answer.body)

    async def _perform(self, request: ApiRequest) -> Answer:
        route, params = self._router.find(request.method, request.path)
        check_scope(route, self._call.caller)
        call = prepare(
            self._call.services,
            route,
            self._call.caller,
            request_id=self._call.request_id,
            path=request.path,
            params=params,
            query=urlencode(request.query).encode("ascii"),
            body=request.body or {},
            idempotency_header=request.headers.get("Idempotency-Key"),
            prefer=request.headers.get("Prefer"),
        )
        return of_kind(await perform(call), Answer, "no tool stands for a route that streams")


def _answer(status: int, headers: Mapping[str, str], body: Any) -> ApiAnswer:
    lower = {name.lower(): value for name, value in headers.items()}
    return ApiAnswer(status, lower, msgspec.json.decode(msgspec.json.encode(body)))


def _category(message: dict[str, Any]) -> Category:
    params = message.get("params")
    name = cast("dict[str, Any]", params).get("name") if isinstance(params, dict) else None
    if message.get("method") == "tools/call" and isinstance(name, str):
        return CATEGORIES.get(name, Category.AGENT_READS)
    return Category.AGENT_READS


def _scope(headers: list[tuple[bytes, bytes]]) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode("ascii"),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
    }


async def _exchange(app: Asgi, scope: Message, body: bytes) -> tuple[int, bytes]:
    """Sends one request to an ASGI application; returns (status, body)."""
    coming = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if coming:
            return coming.pop()
        # Never returns: this caller stays connected until the answer, and the waiting task is
        # cancelled then.
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *pieces = sent
    return start["status"], b"".join(piece.get("body", b"") for piece in pieces)
