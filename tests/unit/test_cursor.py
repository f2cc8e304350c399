"""A cursor is what was handed out, to the letter, or nothing."""

import string
from datetime import UTC, datetime
from typing import Any

import pytest

from bursar.errors import ValidationFailed
from bursar.form.cursor import decode_cursor, encode_cursor

PLACES = [
    (datetime(2026, 11, 15, 9, 30, 0, 123_000, tzinfo=UTC), "txn_01m7ezbewry08sd0qg725bcn73"),
    # Ids of every length modulo three: base64 ends differently for each.
    (datetime(2026, 11, 15, tzinfo=UTC), "api.example.com"),
    (datetime(1970, 1, 1, tzinfo=UTC), "12"),
    (datetime(2026, 11, 15, tzinfo=UTC), "7"),
]
BOUND: dict[str, Any] = {"status": "active", "": ["/v1/agents", 1, None]}
LETTERS = string.ascii_letters + string.digits + "-_=+/ \n\0é"


def refused(text: str) -> bool:
    with pytest.raises(ValidationFailed) as problem:
        decode_cursor(text, BOUND)
    return problem.value.param == "after"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_a_changed_cursor_is_refused(place: tuple[datetime, str]):
    """Goal: whichever character is changed, cut, put in or added, it is no cursor any more."""
    cursor = encode_cursor(place, BOUND)
    assert decode_cursor(cursor, BOUND) == place
    for at, was in enumerate(cursor):
        for letter in LETTERS:
            if letter != was:
                assert refused(cursor[:at] + letter + cursor[at + 1 :]), (at, letter)
        assert refused(cursor[:at])
        assert refused(cursor[at + 1 :])
        assert refused(cursor[:at] + cursor[at + 1 :])
    for more in (*LETTERS, "==", "AA", "AAA", "AAAA", cursor):
        assert refused(cursor + more), more
        assert refused(more + cursor), more
