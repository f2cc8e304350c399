"""Takes an authenticated request to its handler. The API, the console and the MCP tools all come
through here, so that scopes, limits, validation and transactions are the same for all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec
import structlog

from bursar.access import idempotency
from bursar.access.limits import Category, Verdict
from bursar.access.model import Caller
from bursar.api.call import Answer, Call, DatabaseUse, Route, Services, Stream, bound
from bursar.chain.port import ChainOutOfReach
from bursar.db import OUT_OF_REACH, Tx
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, of_kind, unavailable
from bursar.form.cursor import Place, decode_cursor
from bursar.form.kind import LocalName
from bursar.form.query import parse_query
from bursar.form.record import Record
from bursar.purchase.order import purchase_targets

# Bodies up to this many bytes are parsed on the event loop, which takes a few milliseconds at
# worst. A body with a thousand international hostnames would take half a second.
SMALL_BODY_BYTES: Final = 2 * 1024
# One thread: large bodies wait for each other, and nobody else waits for them.
_large_bodies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")
_NO_BODY: Final = Record("Nothing", ())
# Retry-After when the disk is full.
_FULL_DISK_SECONDS: Final = 30
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger()


async def in_thread(work: Callable[[], T]) -> T:
    """Reads a large request in a thread, so that the event loop can answer others meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(_large_bodies, work)


def over_limit(category: Category, verdict: Verdict) -> ApiError:
    return ApiError(
        ErrorCode.RATE_LIMIT_EXCEEDED,
        f"This key made {verdict.limit} {category.label} requests within 60 seconds,"
        f" its limit. Try again in {verdict.reset_seconds} s.",
        headers={"Retry-After": str(verdict.reset_seconds)},
    )


def check_scope(route: Route, caller: Caller) -> None:
    if caller.scope not in route.scopes:
        needed = " or ".join(sorted(scope.value for scope in route.scopes))
        raise ApiError(
            ErrorCode.FORBIDDEN,
            f"This needs a key of scope {needed}; this key has scope {caller.scope.value}.",
        )


def prepare(
    services: Services,
    route: Route,
    caller: Caller,
    *,
    request_id: str,
    path: str,
    params: dict[str, str],
    query: bytes,
    body: dict[str, Any],
    idempotency_header: str | None,
    prefer: str | None,
    headers: Mapping[bytes, bytes] | None = None,
) -> Call:
    """The validated call; raises ValidationFailed with everything that is wrong with it."""
    if route.permits is not None:
        route.permits(caller, body)
    faults = [] if route.faults is None else route.faults(services, caller, body)
    parsed = (route.body or _NO_BODY).parse(body, "", faults)
    for field in route.path_fields:
        params[field.name] = field.kind.parse(params[field.name], field.name, faults)
    wrong_filters: list[Fault] = []
    parameters = parse_query(query, route.query, wrong_filters)
    wrong_filters = _standing(wrong_filters, services, caller)
    start = None
    if isinstance(after := parameters.get("after"), str):
        known = all(fault.param == "limit" for fault in wrong_filters)
        of = bound(route, caller, params, parameters) if known else None
        start = _start(after, of, wrong_filters)
    faults = _standing(faults, services, caller) + wrong_filters
    key = idempotency_header if route.takes_idempotency_key else None
    key = idempotency.read_key(key, faults)
    if prefer is not None:
        for header in route.headers:
            header.kind.parse(prefer, header.name, faults)
    if faults:
        raise ValidationFailed(faults)
    return Call(
        services=services,
        caller=caller,
        request_id=request_id,
        params=params,
        query=parameters,
        body=parsed,
        route=route,
        path=path,
        start=start,
        idempotency_header=key,
        prefer=prefer,
        headers=headers or {},
    )


def _standing(faults: list[Fault], services: Services, caller: Caller) -> list[Fault]:
    """Without those that are none in this mode: names that it may buy from."""
    if not any(isinstance(fault, LocalName) for fault in faults):
        return faults
    allowed = purchase_targets(services.config, caller.mode)
    return [
        fault
        for fault in faults
        if not (isinstance(fault, LocalName) and allowed.names(fault.name))
    ]


def _start(after: str, of: Mapping[str, Any] | None, faults: list[Fault]) -> Place | None:
    """Where the page begins, from the cursor of the page before."""
    try:
        return decode_cursor(after, of)
    except ValidationFailed as problem:
        faults += problem.details
        return None


async def perform(call: Call) -> Answer | Stream:
    """Runs the handler with the database access that its route declares."""
    route, services = call.route, call.services
    # What is never told to wait (a stop) needs little room, and some is kept.
    if route.writes and route.category is not None and not services.has_room():
        raise unavailable(
            "The disk of the embedded database is almost full. Nothing was changed; the operator"
            " has to make room.",
            retry_after_seconds=_FULL_DISK_SECONDS,
        )
    if route.database is DatabaseUse.OWN:
        answer = await route.handler(call)
        return await _with_first_piece(answer) if isinstance(answer, Stream) else answer
    if route.database in (DatabaseUse.READ, DatabaseUse.REPORT):
        database = services.db
        async with (
            database.connection() if route.database is DatabaseUse.READ else database.report() as tx
        ):
            call.use(tx)
            return await route.handler(call)
    answer = await services.db.transact(lambda tx: _write(route, call, tx))
    for effect in call.after_commit:
        effect()
    return answer


async def _write(route: Route, call: Call, tx: Tx) -> Answer:
    """Writes the effect and the stored answer in one transaction: after a crash both exist, or
    neither."""
    call.use(tx)
    key = call.idempotency_key()
    if key is not None:
        stored = await idempotency.claim(tx, key)
        if stored is not None:
            return _replay(stored)
    answer = of_kind(await route.handler(call), Answer, "what writes does not stream")
    if key is not None:
        kept = answer.body if answer.replay_body is None else answer.replay_body
        await idempotency.record(tx, key, answer.status, _encode(kept))
    return answer


async def _with_first_piece(stream: Stream) -> Stream:
    """Makes the first piece before the status is sent, so that an early failure is still answered
    as an error."""
    first = await anext(stream.pieces, b"")

    async def pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in stream.pieces:
            yield piece

    return replace(stream, pieces=pieces())


def _replay(stored: idempotency.StoredAnswer) -> Answer:
    return Answer(stored.status, msgspec.Raw(stored.body), headers={"Idempotent-Replayed": "true"})


def explain(problem: Exception, request_id: str, route: str) -> ApiError:
    """The error that the caller gets for an exception. It leaks nothing; the details go to the
    log."""
    if isinstance(problem, ApiError):
        return problem
    if isinstance(problem, ChainOutOfReach):
        _log.warning("chain_out_of_reach", request_id=request_id, problem=str(problem))
        return unavailable("The chain is out of reach. Try again with the same Idempotency-Key.")
    if isinstance(problem, OUT_OF_REACH):
        _log.warning(
            "database_out_of_reach",
            request_id=request_id,
            problem=f"{type(problem).__name__}: {problem}",
        )
        return unavailable(
            "The database is out of reach or too busy. Try again; with the same"
            " Idempotency-Key nothing happens twice."
        )
    _log.error("internal_error", request_id=request_id, route=route, exc_info=problem)
    return ApiError(
        ErrorCode.INTERNAL_ERROR,
        "Something went wrong on our side; quote the requestId. With the same"
        " Idempotency-Key a retry does nothing twice.",
    )
