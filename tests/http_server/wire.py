"""Requests that came over no connection."""

from collections.abc import Awaitable, Callable, Mapping

from bursar.http.exchange import Exchange


async def _at_once() -> None:
    pass


class Wire:
    """Keeps what is written. `taken` is awaited where a caller takes a piece of an answer."""

    date = b"date: today\r\n"
    is_lost = is_ending = False

    def __init__(
        self, peer: str = "192.0.2.1", taken: Callable[[], Awaitable[None]] = _at_once
    ) -> None:
        self.peer = peer
        self.written: list[bytes] = []
        self.is_aborted = False
        self._taken = taken

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True

    async def flushed(self) -> None:
        await self._taken()


def announced(wire: Wire) -> Exchange:
    """A request of whose body nothing has come."""
    headers = {b"content-length": b"5"}
    return Exchange(wire, "POST", "/", b"", headers, keep_alive=True, is_chunked=True)


def arrived(
    wire: Wire,
    method: str = "GET",
    path: str = "/",
    query: bytes = b"",
    headers: Mapping[bytes, bytes] | None = None,
) -> Exchange:
    """A whole request, without a body."""
    exchange = Exchange(wire, method, path, query, headers or {}, keep_alive=True, is_chunked=True)
    exchange.end()
    return exchange
