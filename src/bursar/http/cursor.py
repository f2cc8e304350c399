"""Opaque cursors: the place after the last row of a page, bound to the filters of the list."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from bursar.errors import Fault, ValidationFailed

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DIGEST_BYTES: Final = 8

# (createdAt, id) of the last row of the page before.
Place = tuple[datetime, str]


def encode_cursor(place: Place, filters: Mapping[str, Any]) -> str:
    millis = (place[0] - _EPOCH) // _MILLISECOND
    raw = millis.to_bytes(8, "big") + _digest(filters) + place[1].encode("ascii")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decode_cursor(text: str, filters: Mapping[str, Any]) -> Place:
    """Raises ValidationFailed when it is not a cursor of this list with these filters."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        millis = int.from_bytes(raw[:8], "big")
        place = (_EPOCH + millis * _MILLISECOND, raw[16:].decode("ascii"))
    except (binascii.Error, ValueError, OverflowError):
        raise bad_cursor() from None
    if not place[1] or "\0" in place[1] or len(place[1]) > 300:
        raise bad_cursor()
    if raw[8:16] != _digest(filters):
        raise bad_cursor("after belongs to a list with other filters; start again without it.")
    return place


def _digest(filters: Mapping[str, Any]) -> bytes:
    given = {name: value for name, value in filters.items() if name not in ("limit", "after")}
    canonical = msgspec.json.encode(given, order="deterministic")
    return hashlib.sha256(canonical).digest()[:_DIGEST_BYTES]


def bad_cursor(
    message: str = "after is not a cursor of this list; pass back nextCursor unchanged.",
) -> ValidationFailed:
    return ValidationFailed([Fault("after", message)])
