"""One canonical form for recipients: the same function at write, spend and filter.

A recipient is a hostname or a Solana address. Two spellings of one host must never be two
entries, and two hosts must never look like one, so everything goes through `canonical_recipient`.
"""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import idna

from bursar_localnet import base58

MAX_HOSTNAME_OCTETS: Final = 253
# No canonical form grows out of more input than this; longer text is refused unread.
_MAX_INPUT_CHARACTERS: Final = 1_024
_CACHED_RECIPIENTS: Final = 8_192

_ADDRESS_BYTES: Final = 32
_ADDRESS = re.compile(r"[1-9A-HJ-NP-Za-km-z]{32,44}", re.ASCII)
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_BARE_LABEL = re.compile(_LABEL, re.ASCII)
_HOSTNAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})+", re.ASCII)
# `1.2.3.4`, and shorthands such as `127.1` or `0x7f.0x1`: some resolvers read them as addresses.
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_NOT_BARE = {
    "/": "a path or scheme",
    "\\": "a backslash",
    "@": "user information",
    ":": "a port, a scheme or an IPv6 address",
    "%": "a percent sign",
    "?": "a query",
    "#": "a fragment",
    "[": "a bracket",
    "]": "a bracket",
    "*": "a star",
}


class RecipientError(ValueError):
    """The text is neither a hostname nor an address; the message says why."""


class LocalNameError(RecipientError):
    """The text is `localhost`, another bare label or an IP address, `name` in canonical form. It is
    a recipient only in test mode, and only if the service lets test mode buy from it."""

    def __init__(self, problem: str, name: str) -> None:
        super().__init__(problem)
        self.name = name


@lru_cache(maxsize=_CACHED_RECIPIENTS)
def is_address(text: str) -> bool:
    """Whether `text` is base58 of exactly 32 bytes."""
    return _ADDRESS.fullmatch(text) is not None and len(base58.decode(text)) == _ADDRESS_BYTES


@lru_cache(maxsize=_CACHED_RECIPIENTS)
def canonical_recipient(text: str) -> str:
    """A hostname in lower-case A-labels, or the address itself. Raises RecipientError."""
    return text if is_address(text) else canonical_hostname(text)


def canonical_entry(text: str) -> str:
    """A policy's list entry: a recipient, `*.` and a hostname, or `*`. Raises RecipientError."""
    if text == "*":
        return text
    if text.startswith("*."):
        try:
            return "*." + canonical_hostname(text[2:])
        except LocalNameError as problem:
            # Nothing lies below such a name.
            raise RecipientError(str(problem)) from None
    return canonical_recipient(text)


def canonical_hostname(text: str) -> str:
    """Bare host only: UTS-46 with STD3 rules, lower-case A-labels, one trailing dot dropped."""
    if not text:
        raise RecipientError("is empty; give a hostname such as api.example.com")
    if len(text) > _MAX_INPUT_CHARACTERS:
        raise RecipientError(f"is longer than {MAX_HOSTNAME_OCTETS} octets")
    if (address := _ip_address(text)) is not None:
        raise LocalNameError(
            "is an IP address; give a hostname such as api.example.com (in test mode an address is"
            " taken that BURSAR_PURCHASES_ALLOW names)",
            str(address),
        )
    for character in text:
        if character <= " " or character == "\x7f":
            raise RecipientError("contains white space or a control character")
        if character in _NOT_BARE:
            raise RecipientError(f"must be a bare hostname, without {_NOT_BARE[character]}")
    try:
        name = idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
    except (idna.IDNAError, UnicodeError) as problem:
        raise RecipientError(f"is not a valid hostname: {problem}") from None
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        raise RecipientError("is an IP address or ends in a number; give a hostname")
    if len(labels) < 2 and _BARE_LABEL.fullmatch(name):
        raise LocalNameError(
            "needs at least two labels, as in api.example.com, or a full address", name
        )
    if len(name) > MAX_HOSTNAME_OCTETS:
        raise RecipientError(f"is longer than {MAX_HOSTNAME_OCTETS} octets")
    if _HOSTNAME.fullmatch(name) is None:
        raise RecipientError("is not a valid hostname")
    return name


def _ip_address(text: str) -> IPv4Address | IPv6Address | None:
    """An IPv6 address has a canonical form without its brackets; one with a zone is none."""
    try:
        return None if "%" in text else ip_address(text)
    except ValueError:
        return None
