"""Strict JSON: a body that two parsers could read differently is refused."""

import json
from typing import Any, Final, NoReturn, cast

import msgspec

from bursar.errors import ApiError, ErrorCode

MAX_BODY_BYTES: Final = 512 * 1024

MAX_NESTING: Final = 32

_MAX_INTEGER_DIGITS: Final = 30


# What nearly all bodies are made of. Numbers are not among it, which parsers read in several ways.
_Plain = str | bool | list[str] | None
_decode_plain = msgspec.json.Decoder(dict[str, _Plain | dict[str, _Plain]]).decode
_encode = msgspec.json.Encoder().encode


def decode_object(raw: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8: no duplicate keys, no NaN, no U+0000, no lone surrogate, shallow."""
    plain = read_plain(raw)
    return read_any(raw) if plain is None else plain


def read_plain(raw: bytes) -> dict[str, Any] | None:
    """The object, if it is beyond doubt; this takes a third of the time.

    Without a backslash every quotation mark begins or ends a string. So if there are as many when
    the object is written again, no string was dropped, and no key was there twice.
    """
    if b"\\" in raw:
        return None
    try:
        plain = _decode_plain(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return plain if _encode(plain).count(b'"') == raw.count(b'"') else None


def read_any(raw: bytes) -> dict[str, Any]:
    """The object, or what is wrong with it."""
    try:
        value = _decode(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise _invalid_json("The body is not UTF-8.") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as problem:
        raise _invalid_json(f"The body is not valid JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise _invalid_json("The body must be a JSON object, as in {...}.")
    # Forbidden characters can only arrive as escapes, and deep nesting needs many brackets, so few
    # bodies have to be walked.
    made = cast("dict[str, Any]", value)
    if b"\\u" in raw or raw.count(b"{") + raw.count(b"[") > MAX_NESTING:
        _inspect(made, depth=1)
    return made


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:100]!r} appears twice")
            seen.add(name)
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _integer(text: str) -> int | float:
    # Parsing a very long number takes quadratic time, and no field accepts one.
    return int(text) if len(text) <= _MAX_INTEGER_DIGITS else float(text)


_decode = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=_integer
).decode


def _inspect(value: Any, depth: int) -> None:
    if depth > MAX_NESTING:
        raise _too_deep()
    if isinstance(value, str):
        _inspect_text(value)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            _inspect_text(name)
            _inspect(item, depth + 1 if isinstance(item, dict | list) else depth)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            _inspect(item, depth + 1 if isinstance(item, dict | list) else depth)


def _inspect_text(text: str) -> None:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise _invalid_json("Strings must not contain U+0000 or half a surrogate pair.")


def _too_deep() -> ApiError:
    return _invalid_json(f"The body nests deeper than {MAX_NESTING} levels.")


def _invalid_json(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_JSON, message)
