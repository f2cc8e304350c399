"""API keys: their form, the checksum that catches typing errors, and that they stay secret."""

import hashlib
import re
import string
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.access.model import KeyRow, NewKey, Scope, key_hash, new_secret, well_formed
from bursar.access.view import CreatedKey
from bursar.api.call import Answer, data
from bursar.config import MODES, Mode

BASE62 = string.digits + string.ascii_letters


@pytest.mark.parametrize("mode", MODES)
def test_a_new_key_has_the_form_that_scanners_look_for(mode: Mode):
    """Goal: prefix with the mode, 32 random base62 characters, 6 of checksum."""
    made = new_secret(mode)
    assert re.fullmatch(rf"bur_{mode}_[0-9A-Za-z]{{38}}", made)
    assert well_formed(made)


def test_keys_do_not_repeat_and_use_the_whole_alphabet():
    """Goal: the random part is random: no repeats, every letter turns up."""
    made = [new_secret("test") for _ in range(1_000)]
    assert len(set(made)) == 1_000
    assert {letter for key in made for letter in key[9:41]} == set(BASE62)


@pytest.mark.parametrize("mode", MODES)
def test_every_single_typing_error_is_refused(mode: Mode):
    """Goal: one character changed, dropped, doubled or swapped anywhere is refused."""
    key = new_secret(mode)
    for at, right in enumerate(key):
        for wrong in string.printable + "é０\0":
            if wrong != right:
                assert not well_formed(key[:at] + wrong + key[at + 1 :]), (at, wrong)
        assert not well_formed(key[:at] + key[at + 1 :])
        assert not well_formed(key[:at] + right + key[at:])
        swapped = key[:at] + key[at : at + 2][::-1] + key[at + 2 :]
        assert swapped == key or not well_formed(swapped)


@pytest.mark.parametrize("change", ["{}\n", " {}", "{} ", "{}0", "Bearer {}", "{}\0"])
def test_anything_around_a_key_is_refused(change: str):
    """Goal: only the bare key passes."""
    assert not well_formed(change.format(new_secret("test")))


def test_the_mode_is_part_of_the_checksum():
    """Goal: a test key cannot be turned into a live key by its prefix."""
    made = new_secret("test")
    assert not well_formed(made.replace("bur_test_", "bur_live_"))


@given(st.text(max_size=60))
def test_other_text_is_no_key(text: str):
    """Goal: no text makes the check itself fail."""
    assert not well_formed(text)
    assert not well_formed("bur_test_" + text)


def test_the_stored_form_is_a_hash_without_the_key():
    """Goal: SHA-256 of the whole key; different keys, different hashes."""
    made = new_secret("live")
    assert key_hash(made) == hashlib.sha256(made.encode()).digest()
    assert key_hash(made) != key_hash(new_secret("live"))
    assert made.encode() not in key_hash(made)


def test_a_key_is_in_no_repr():
    """Goal: logging the objects that carry a new key does not print it."""
    secret = new_secret("test")
    row = KeyRow(
        id="key_1",
        name="n",
        scope=Scope.ADMIN,
        agent_id=None,
        mode="test",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        expires_at=None,
        last_used_at=None,
        revoked_at=None,
    )
    shown = CreatedKey(
        id="key_1",
        name="n",
        scope=Scope.ADMIN,
        agent_id=None,
        mode="test",
        created_at="2026-01-01T00:00:00.000Z",
        expires_at=None,
        last_used_at=None,
        revoked_at=None,
        key=secret,
    )
    answer: Answer = data(shown, 201)
    for thing in (NewKey(row, secret), shown, answer, {"data": shown}):
        assert "key_1" in repr(thing)
        assert secret not in repr(thing)
        assert secret not in f"{thing}"
        assert secret[9:41] not in repr(thing)
