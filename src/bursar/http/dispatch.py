"""The way of every /v1 request: route, key, limit, scope, body, idempotency, handler, answer.

Plain ASGI, because a framework's middle layers cost more than the decision itself. The order of
the checks is the contract's: what a caller may not know is decided before what it asked is read.
"""

import asyncio
import contextlib
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from bursar.access import idempotency
from bursar.access.limits import Verdict
from bursar.access.model import Caller
from bursar.chain.port import ChainOutOfReach
from bursar.clock import Clock
from bursar.db import OUT_OF_REACH, Tx
from bursar.errors import ApiError, ErrorCode, ValidationFailed, unavailable
from bursar.http.call import Answer, Call, Route, Services, Stream, Unit
from bursar.http.codec import MAX_BODY_BYTES, Record, decode_object
from bursar.http.query import parse_query
from bursar.ids import new_id
from bursar.ledger.store import hold_decisions
from bursar.logs import AccessLog
from bursar.metrics import HttpMetrics

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# What a caller may choose as its request id: it lands in logs and headers, so not a key by mistake.
_REQUEST_ID = re.compile(r"(?!bur_)[A-Za-z0-9._:-]{1,100}", re.ASCII)
_JSON_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.ASCII | re.IGNORECASE)
_BODY_SECONDS: Final = 30
# How much of a refused body is read on, and for how long, so that the answer is not lost.
_DISCARD_BYTES: Final = 16 * MAX_BODY_BYTES
_DISCARD_SECONDS: Final = 5
PAGE_METHODS: Final = ("GET", "HEAD")
_NO_BODY: Final = Record("Nothing", ())
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger()


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's own, if it is well-formed, or a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else new_id("req")


class Router:
    """Finds the route of a path: fixed paths by one look-up, the others by their shape."""

    def __init__(self, routes: Sequence[Route], pages: Collection[str]) -> None:
        self._pages = pages
        self._fixed: dict[str, dict[str, Route]] = {}
        self._shaped: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        shapes: dict[tuple[str, ...], dict[str, Route]] = {}
        for route in routes:
            if ":" not in route.path:
                self._fixed.setdefault(route.path, {})[route.method] = route
                continue
            parts = tuple(route.path.split("/"))
            if parts not in shapes:
                shapes[parts] = {}
                self._shaped.setdefault(len(parts), []).append((parts, shapes[parts]))
            shapes[parts][route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        if path in self._pages:
            raise _not_allowed(method, PAGE_METHODS)
        methods, params = self._match(path)
        route = methods.get(method)
        if route is None:
            raise _not_allowed(method, sorted(methods))
        return route, params

    def _match(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
        given = path.split("/")
        for parts, methods in self._shaped.get(len(given), ()):
            params: dict[str, str] = {}
            for part, text in zip(parts, given, strict=True):
                if part.startswith(":") and text:
                    params[part[1:]] = text
                elif part != text:
                    break
            else:
                return methods, params
        raise ApiError(
            ErrorCode.NOT_FOUND, "There is nothing at this path. See /docs for all of them."
        )


def _not_allowed(method: str, allowed: Sequence[str]) -> ApiError:
    listed = ", ".join(allowed)
    return ApiError(
        ErrorCode.METHOD_NOT_ALLOWED,
        f"This path takes {listed}, not {method[:20]}.",
        headers={"Allow": listed},
    )


class Dispatcher:
    """Answers everything but the service's own `pages`, of which it knows only the paths."""

    def __init__(
        self,
        routes: Sequence[Route],
        pages: Collection[str],
        services: Services,
        log: AccessLog,
        metrics: HttpMetrics,
    ) -> None:
        self._router = Router(routes, pages)
        self._services = services
        self._access_log = log
        self._metrics = metrics

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        clock: Clock = self._services.clock
        started = clock.monotonic_ns()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request = _Request(scope, receive, headers)
        try:
            answer = await self._answer(request)
        except ApiError as problem:
            answer = _error(problem, request)
        except ChainOutOfReach as problem:
            _log.warning("chain_out_of_reach", request_id=request.id, problem=str(problem))
            answer = _error(
                unavailable("The chain is out of reach. Try again with the same Idempotency-Key."),
                request,
            )
        except OUT_OF_REACH as problem:
            _log.warning(
                "database_out_of_reach",
                request_id=request.id,
                problem=f"{type(problem).__name__}: {problem}",
            )
            answer = _error(
                unavailable(
                    "The database is out of reach or too busy. Try again; with the same"
                    " Idempotency-Key nothing happens twice."
                ),
                request,
            )
        except Exception:  # noqa: BLE001 - the last line of defence: nothing leaks, all is logged
            _log.exception("internal_error", request_id=request.id, route=request.route_name)
            answer = _error(
                ApiError(
                    ErrorCode.INTERNAL_ERROR,
                    "Something went wrong on our side; quote the requestId. With the same"
                    " Idempotency-Key a retry does nothing twice.",
                ),
                request,
            )
        await request.discard_rest()
        status = await _send(answer, request, send)
        elapsed = clock.monotonic_ns() - started
        self._metrics.observe(request.route_name, status, elapsed)
        self._access_log.write(request.id, request.key_id, request.route_name, status, elapsed)

    async def _answer(self, request: "_Request") -> Answer | Stream:
        services = self._services
        route, params = self._router.find(request.method, request.path)
        request.route_name = f"{route.method} {route.path}"
        caller = await services.guard.authenticate(request.header(b"authorization"))
        request.key_id = caller.key_id
        verdict = await services.limiter.take(caller.key_id, route.category, caller.mode)
        request.verdict = verdict
        if not verdict.allowed:
            raise ApiError(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                f"This key made {verdict.limit} {route.category.label} requests within 60 seconds,"
                f" its limit. Try again in {verdict.reset_seconds} s.",
                headers={"Retry-After": str(verdict.reset_seconds)},
            )
        _check_scope(route, caller)
        raw = await request.read_body()
        given = _decode_body(request, raw)
        if route.permits is not None:
            route.permits(caller, given)
        faults = [] if route.faults is None else route.faults(caller, given)
        body = (route.body or _NO_BODY).parse(given, "", faults)
        for field in route.path_fields:
            params[field.name] = field.kind.parse(params[field.name], field.name, faults)
        query = parse_query(request.scope["query_string"], route.query, faults)
        key = request.header(b"idempotency-key") if route.method == "POST" else None
        key = idempotency.read_key(key, faults)
        if faults:
            raise ValidationFailed(faults)
        call = Call(
            services=services,
            caller=caller,
            request_id=request.id,
            params=params,
            query=query,
            body=body,
            route=route,
            path=request.path,
            idempotency_header=key,
            prefer=request.header(b"prefer"),
        )
        if route.unit is Unit.OWN:
            answer = await route.handler(call)
            return await _begun(answer) if isinstance(answer, Stream) else answer
        if route.unit is Unit.READ:
            async with services.db.read() as tx:
                call.use(tx)
                return await route.handler(call)
        answer = await services.db.transact(lambda tx: _write(route, call, tx))
        for effect in call.after_commit:
            effect()
        if route.supersedes:
            async with services.db.read() as tx:
                await hold_decisions(tx, caller.realm_id)
        return answer


class _Request:
    """The raw request, and what is known of it so far for the log."""

    __slots__ = ("_headers", "_receive", "_unread", "id", "key_id", "method", "path", "route_name",
                 "scope", "verdict")  # fmt: skip

    def __init__(self, scope: AsgiScope, receive: Receive, headers: dict[bytes, bytes]) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.route_name = "unknown"
        self.key_id: str | None = None
        self.verdict: Verdict | None = None
        self._receive = receive
        self._headers = headers
        self._unread = headers.get(b"content-length", b"0") != b"0" or (
            b"transfer-encoding" in headers
        )
        self.id = request_id(headers)

    def header(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def read_body(self) -> bytes:
        """The whole body, refused as soon as it passes the limit or comes too slowly."""
        length = self._headers.get(b"content-length", b"")
        announced = int(length[:20]) if length.isdigit() else None
        if announced is not None and announced > MAX_BODY_BYTES:
            raise _too_large()
        body = await self._chunk()
        if len(body) == announced:
            # The server cannot tell yet that nothing follows; asking again, with a timer around
            # it, would cost as much as all the rest of reading a request.
            self._unread = False
        if self._unread:
            body = await self._read_rest(body)
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        return body

    async def _read_rest(self, first: bytes) -> bytes:
        chunks = [first]
        size = len(first)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while self._unread and size <= MAX_BODY_BYTES:
                    chunks.append(await self._chunk())
                    size += len(chunks[-1])
        except TimeoutError:
            raise ApiError(
                ErrorCode.VALIDATION_ERROR, f"The body did not arrive within {_BODY_SECONDS} s."
            ) from None
        return b"".join(chunks)

    async def _chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            self._unread = False
            raise ApiError(ErrorCode.VALIDATION_ERROR, "The connection closed within the body.")
        self._unread = message.get("more_body", False)
        return message.get("body", b"")

    async def discard_rest(self) -> None:
        """Reads on after a refusal: a connection closed on unread data loses the answer."""
        if not self._unread:
            return
        size = 0
        with contextlib.suppress(TimeoutError, ApiError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while self._unread and size < _DISCARD_BYTES:
                    size += len(await self._chunk())


def _decode_body(request: _Request, raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    content_type = request.header(b"content-type")
    if content_type is not None and _JSON_TYPE.fullmatch(content_type.strip()) is None:
        raise ApiError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "Send the body as JSON with the header 'Content-Type: application/json'.",
        )
    return decode_object(raw)


async def _write(route: Route, call: Call, tx: Tx) -> Answer:
    """Effect and stored answer in one transaction: after a crash there are both, or neither."""
    call.use(tx)
    key = call.idempotency_key()
    if key is not None:
        stored = await idempotency.claim(tx, key)
        if stored is not None:
            return replay(stored)
    answer = await route.handler(call)
    assert isinstance(answer, Answer)
    if key is not None:
        kept = answer.body if answer.replay_body is None else answer.replay_body
        await idempotency.record(tx, key, answer.status, _encode(kept))
    return answer


async def _begun(stream: Stream) -> Stream:
    """The stream with its first piece made: what fails at once is still answered as an error."""
    first = await anext(stream.pieces, b"")

    async def pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in stream.pieces:
            yield piece

    return replace(stream, pieces=pieces())


def replay(stored: idempotency.StoredAnswer) -> Answer:
    return Answer(stored.status, msgspec.Raw(stored.body), headers={"Idempotent-Replayed": "true"})


def _check_scope(route: Route, caller: Caller) -> None:
    if caller.scope not in route.scopes:
        needed = " or ".join(sorted(scope.value for scope in route.scopes))
        raise ApiError(
            ErrorCode.FORBIDDEN,
            f"This needs a key of scope {needed}; this key has scope {caller.scope.value}.",
        )


def _too_large() -> ApiError:
    return ApiError(
        ErrorCode.PAYLOAD_TOO_LARGE, f"The body may have at most {MAX_BODY_BYTES // 1024} KiB."
    )


def _error(problem: ApiError, request: _Request) -> Answer:
    return Answer(problem.code.status, problem.body(request.id), headers=problem.headers)


async def _send(answer: Answer | Stream, request: _Request, send: Send) -> int:
    headers = [(b"x-request-id", request.id.encode("ascii"))]
    if request.verdict is not None:
        headers += [
            (b"ratelimit-limit", b"%d" % request.verdict.limit),
            (b"ratelimit-remaining", b"%d" % request.verdict.remaining),
            (b"ratelimit-reset", b"%d" % request.verdict.reset_seconds),
        ]
    if isinstance(answer, Stream):
        await _send_stream(answer, headers, send)
        return 200
    for name, value in answer.headers.items():
        headers.append((name.lower().encode("ascii"), value.encode("latin-1")))
    body = b""
    if answer.body is not None:
        body = _encode(answer.body)
        headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"cache-control", b"no-store"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return answer.status


async def _send_stream(stream: Stream, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    headers += [
        (b"content-type", stream.content_type.encode("ascii")),
        (b"content-disposition", f'attachment; filename="{stream.filename}"'.encode("ascii")),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for piece in stream.pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
