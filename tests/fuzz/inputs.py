"""Hostile input: what is almost right, and what was never meant to be."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

# Numbers and texts at which parsers have failed before.
_ODD = st.sampled_from([
    0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**40, -(10**40), 0.1, -0.0, 1e308, 5e-324,
    "", " ", "0", "-0", "1e3", "0x10", "NaN", "null", "\u0130", "\u212a", "\ufeff", "\U0001f4a9",
    "a" * 2_000, "%00", "../..", "\r\n", "1_000", "１２", "[5] a; [6] b",
])  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=30), _ODD
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=12,
)
_PIECES = st.sampled_from([
    b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b'"', b"\\", b"\\u0000", b"\\ud800", b"{", b"[",
    b"}", b"]", b",", b":", b"NaN", b"Infinity", b"-", b"1e999", b"9" * 400, b"[" * 40,
    b'{"a":' * 40, b'"a":1,', b" ", b"\n", b"\xef\xbb\xbf", b"//", b"0", b".",
])  # fmt: skip


@st.composite
def changed_bytes(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Something valid, with a few bytes cut out, doubled or put in."""
    raw = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.integers(0, 8)))
        piece = draw(st.one_of(_PIECES, st.binary(max_size=4), st.just(bytes(raw[start:end]) * 2)))
        raw[start:end] = piece
    return bytes(raw)


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


@st.composite
def changed_json(draw: st.DrawFn, valid: Any) -> Any:
    """Something valid, with a few of its values gone or replaced by anything."""
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(0, 3))):
        places = list(_places(value))
        if not places:
            break
        holder, name = draw(st.sampled_from(places))
        if draw(st.booleans()):
            holder[name] = draw(JSON)
        else:
            del holder[name]
    return value


def _places(value: Any) -> Any:
    """Every container and a key or index in it."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield value, name
            yield from _places(item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield value, index
            yield from _places(item)


def outcome(call: Callable[[], Any], *expected: type[Exception]) -> Any:
    """What it returns, or the expected exception; any other is a finding."""
    try:
        return call()
    except expected as problem:
        return problem
