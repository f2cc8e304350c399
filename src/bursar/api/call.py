"""What a route is, what a handler is given, and what it gives back."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Required, TypedDict, TypeVar, Unpack

import msgspec

from bursar.access.guard import Guard
from bursar.access.idempotency import fingerprint
from bursar.access.limits import Category, Limiter
from bursar.access.model import Caller, IdempotencyKey, Scope
from bursar.api.once import Once
from bursar.chain.port import Chain
from bursar.clock import Clock
from bursar.config import Config, Mode
from bursar.custody.vault import Vault
from bursar.db import Database, Tx
from bursar.errors import ApiError, ErrorCode, Fault, present
from bursar.form.cursor import Place, encode_cursor
from bursar.form.kinds import Text
from bursar.form.query import PageSize
from bursar.form.record import Field, Record
from bursar.policy.cache import PolicyCache
from bursar.purchase.buy import Buyer
from bursar.purchase.model import PurchaseRow
from bursar.recipient.resolve import Directory
from bursar.settlement.faucet import TestFunds
from bursar.spend.authorise import Authoriser
from bursar.spend.model import SpendRow
from bursar.spend.wait import Waiter

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a handler may need, made once per process."""

    config: Config
    clock: Clock
    db: Database
    guard: Guard
    limiter: Limiter
    vault: Vault
    policies: PolicyCache
    directory: Directory
    authoriser: Authoriser
    waiter: Waiter[SpendRow]
    # Until a purchase is no longer being made.
    purchase_waiter: Waiter[PurchaseRow]
    buyer: Buyer
    # By mode, for configured networks. Not yet checked to be the pinned ones: see `chain/pin.py`.
    chains: Mapping[Mode, Chain]
    # None unless the test network is the localnet.
    test_funds: TestFunds | None
    once: Once
    # Whether the disk has room for more; always true with a database that is not embedded.
    has_room: Callable[[], bool]


class Call(msgspec.Struct, kw_only=True):
    """One authenticated, validated request, as its handler gets it."""

    services: Services
    caller: Caller
    request_id: str
    params: dict[str, str]
    query: dict[str, Any]
    body: dict[str, Any]
    route: "Route"
    path: str
    # Where the requested page of a list begins; None: at the newest row.
    start: Place | None
    idempotency_header: str | None
    prefer: str | None
    headers: Mapping[bytes, bytes]
    # The mark of what the caller's page showed of that which it changes; None: nobody says.
    seen: str | None = None
    after_commit: list[Callable[[], None]] = msgspec.field(default_factory=list)
    _tx: Tx | None = None

    @property
    def tx(self) -> Tx:
        return present(self._tx, "a route that opens its own transactions asks for none")

    def use(self, tx: Tx) -> None:
        """Called at each try of the transaction. What a rolled-back try wanted done after its
        commit is forgotten."""
        self._tx = tx
        self.after_commit.clear()

    def check_seen(self, mark: str, problem: str) -> None:
        """For a handler that holds the lock on what it is about to change. Raises ApiError where
        that is no longer what the caller saw."""
        if self.seen not in (None, mark):
            raise ApiError(ErrorCode.INVALID_STATE, problem)

    def idempotency_key(self, agent_id: str = "") -> IdempotencyKey | None:
        """The caller's key for this request. For a spend, `agent_id` is the agent that spends."""
        if self.idempotency_header is None:
            return None
        return IdempotencyKey(
            self.caller.realm_id,
            self.route.name,
            agent_id,
            self.idempotency_header,
            fingerprint(self.route.method, self.path, agent_id, self.body),
        )


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: Any = None
    # What a replay of the request shows instead, because the body holds a secret.
    replay_body: Any = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """A long answer, sent piece by piece. The first piece is made before the status is sent."""

    content_type: str
    filename: str
    pieces: AsyncIterator[bytes]


Handler = Callable[[Call], Awaitable[Answer | Stream]]
H = TypeVar("H", bound=Handler)


class DatabaseUse(Enum):
    """How a route uses the database."""

    READ = "a connection, no transaction"
    REPORT = "one of the few connections for what may take long, no transaction"
    WRITE = "one transaction, committed before the answer; idempotent where it is a POST"
    OWN = "the handler sees to it itself"


@dataclass(frozen=True, kw_only=True)
class Route:
    """One endpoint: what drives its routing, scopes, limits, validation and OpenAPI."""

    method: str
    path: str
    handler: Handler
    summary: str
    description: str = ""
    tag: str
    scopes: frozenset[Scope]
    # The rate limit it counts towards, or a function that finds it from the body. None: it counts
    # towards none, and is never refused by one.
    category: Category | Callable[[dict[str, Any]], Category] | None
    database: DatabaseUse
    # Path parameters that are validated. Ids are not: a malformed id is answered 404.
    path_fields: tuple[Field, ...] = ()
    query: tuple[Field, ...] = ()
    body: Record | None = None
    # Raises 403 for bodies that this caller may not send, before anything is validated.
    permits: Callable[[Caller, dict[str, Any]], None] | None = None
    # Finds faults that depend on the caller or on settings; reported together with those of the
    # body.
    faults: Callable[[Services, Caller, dict[str, Any]], list[Fault]] | None = None
    # Request headers that only this route takes.
    headers: tuple[Field, ...] = ()
    status: int = 200
    # The struct of `data`; None when the answer has no body.
    data: Any = None
    is_list: bool = False
    # For answers that are not JSON.
    content_type: str = "application/json"
    errors: tuple[ErrorCode, ...] = ()

    @cached_property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @cached_property
    def takes_idempotency_key(self) -> bool:
        """A POST that changes nothing, such as a preview, ignores the key."""
        return self.method == "POST" and self.writes

    @property
    def page_size(self) -> int:
        """Rows of a page when the request names no limit."""
        (size,) = [field.kind for field in self.query if isinstance(field.kind, PageSize)]
        return size.default

    @cached_property
    def writes(self) -> bool:
        return self.method != "GET" and self.database in (DatabaseUse.WRITE, DatabaseUse.OWN)


class Options(TypedDict, total=False):
    """What a route has beside its method, path and summary; see `Route`."""

    description: str
    tag: str
    scopes: Required[frozenset[Scope]]
    category: Category | Callable[[dict[str, Any]], Category] | None
    database: DatabaseUse
    path_fields: tuple[Field, ...]
    query: tuple[Field, ...]
    body: Record
    permits: Callable[[Caller, dict[str, Any]], None]
    faults: Callable[[Services, Caller, dict[str, Any]], list[Fault]]
    headers: tuple[Field, ...]
    status: int
    data: Any
    is_list: bool
    content_type: str
    errors: tuple[ErrorCode, ...]


class Resource:
    """The endpoints of one resource. Each route stands above the handler that answers it:

        @endpoints.get("/v1/agents/:id", "Get an agent", scopes=ANYONE, data=Agent)
        async def get(call: Call) -> Answer: ...

    Reads count towards the rate limit `reads` if it is given, else towards `category` as well.
    """

    def __init__(self, tag: str, category: Category, reads: Category | None = None) -> None:
        self._tag = tag
        self._category = category
        self._reads = reads or category
        self.routes: list[Route] = []

    def get(self, path: str, summary: str, **options: Unpack[Options]) -> Callable[[H], H]:
        return self._route("GET", path, summary, options)

    def post(self, path: str, summary: str, **options: Unpack[Options]) -> Callable[[H], H]:
        return self._route("POST", path, summary, options)

    def put(self, path: str, summary: str, **options: Unpack[Options]) -> Callable[[H], H]:
        return self._route("PUT", path, summary, options)

    def patch(self, path: str, summary: str, **options: Unpack[Options]) -> Callable[[H], H]:
        return self._route("PATCH", path, summary, options)

    def delete(self, path: str, summary: str, **options: Unpack[Options]) -> Callable[[H], H]:
        return self._route("DELETE", path, summary, options)

    def _route(self, method: str, path: str, summary: str, options: Options) -> Callable[[H], H]:
        reads = method == "GET"
        usual: Options = {
            "tag": self._tag,
            "category": self._reads if reads else self._category,
            "database": DatabaseUse.READ if reads else DatabaseUse.WRITE,
            **options,
        }

        def add(handler: H) -> H:
            self.routes.append(
                Route(method=method, path=path, summary=summary, handler=handler, **usual)
            )
            return handler

        return add


def data(value: Any, status: int = 200, replay: Any = None) -> Answer:
    """`{"data": …}`."""
    return Answer(status, {"data": value}, None if replay is None else {"data": replay})


# Lists -------------------------------------------------------------------------------------------


class Page(msgspec.Struct, rename="camel"):
    data: list[Any]
    has_more: bool
    next_cursor: str | None


def page_fields(default: int = 20, most: int = 100) -> tuple[Field, ...]:
    return (
        Field("limit", PageSize(default, most), f"Rows per page; at most {most}."),
        Field("after", Text(1, 1_000), "`nextCursor` of the page before."),
    )


def created(row: Any) -> Place:
    """The place of a row in a list: when it was created, and its id."""
    return row.created_at, row.id


async def page(
    call: Call,
    read: Callable[[Place | None, int], Awaitable[Sequence[T]]],
    show: Callable[[T], Any],
    place: Callable[[T], Place] = created,
) -> Answer:
    """The page that the call asks for. `read` gives at most so many rows from a place on. It is
    asked for one row too many, to find out whether there are more."""
    limit = call.query.get("limit", call.route.page_size)
    rows = await read(call.start, limit + 1)
    has_more = len(rows) > limit
    shown = rows[:limit]
    cursor = None
    if has_more:
        of = bound(call.route, call.caller, call.params, call.query)
        cursor = encode_cursor(place(shown[-1]), of)
    return Answer(200, Page([show(row) for row in shown], has_more, cursor))


def bound(
    route: Route, caller: Caller, params: Mapping[str, str], query: Mapping[str, Any]
) -> dict[str, Any]:
    """What a cursor is bound to: the list, its owner and its filters."""
    # `all` is the default, so it counts as no filter.
    same = ("limit", "after") if query.get("status") != "all" else ("limit", "after", "status")
    filters = {name: value for name, value in query.items() if name not in same}
    return {**filters, "": [route.path, caller.realm_id, caller.agent_id, *params.values()]}
