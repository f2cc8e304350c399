"""Ids: a prefix that says what it is, then 26 time-ordered lower-case letters and digits."""

import os
import re
from typing import Final

from bursar.clock import unix_milliseconds

# Crockford's base 32: no i, l, o or u, so an id survives being read aloud.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_SHIFTS: Final = tuple(range(120, -1, -10))
_FORM: Final = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}", re.ASCII)

PREFIXES: Final = frozenset(
    {"acc", "ag", "pol", "txn", "wdr", "dep", "wh", "evt", "dlv", "key", "req"}
)


def new_id(prefix: str) -> str:
    """48 bits of Unix milliseconds, then 80 random bits: ordered by time, impossible to guess."""
    value = unix_milliseconds() << 80 | int.from_bytes(os.urandom(10))
    return f"{prefix}_{''.join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])}"


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` could have come from `new_id(prefix)`; anything else is simply not found."""
    return text.startswith(prefix + "_") and _FORM.fullmatch(text, len(prefix) + 1) is not None
