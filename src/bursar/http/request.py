"""A request on its way through the service."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bursar.http.exchange import Exchange
from bursar.ids import new_id

if TYPE_CHECKING:
    from bursar.access.limits import Verdict

# What a caller may send as its request id. It appears in logs and headers, so the pattern keeps out
# an API key sent by mistake.
_REQUEST_ID = re.compile(r"(?!bur_)[A-Za-z0-9._:-]{1,100}", re.ASCII)


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's own request id if it is well-formed, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(own := given.decode("latin-1")):
        return own
    return new_id("req")


class Request:
    """The request as it came, and what is known about it so far, for the log."""

    __slots__ = ("exchange", "headers", "id", "key_id", "method", "path", "route_name", "verdict")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.method = exchange.method
        self.path = exchange.path
        self.headers = exchange.headers
        self.id = request_id(exchange.headers)
        self.route_name = "unknown"
        self.key_id: str | None = None
        self.verdict: Verdict | None = None

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")
