"""Finds the route of a request."""

from collections.abc import Collection, Sequence
from typing import Final, Generic, Protocol, TypeVar

from bursar.errors import ApiError, ErrorCode

PAGE_METHODS: Final = ("GET", "HEAD")


class Routed(Protocol):
    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...


R = TypeVar("R", bound=Routed)


class Router(Generic[R]):
    """Finds the route of a path: fixed paths in a dictionary, paths with parameters by their
    shape."""

    def __init__(self, routes: Sequence[R], pages: Collection[str]) -> None:
        self._pages = pages
        self._fixed: dict[str, dict[str, R]] = {}
        self._shaped: dict[int, list[tuple[tuple[str, ...], dict[str, R]]]] = {}
        shapes: dict[tuple[str, ...], dict[str, R]] = {}
        for route in routes:
            if ":" not in route.path:
                self._fixed.setdefault(route.path, {})[route.method] = route
                continue
            parts = tuple(route.path.split("/"))
            if parts not in shapes:
                shapes[parts] = {}
                self._shaped.setdefault(len(parts), []).append((parts, shapes[parts]))
            shapes[parts][route.method] = route

    def find(self, method: str, path: str) -> tuple[R, dict[str, str]]:
        if path in self._pages:
            raise _not_allowed(method, PAGE_METHODS)
        methods, params = self._match(path)
        route = methods.get(method)
        if route is None:
            raise _not_allowed(method, sorted(methods))
        return route, params

    def _match(self, path: str) -> tuple[dict[str, R], dict[str, str]]:
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
            ErrorCode.NOT_FOUND, "There is nothing at this path. See /docs for all paths."
        )


def _not_allowed(method: str, allowed: Sequence[str]) -> ApiError:
    listed = ", ".join(allowed)
    return ApiError(
        ErrorCode.METHOD_NOT_ALLOWED,
        f"This path takes {listed}, not {method[:20]}.",
        headers={"Allow": listed},
    )
