"""Ids: a prefix that says what it is, then 26 time-ordered lower-case letters and digits."""

import os
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal

from bursar.clock import unix_milliseconds

# Crockford's base 32: no i, l, o or u, so an id survives being read aloud.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
# A byte to the letter of its lower five bits, so that random bytes become random letters.
_LETTERS: Final = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))
_LENGTH: Final = 16
# Random parts that were drawn and not used yet. Drawn together, since asking the kernel for one
# costs more than all the rest of an id; a child process must not use those of its parent.
_drawn: list[str] = []
_AT_ONCE: Final = 256
os.register_at_fork(after_in_child=_drawn.clear)
_TIME_SHIFTS: Final = tuple(range(45, -1, -5))
_FORM: Final = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}", re.ASCII)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Prefix = Literal["acc", "ag", "pol", "txn", "wdr", "dep", "wh", "evt", "dlv", "key", "log", "req",
                 "ses", "pur", "bud", "lim", "bt", "dft"]  # fmt: skip


def new_id(prefix: Prefix) -> str:
    """48 bits of Unix milliseconds, then 80 random bits: ordered by time, impossible to guess."""
    return f"{prefix}_{_time(unix_milliseconds())}{_random()}"


def _random() -> str:
    try:
        return _drawn.pop()
    except IndexError:
        letters = os.urandom(_LENGTH * _AT_ONCE).translate(_LETTERS).decode("ascii")
        _drawn.extend(letters[at : at + _LENGTH] for at in range(0, len(letters), _LENGTH))
        return _random()


@lru_cache(maxsize=16)
def _time(milliseconds: int) -> str:
    return "".join([_ALPHABET[(milliseconds >> shift) & 31] for shift in _TIME_SHIFTS])


def made_at(id_: str) -> datetime:
    """When an id was made, to the millisecond."""
    letters = id_.rpartition("_")[2][: len(_TIME_SHIFTS)]
    milliseconds = 0
    for letter in letters:
        milliseconds = milliseconds * 32 + _ALPHABET.index(letter)
    return _EPOCH + timedelta(milliseconds=milliseconds)


def past_ids_end(prefix: Prefix, days: int) -> str:
    """Ids that were made more than so many days ago sort before this, and no others do."""
    return f"{prefix}_{_time(unix_milliseconds() - days * 86_400_000)}"


def is_id(prefix: Prefix, text: str) -> bool:
    """Whether `text` could have come from `new_id(prefix)`; anything else is simply not found."""
    return text.startswith(prefix + "_") and _FORM.fullmatch(text, len(prefix) + 1) is not None
