"""Lists that read their pages as you go: each row once, newest first."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from bursar.client.codec import read
from bursar.client.transport import AsyncTransport, Call, Transport

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page. `next_cursor`, as `after` of the same list, gives the one behind it."""

    data: tuple[T, ...]
    has_more: bool
    next_cursor: str | None


class _Pages(Generic[T]):
    def __init__(self, call: Call, item: type[T]) -> None:
        self._call = call
        self._item = item

    def _read(self, body: Any) -> Page[T]:
        rows = tuple(read(self._item, row) for row in body["data"])
        return Page(data=rows, has_more=body["hasMore"], next_cursor=body["nextCursor"])


class Pages(_Pages[T]):
    """All rows, in order: `for agent in client.agents.list(): …`. Asks nothing until then."""

    def __init__(self, transport: Transport, call: Call, item: type[T]) -> None:
        super().__init__(call, item)
        self._transport = transport

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page.data

    def page(self) -> Page[T]:
        """One request: the first page, or the one after the cursor that was given."""
        return self._transport.run(self._call, self._read)

    def pages(self) -> Iterator[Page[T]]:
        call: Call | None = self._call
        while call is not None:
            page = self._transport.run(call, self._read)
            yield page
            call = _behind(page, call)


class AsyncPages(_Pages[T]):
    """All rows, in order: `async for agent in client.agents.list(): …`. Asks nothing until then."""

    def __init__(self, transport: AsyncTransport, call: Call, item: type[T]) -> None:
        super().__init__(call, item)
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for row in page.data:
                yield row

    async def page(self) -> Page[T]:
        """One request: the first page, or the one after the cursor that was given."""
        return await self._transport.run(self._call, self._read)

    async def pages(self) -> AsyncIterator[Page[T]]:
        call: Call | None = self._call
        while call is not None:
            page = await self._transport.run(call, self._read)
            yield page
            call = _behind(page, call)


def _behind(page: Page[Any], call: Call) -> Call | None:
    """The call for the next page; None after the last."""
    if not page.has_more or page.next_cursor is None:
        return None
    return replace(call, query={**call.query, "after": page.next_cursor})
