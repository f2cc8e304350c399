"""Takes every /v1 request through its steps: route, key, rate limit, scope, body, handler, answer.

No framework, because its middle layers cost more than the decision itself. The order of the
checks is the contract's: key, rate limit and scope come before the body is read.
"""

import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from bursar.access.limits import Category
from bursar.access.model import Caller
from bursar.api.call import Answer, Call, Route, Services, Stream
from bursar.api.perform import (
    SMALL_BODY_BYTES,
    check_scope,
    explain,
    in_thread,
    over_limit,
    perform,
    prepare,
)
from bursar.errors import ApiError, ErrorCode
from bursar.form.strict_json import decode_object
from bursar.http.answer import Answers
from bursar.http.exchange import Exchange
from bursar.http.request import Request
from bursar.http.router import Router

_JSON_TYPE = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.ASCII | re.IGNORECASE)
_JSON_HEADERS: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_encode = msgspec.json.Encoder().encode


class Dispatcher:
    """Answers every path but the service's own `pages`. It is told their paths only to answer a
    wrong method with 405."""

    def __init__(
        self,
        routes: Sequence[Route],
        pages: Collection[str],
        services: Services,
        answers: Answers,
    ) -> None:
        self._router = Router(routes, pages)
        self._services = services
        self._answers = answers

    async def __call__(self, exchange: Exchange) -> None:
        started = self._services.clock.monotonic_ns()
        request = Request(exchange)
        try:
            answer = await self._answer(request)
        except Exception as problem:  # noqa: BLE001 - the last line of defence
            answer = _error(explain(problem, request.id, request.route_name), request)
        if not exchange.is_complete:
            await exchange.discard()
        if isinstance(answer, Stream):
            await self._answers.stream(request, answer, _headers(request), started)
        else:
            _send(answer, request)
            self._answers.note(request, answer.status, started)

    async def _answer(self, request: Request) -> Answer | Stream:
        services = self._services
        route, params = self._router.find(request.method, request.path)
        request.route_name = route.name
        caller = await services.guard.authenticate(request.header(b"authorization"))
        request.key_id = caller.key_id
        if isinstance(route.category, Category):
            await self._count(request, caller, route.category)
        given: dict[str, Any] = {}
        is_large = False
        try:
            check_scope(route, caller)
            raw = await request.exchange.body()
            is_large = len(raw) > SMALL_BODY_BYTES
            if is_large:
                given = await in_thread(partial(_decode_body, request, raw))
            else:
                given = _decode_body(request, raw)
        finally:
            # For this route the body says which limit it counts towards. It counts even if the body
            # cannot be read.
            if callable(route.category):
                await self._count(request, caller, route.category(given))

        if is_large:
            preparing = partial(self._prepare, request, route, caller, params, given)
            call = await in_thread(preparing)
        else:
            call = self._prepare(request, route, caller, params, given)
        return await perform(call)

    def _prepare(
        self,
        request: Request,
        route: Route,
        caller: Caller,
        params: dict[str, str],
        body: dict[str, Any],
    ) -> Call:
        return prepare(
            self._services,
            route,
            caller,
            request_id=request.id,
            path=request.path,
            params=params,
            query=request.exchange.query,
            body=body,
            idempotency_header=request.header(b"idempotency-key"),
            prefer=request.header(b"prefer"),
            headers=request.headers,
        )

    async def _count(self, request: Request, caller: Caller, category: Category) -> None:
        verdict = await self._services.limiter.take(caller.key_id, category, caller.mode)
        request.verdict = verdict
        if not verdict.allowed:
            raise over_limit(category, verdict)


def _decode_body(request: Request, raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    kind = request.header(b"content-type")
    if not (kind is None or kind == "application/json" or _JSON_TYPE.fullmatch(kind.strip())):
        raise ApiError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "Send the body as JSON with the header 'Content-Type: application/json'.",
        )
    return decode_object(raw)


def _error(problem: ApiError, request: Request) -> Answer:
    return Answer(problem.code.status, problem.body(request.id), headers=problem.headers)


def _headers(request: Request) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", request.id.encode("ascii"))]
    if request.verdict is not None:
        headers += [
            (b"ratelimit-limit", b"%d" % request.verdict.limit),
            (b"ratelimit-remaining", b"%d" % request.verdict.remaining),
            (b"ratelimit-reset", b"%d" % request.verdict.reset_seconds),
        ]
    return headers


def _send(answer: Answer, request: Request) -> None:
    headers = _headers(request)
    for name, value in answer.headers.items():
        headers.append((name.lower().encode("ascii"), value.encode("latin-1")))
    body = b""
    if answer.body is not None:
        body = _encode(answer.body)
        headers += _JSON_HEADERS
    request.exchange.send(answer.status, headers, body)
