"""JSON-RPC 2.0 itself: what a request looks like, and what goes around a result or an error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from bursar_localnet.params import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Params,
    RpcError,
    invalid,
)

# {"result": …} or {"error": …}
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    values: Any
    request: dict[str, Any]

    def params(self) -> Params:
        if self.values is None:
            return Params([])
        if not isinstance(self.values, list):
            raise invalid("Invalid params: named parameters are not supported.")
        return Params(cast("list[Any]", self.values))

    def reply(self, body: Body) -> Body | None:
        """None answers a notification, which by definition has no answer."""
        if "id" not in self.request:
            return None
        return {"jsonrpc": "2.0", **body, "id": self.request["id"]}


def decode(raw: bytes | str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RpcError(PARSE_ERROR, "Parse error") from None


def read_call(request: Any) -> Call:
    match request:
        case {"jsonrpc": "2.0", "method": str(method)}:
            return Call(method, request.get("params"), request)
        case _:
            raise RpcError(INVALID_REQUEST, "Invalid request")


def attempt(call: Call, method: Callable[[Params], Any]) -> Body:
    try:
        return {"result": method(call.params())}
    except RpcError as error:
        return {"error": error.body()}


def unreadable(error: RpcError) -> Body:
    """The answer to what has no id that could be read."""
    return {"jsonrpc": "2.0", "error": error.body(), "id": None}


def no_such_method() -> Body:
    return {"error": RpcError(METHOD_NOT_FOUND, "Method not found").body()}
