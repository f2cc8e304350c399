"""For receivers: is this delivery really from Bursar? Needs nothing but the standard library."""

import hmac
import json
from typing import Any, Final

from bursar.clock import unix_milliseconds
from bursar.errors import BursarError
from bursar.signature import service_signature

TOLERANCE_SECONDS: Final = 300
# A real header holds one signature per secret in force, and there are few.
_MOST_CHARACTERS: Final = 4_096
# A Unix time has ten digits, until the year 2286.
_MOST_DIGITS: Final = 12


class InvalidSignature(BursarError):
    """Answer 400 and do not process the event; the message says what did not fit."""


def verify(
    raw_body: bytes, signature_header: str | None, secret: str, tolerance: int = TOLERANCE_SECONDS
) -> dict[str, Any]:
    """The event, if `service-signature` signs this very body with this secret, not long ago.

    Pass the body as it arrived: parsed and written again it has other bytes. `tolerance` is how
    many seconds the signature may differ from this machine's clock, either way. Raises
    InvalidSignature.
    """
    timestamp, signatures = _read(signature_header or "")
    expected = service_signature(secret, timestamp, raw_body).encode()
    given = (signature.encode("utf-8", "replace") for signature in signatures)
    if not any(hmac.compare_digest(expected, signature) for signature in given):
        raise InvalidSignature("No signature fits this body and secret.")
    if abs(unix_milliseconds() / 1000 - timestamp) > tolerance:
        raise InvalidSignature(f"The signature's time is more than {tolerance} s off.")
    try:
        event = json.loads(raw_body)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise InvalidSignature("The body is not an event.")
    return event  # pyright: ignore[reportUnknownVariableType]


def _read(header: str) -> tuple[int, list[str]]:
    pairs = [part.strip().partition("=") for part in header[:_MOST_CHARACTERS].split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    signatures = [value for name, _, value in pairs if name == "v1"]
    good = len(times) == 1 and times[0].isascii() and times[0].isdigit()
    if not good or len(times[0]) > _MOST_DIGITS or not signatures:
        raise InvalidSignature("The header service-signature must be t=<unix time>,v1=<hex>.")
    return int(times[0]), signatures
