"""Opaque cursors: the place after the last row of a page, bound to its list and its filters."""

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
_MILLIS_BYTES: Final = 8

# (createdAt, id) of the last row of the page before.
Place = tuple[datetime, str]


def encode_cursor(place: Place, bound: Mapping[str, Any]) -> str:
    millis = (place[0] - _EPOCH) // _MILLISECOND
    row = millis.to_bytes(_MILLIS_BYTES, "big") + place[1].encode("ascii")
    return _text(_digest(row, bound) + row)


def decode_cursor(text: str, bound: Mapping[str, Any] | None) -> Place:
    """Raises ValidationFailed unless it is exactly a cursor that we made for this list with these
    filters. When the filters themselves are invalid (None), only the cursor's form is checked."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        digest, row = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        millis = int.from_bytes(row[:_MILLIS_BYTES], "big")
        place = (_EPOCH + millis * _MILLISECOND, row[_MILLIS_BYTES:].decode("ascii"))
    except (binascii.Error, ValueError, OverflowError):
        raise bad_cursor() from None
    # Base 64 can spell the same bytes in several ways; only our spelling is a cursor.
    if _text(raw) != text or not place[1] or "\0" in place[1] or len(place[1]) > 300:
        raise bad_cursor()
    if bound is not None and digest != _digest(row, bound):
        raise bad_cursor()
    return place


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _digest(row: bytes, bound: Mapping[str, Any]) -> bytes:
    canonical = msgspec.json.encode(bound, order="deterministic")
    return hashlib.sha256(row + canonical).digest()[:_DIGEST_BYTES]


def bad_cursor() -> ValidationFailed:
    return ValidationFailed(
        [
            Fault(
                "after",
                "after is not a cursor of this list with these filters: pass back nextCursor"
                " unchanged and with the same filters, or start again without it.",
            )
        ]
    )
