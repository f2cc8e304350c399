"""JSON in headers: base64 of it, bounded and strict, and the fields of it."""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from bursar.errors import ApiError
from bursar.form.strict_json import decode_object

Headers = Iterable[tuple[str, str]]
Object = Mapping[str, Any]

# What is read of a header. Servers and proxies refuse shorter ones than this.
MOST_HEADER_CHARACTERS: Final = 64 * 1024
_STANDARD: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}", re.ASCII)
_FOR_URLS: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}", re.ASCII)


class Malformed(ValueError):
    """It is not what the protocol says that it should be."""


def only(headers: Headers, name: str) -> str | None:
    """The value of a header that may be there once. Raises Malformed when there are more: which of
    them counts, each reader would decide for itself."""
    found = all_of(headers, name)
    if len(found) > 1:
        raise Malformed(f"{name} is there {len(found)} times")
    return found[0] if found else None


def all_of(headers: Headers, name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name.lower()]


def read_base64(text: str) -> Object:
    """The JSON object that a header holds. Raises Malformed."""
    return _read(text, _STANDARD, b"+/")


def read_base64url(text: str) -> Object:
    """The same in the alphabet for URLs. Raises Malformed."""
    return _read(text, _FOR_URLS, b"-_")


def read_json(raw: bytes) -> Object:
    """An object that has one reading only. Raises Malformed."""
    try:
        return decode_object(raw)
    except ApiError as problem:
        raise Malformed(problem.message) from None


def write_base64(value: Object) -> str:
    """Raises Malformed on what JSON cannot say, as a number beyond all bounds."""
    return base64.b64encode(_compact(value)).decode("ascii")


def write_base64url(value: Object) -> str:
    """The same in the alphabet for URLs, without padding."""
    return base64.urlsafe_b64encode(_compact(value)).decode("ascii").rstrip("=")


def text_of(made: Object, name: str) -> str:
    value = made.get(name)
    if not isinstance(value, str):
        raise Malformed(f"{name} is text")
    return value


def text_or_none(made: Object, name: str) -> str | None:
    """None also where it is empty, as the stock readers have it."""
    return None if made.get(name) is None else text_of(made, name) or None


def integer_or(made: Object, name: str, default: int) -> int:
    value = made.get(name, default)
    if type(value) is not int:
        raise Malformed(f"{name} is a whole number")
    return value


def object_of(value: Any) -> Object:
    if not isinstance(value, dict):
        raise Malformed("it is an object")
    return cast("dict[str, Any]", value)


def _read(text: str, alphabet: re.Pattern[str], altchars: bytes) -> Object:
    if len(text) > MOST_HEADER_CHARACTERS:
        raise Malformed("it is too long")
    if alphabet.fullmatch(text) is None:
        raise Malformed("it is not base64")
    bare = text.rstrip("=")
    try:
        raw = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=altchars)
    except binascii.Error:
        raise Malformed("it is not base64") from None
    return read_json(raw)


def _compact(value: Object) -> bytes:
    try:
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except ValueError as problem:
        raise Malformed(str(problem)) from None
