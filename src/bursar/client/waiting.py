"""Operations that wait for an outcome, for longer than the service lets one request wait."""

from collections.abc import Callable, Coroutine, Generator
from dataclasses import replace
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, overload

from bursar.client.endpoint import Endpoint, Request, Resource
from bursar.client.transport import AsyncTransport, Call, Transport

P = ParamSpec("P")
T = TypeVar("T")

# What the service waits at most before it answers.
_ROUND_SECONDS: Final = 30


class Waiting(Endpoint[P, T]):
    """Asks until there is an outcome, but no more often than such waits fit into the time: where
    something in between drops the wish to wait, it ends early instead of asking without a pause."""

    def __init__(
        self,
        route: str,
        answer: type[T],
        describe: Callable[Concatenate[Any, P], Request],
        is_over: Callable[[T], bool],
    ) -> None:
        super().__init__(route, answer, describe)
        self._is_over = is_over

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
        run = self._run if isinstance(resource.transport, Transport) else self._run_async
        return self.bound(resource, lambda call: run(resource.transport, call))

    def _run(self, transport: Transport, call: Call) -> T:
        rounds = self._rounds(call)
        try:
            asked = next(rounds)
            while True:
                asked = rounds.send(transport.run(asked, self.read))
        except StopIteration as done:
            return done.value

    async def _run_async(self, transport: AsyncTransport, call: Call) -> T:
        rounds = self._rounds(call)
        try:
            asked = next(rounds)
            while True:
                asked = rounds.send(await transport.run(asked, self.read))
        except StopIteration as done:
            return done.value

    def _rounds(self, call: Call) -> Generator[Call, Any, T]:
        left = int(call.patience_seconds)
        while True:
            seconds = min(left, _ROUND_SECONDS)
            left -= seconds
            headers = {**call.headers, "Prefer": f"wait={seconds}"}
            found: T = yield replace(call, headers=headers, patience_seconds=seconds)
            if left <= 0 or self._is_over(found):
                return found


def waiting(
    route: str, answer: type[T], is_over: Callable[[T], bool]
) -> Callable[[Callable[Concatenate[Any, P], Request]], Waiting[P, T]]:
    return lambda describe: Waiting(route, answer, describe, is_over)
