"""One look at the console by somebody who is signed in, and what it may ask of the service.

The console has no rules of its own. Whatever it shows or changes goes through the API's routes:
their scopes, their validation, their transactions, the very same answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from bursar.access.model import Caller
from bursar.api.call import Answer, Call, Route, Services, Stream
from bursar.api.perform import check_scope, in_thread_if, perform, prepare
from bursar.console import store
from bursar.errors import ApiError, ErrorCode, of_kind

ROOT: Final = "/console"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A page: its template and what is in it."""

    template: str
    content: dict[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Sent:
    """Somewhere else, once something is done."""

    to: str


Reply = Drawn | Sent | Stream


@dataclass(slots=True, kw_only=True)
class Visit:
    services: Services
    routes: Mapping[str, Route]
    caller: Caller
    session_id: str
    request_id: str
    params: dict[str, str]
    query: dict[str, str]
    form: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    # Why the form could not be carried out; its page is then drawn again with what was typed.
    problem: ApiError | None = None

    def may(self, name: str) -> bool:
        """Whether this key's scope allows a route such as `POST /v1/keys`."""
        return self.caller.scope in self.routes[name].scopes

    def may_send(self, name: str, body: dict[str, Any]) -> bool:
        """The same, for routes that also look at what is sent."""
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
    ) -> Any:
        """What a route of the API answers, as its JSON would say it. The visit was counted against
        the key's limit when it began, so this is not counted again."""
        made = await perform(await self.prepared(name, params=params, query=query, body=body))
        answer = of_kind(made, Answer, "a stream is passed on, not looked into")
        body = msgspec.json.decode(msgspec.json.encode(answer.body))
        return body if body is None or "nextCursor" in body else body["data"]

    async def stream(self, name: str, *, query: Mapping[str, str]) -> Stream:
        made = await perform(self.prepare(name, query=query))
        return of_kind(made, Stream, "an export is a stream")

    async def prepared(self, name: str, *, body: dict[str, Any] | None, **rest: Any) -> Call:
        """As `prepare`, for a form that may be long."""
        return await in_thread_if(body is not None, lambda: self.prepare(name, body=body, **rest))

    def prepare(
        self,
        name: str,
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, str | int] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Call:
        """The call, validated and not yet made."""
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
        """A field of the form, without the blanks around it; empty when it is missing."""
        return self.form.get(name, [""])[-1].strip()

    def lines(self, name: str) -> list[str]:
        """The lines of a text area that hold something."""
        return [line.strip() for line in self.text(name).splitlines() if line.strip()]


Handler = Callable[[Visit], Awaitable[Reply]]
Mark = Callable[[Visit], Awaitable[str]]


async def newest_event(visit: Visit) -> str:
    """Nearly everything that a page shows is told of by an event."""
    async with visit.services.db.connection() as tx:
        return await store.newest_event(tx, visit.caller.realm_id, visit.caller.agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One page or form of the console."""

    method: str
    path: str
    handler: Handler
    # The API route it stands for: it counts against the limit of that route, and needs its scope.
    stands_for: str
    # What is drawn, with the problem, when the form cannot be carried out.
    again: Handler | None = None
    # Whether the key is typed into the form again, because the cookie alone must not do this.
    asks_key: bool = False
    # What tells whether the page would look different now; None: it does not renew itself.
    mark: Mark | None = None


def typed(visit: Visit, **known: str) -> dict[str, str]:
    """What goes into a form's fields: what was typed if it is shown again, else what is known."""
    if visit.problem is None:
        return known
    return {name: visit.text(name) for name in known}
