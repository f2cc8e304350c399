"""Reading a request's params, with the errors that nodes answer to bad ones."""

import base64
import binascii
from typing import Any, Final, TypeVar, cast

from solders.pubkey import Pubkey
from solders.signature import Signature

from bursar_localnet import base58
from bursar_localnet.slots import Commitment, Slots

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
PREFLIGHT_FAILURE: Final = -32002
SIGNATURE_FAILURE: Final = -32003
BLOCK_NOT_AVAILABLE: Final = -32004
UNSUPPORTED_VERSION: Final = -32015
MIN_CONTEXT_SLOT: Final = -32016

_COMMITMENTS: Final = ("processed", "confirmed", "finalized")
# The longest filter a node takes; it also bounds the quadratic base 58 decoder.
_MEMCMP_MAX_BYTES: Final = 128

Option = TypeVar("Option", bound=str)


class RpcError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


def invalid(message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, message)


class Config:
    """The options object that most methods take last. Absent and null mean the default."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def commitment(self, default: Commitment = "finalized", key: str = "commitment") -> Commitment:
        return self.choice(key, cast("tuple[Commitment, ...]", _COMMITMENTS), default)

    def reached(self, slots: Slots, key: str = "commitment") -> Commitment:
        """The requested commitment level. Raises an error if it has not reached
        `minContextSlot`."""
        commitment = self.commitment(key=key)
        self.check_min_context(slots, commitment)
        return commitment

    def choice(self, key: str, choices: tuple[Option, ...], default: Option) -> Option:
        value = self._options.get(key)
        if value is None:
            return default
        for choice in choices:
            if value == choice:
                return choice
        expected = ", ".join(f"`{choice}`" for choice in choices)
        raise invalid(f"Invalid params: unknown variant `{value}`, expected one of {expected}.")

    def flag(self, key: str) -> bool:
        return _typed(self._options.get(key), bool, "a boolean", default=False)

    def integer(self, key: str) -> int | None:
        value = self._options.get(key)
        return None if value is None else unsigned(value)

    def text(self, key: str) -> str | None:
        value = self._options.get(key)
        return None if value is None else _typed(value, str, "a string")

    def items(self, key: str) -> list[Any]:
        return _list(self._options.get(key) or [])

    def nested(self, key: str) -> "Config | None":
        value = self._options.get(key)
        return None if value is None else Config(_map(value))

    def check_min_context(self, slots: Slots, commitment: Commitment) -> None:
        wanted = self.integer("minContextSlot")
        reached = slots.at(commitment)
        if wanted is not None and reached < wanted:
            raise RpcError(
                MIN_CONTEXT_SLOT,
                "Minimum context slot has not been reached",
                {"contextSlot": reached},
            )


class Params:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def address(self, index: int) -> Pubkey:
        return to_address(self.text(index))

    def signature(self, index: int) -> bytes:
        return to_signature(self.text(index))

    def text(self, index: int) -> str:
        return _typed(self._required(index), str, "a string")

    def integer(self, index: int) -> int:
        return unsigned(self._required(index))

    def optional(self, index: int) -> Any:
        return self._values[index] if len(self._values) > index else None

    def optional_integer(self, index: int) -> int | None:
        value = self.optional(index)
        return None if value is None else unsigned(value)

    def items(self, index: int, most: int) -> list[Any]:
        values = _list(self._required(index))
        if len(values) > most:
            raise invalid(f"Too many inputs provided; max {most}")
        return values

    def config(self, index: int) -> Config:
        value = self.optional(index)
        return Config({} if value is None else _map(value))

    def filter(self, index: int) -> Config:
        """A config that must be there."""
        return Config(_map(self._required(index)))

    def _required(self, index: int) -> Any:
        if len(self._values) <= index:
            raise invalid(f"`params` should have at least {index + 1} argument(s)")
        return self._values[index]


def to_address(text: Any) -> Pubkey:
    try:
        return Pubkey.from_string(_typed(text, str, "a string"))
    except ValueError as problem:
        raise invalid(f"Invalid param: {_wrong(problem)}") from None


def to_signature(text: Any) -> bytes:
    try:
        return bytes(Signature.from_string(_typed(text, str, "a string")))
    except ValueError as problem:
        raise invalid(f"Invalid param: {_wrong(problem)}") from None


def memcmp_bytes(filter_: Config) -> bytes:
    text = filter_.text("bytes") or ""
    if len(text) > 2 * _MEMCMP_MAX_BYTES:
        raise invalid("Invalid param: encoded binary data should be less than 129 bytes")
    try:
        if filter_.text("encoding") == "base64":
            raw = base64.b64decode(text, validate=True)
        else:
            raw = base58.decode(text)
    except (binascii.Error, ValueError):
        raise invalid("Invalid param: bytes are not decodable") from None
    if len(raw) > _MEMCMP_MAX_BYTES:
        raise invalid("Invalid param: encoded binary data should be less than 129 bytes")
    return raw


def unsigned(value: Any) -> int:
    number = _typed(value, int, "u64")
    if isinstance(value, bool) or not 0 <= number < 2**64:
        raise invalid(f"Invalid params: invalid value: `{value}`, expected u64.")
    return number


T = TypeVar("T")


def _typed(value: Any, kind: type[T], expected: str, default: T | None = None) -> T:
    if value is None and default is not None:
        return default
    if not isinstance(value, kind):
        raise invalid(f"Invalid params: invalid type: {_describe(value)}, expected {expected}.")
    return value


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", _typed(value, list, "a sequence"))


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", _typed(value, dict, "a map"))


def _describe(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{str(value).lower()}`"
        case int():
            return f"integer `{value}`"
        case str():
            return f'string "{value}"'
        case list():
            return "sequence"
        case dict():
            return "map"
        case _:
            return "floating point"


def _wrong(problem: ValueError) -> str:
    return "WrongSize" if "size" in str(problem) else "Invalid"
