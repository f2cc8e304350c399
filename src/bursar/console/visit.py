"""One request to the console by a signed-in person, and what it may ask of the service.

The console has no rules of its own. Whatever it shows or changes goes through the API's routes,
with their scopes, validation, transactions and answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from bursar.access.model import Caller
from bursar.api.call import Answer, Call, Route, Services, Stream
from bursar.api.perform import check_scope, in_thread, perform, prepare
from bursar.console import store
from bursar.errors import ApiError, ErrorCode, of_kind

ROOT: Final = "/console"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A page to show: its template and the template's values."""

    template: str
    content: dict[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Sent:
    """A redirect, after something was done."""

    to: str


Reply = Drawn | Sent | Stream


@dataclass(slots=True, kw_only=True)
class Visit:
    services: Services
    routes: Mapping[str, Route]
    caller: Caller
    session_id: str
    request_id: str
    # Where the browser reached the service, for what people copy from a page.
    address: str
    params: dict[str, str]
    query: dict[str, str]
    form: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    # Why the form failed; its page is then shown again with what was typed.
    problem: ApiError | None = None

    def may(self, name: str) -> bool:
        """Whether this key's scope allows a route such as `POST /v1/keys`."""
        return self.caller.scope in self.routes[name].scopes

    def may_send(self, name: str, body: dict[str, Any]) -> bool:
        """The same, for routes that also check the body."""
        route = self.routes[name]
        if self.caller.scope not in route.scopes:
            return False
        if route.permits is not None:
            try:
                route.permits(self.caller, body)
            except ApiError as problem:
                if problem.code is not ErrorCode.FORBIDDEN:
                    raise
                return False
        return True

    async def ask(
        self,
        name: str,
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: dict[str, Any] | None = None,
        seen: str | None = None,
    ) -> Any:
        """The answer of an API route, as plain JSON values. The visit itself counted towards the
        key's limit, so this does not count again. `seen`: the mark of what the page showed; nothing
        is changed where that is no longer so."""
        call = await self.prepared(name, params=params, query=query, body=body)
        call.seen = seen
        made = await perform(call)
        answer = of_kind(made, Answer, "a stream is passed on, not looked into")
        body = msgspec.json.decode(msgspec.json.encode(answer.body))
        return body if body is None or "nextCursor" in body else body["data"]

    async def stream(
        self,
        name: str,
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Stream:
        made = await perform(self.prepare(name, params=params, query=query))
        return of_kind(made, Stream, "an export is a stream")

    async def prepared(self, name: str, *, body: dict[str, Any] | None, **rest: Any) -> Call:
        """As `prepare`, in a thread, because a form may be long."""
        if body is None:
            return self.prepare(name, **rest)
        return await in_thread(lambda: self.prepare(name, body=body, **rest))

    def prepare(
        self,
        name: str,
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Call:
        """The validated call, not yet performed."""
        route = self.routes[name]
        check_scope(route, self.caller)
        path = route.path
        for key, value in (params or {}).items():
            path = path.replace(f":{key}", quote(value, safe=""))
        return prepare(
            self.services,
            route,
            self.caller,
            request_id=self.request_id,
            path=path,
            params=dict(params or {}),
            query=urlencode(query or {}).encode(),
            body=body or {},
            idempotency_header=self.text("once") or None,
            prefer=None,
        )

    def text(self, name: str) -> str:
        """A field of the form without surrounding spaces; empty when it is missing."""
        return self.form.get(name, [""])[-1].strip()

    def lines(self, name: str) -> list[str]:
        """The lines of a text area that are not empty."""
        return [line.strip() for line in self.text(name).splitlines() if line.strip()]


Handler = Callable[[Visit], Awaitable[Reply]]
Mark = Callable[[Visit], Awaitable[str]]


async def newest_event(visit: Visit) -> str:
    """The mark of most pages: nearly everything they show changes with an event."""
    async with visit.services.db.connection() as tx:
        return await store.newest_event(tx, visit.caller.realm_id, visit.caller.agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One page or form of the console."""

    method: str
    path: str
    handler: Handler
    # The API route it stands for: the page counts towards that route's limit and needs its scope.
    stands_for: str
    # Draws the page, with the problem, when the form fails.
    again: Handler | None = None
    # Whether the key must be typed into the form again, because the cookie alone is not enough.
    asks_key: bool = False
    # Gives a mark that changes when the page would; None: the page does not refresh itself.
    mark: Mark | None = None


def typed(visit: Visit, **known: str) -> dict[str, str]:
    """The values of a form's fields: what was typed if the form is shown again, else the known
    values."""
    if visit.problem is None:
        return known
    return {name: visit.text(name) for name in known}


def overtaken(visit: Visit) -> bool:
    """Whether the form failed because somebody else changed what it shows."""
    return visit.problem is not None and visit.problem.code is ErrorCode.INVALID_STATE


def seen(visit: Visit, mark: str) -> str:
    """The mark that a form hides. What is wrong with a form tells nobody what has changed
    meanwhile; only a page that says so has the mark of how it stands now."""
    return mark if visit.problem is None or overtaken(visit) else visit.text("seen")
