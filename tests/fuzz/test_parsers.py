"""Parsers of what strangers send. `make fuzz` asks each tens of thousands of times.

Each has one promise: a value that keeps the rules, or the one error that it names.
"""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar.access.model import well_formed
from bursar.api import examples
from bursar.api.routes import ROUTES
from bursar.chain import answers
from bursar.chain.answers import Unreadable
from bursar.chain.node import _Answer, _decode
from bursar.chain.refusal import error_text, kind_of, kind_of_text, of_answer
from bursar.clock import unix_milliseconds
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed
from bursar.form.cursor import decode_cursor, encode_cursor
from bursar.form.moments import parse_moment
from bursar.form.query import parse_query
from bursar.form.strict_json import MAX_NESTING, decode_object, read_any, read_plain
from bursar.hostnames import RecipientError, canonical_entry, canonical_recipient
from bursar.money import parse_cap_micros, parse_micros
from bursar.signature import service_signature
from bursar.webhooks import InvalidSignature, verify
from tests.fuzz.inputs import JSON, changed_bytes, changed_json, outcome, written
from tests.support import ADDRESS

BODIES = [route for route in ROUTES if route.body is not None]
AGENT = {"name": "é", "policy": {"dailyCap": "100.00", "allowlist": ["api.example.com"]}}
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


# Bodies ------------------------------------------------------------------------------------------


@given(raw=changed_bytes(JSON.map(written) | st.just(written(AGENT))) | st.binary(max_size=60))
@example(raw=b'{"a":' * 33 + b"1" + b"}" * 33)
@example(raw=b'{"a":1,"a":1}')
def test_a_body_is_an_object_or_invalid_json(raw: bytes):
    """Goal: whatever is taken keeps every rule, and another parser reads the same; whatever is
    refused is refused with `invalid_json`."""
    value = outcome(lambda: decode_object(raw), ApiError)
    if isinstance(value, ApiError):
        assert value.code is ErrorCode.INVALID_JSON
        return
    assert _depth(value) <= MAX_NESTING
    text = json.dumps(value, ensure_ascii=False)
    assert "\0" not in text
    text.encode()  # no half of a surrogate pair
    read = msgspec.json.decode(raw)
    if not _has_odd_number(value):
        assert read == value
    assert _keys(value) == raw_keys(raw)


@given(
    raw=changed_bytes(
        st.dictionaries(
            st.sampled_from(["amount", "memo", "é"]) | st.text(max_size=4),
            st.text(max_size=8) | st.lists(st.text(max_size=3), max_size=3) | st.none() | JSON,
        ).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    )
)
@example(raw=b'{"a":"1","a":"1"}')
@example(raw=b'{"a":{"b":"1","b":"2"}}')
@example(raw=b'{"a":true,"a":true}')
@example(raw=b'{"a":"\xed\xa0\x80"}')
@example(raw=b'{"a":"\x1f"}')
@example(raw=b'{"a":"\xff"}')
@example(raw=b'{"a":1}')
def test_what_is_read_the_quick_way_is_what_the_thorough_one_reads(raw: bytes):
    """Goal: where the quick way takes a body at all, the other takes it, and reads the same in the
    same order."""
    quick = read_plain(raw)
    if quick is not None:
        thorough = read_any(raw)
        assert quick == thorough
        assert json.dumps(quick) == json.dumps(thorough)


def test_bodies_as_callers_write_them_are_read_the_quick_way():
    """Goal: all examples of the reference, but for those with numbers or lists of objects."""
    slow = {name for name, body in examples.BODIES.items() if read_plain(written(body)) is None}
    assert slow == {"AgentChange", "Continue", "NewBudget", "BudgetChange"}


def _depth(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(_depth, value.values()), default=0)
        case list():
            return 1 + max(map(_depth, value), default=0)
        case _:
            return 0


def _has_odd_number(value: Any) -> bool:
    """Numbers that parsers read differently, and no field takes."""
    match value:
        case bool():
            return False
        case dict():
            return any(map(_has_odd_number, value.values()))
        case list():
            return any(map(_has_odd_number, value))
        case int() | float():
            return abs(value) >= 2**63 or (isinstance(value, float))
        case _:
            return False


def _keys(value: Any) -> int:
    match value:
        case dict():
            return len(value) + sum(map(_keys, value.values()))
        case list():
            return sum(map(_keys, value))
        case _:
            return 0


def raw_keys(raw: bytes) -> int:
    """How many keys are written, the same one twice included."""

    def count(pairs: list[tuple[str, Any]]) -> "Counted":
        return Counted(len(pairs) + sum(_counted(item) for _, item in pairs))

    return _counted(json.loads(raw, object_pairs_hook=count))


class Counted(int):
    pass


def _counted(value: Any) -> int:
    if isinstance(value, Counted):
        return int(value)
    return sum(map(_counted, value)) if isinstance(value, list) else 0


# To draw contents takes long, to read them does not: so each is put into the fields of every body.
@given(drawn=st.lists(st.tuples(st.integers(0, 1_000) | st.text(max_size=8), JSON), max_size=10))
def test_fields_of_any_kind_are_taken_or_named(drawn: list[tuple[int | str, Any]]):
    """Goal: a body of known fields with unknown contents never breaks its reader, and every fault
    names a place."""
    for route in BODIES:
        assert route.body is not None
        names = [*(field.name for field in route.body.fields), "x"]
        value = {at if isinstance(at, str) else names[at % len(names)]: item for at, item in drawn}
        faults: list[Fault] = []
        route.body.parse(value, "", faults)
        assert all(fault.message for fault in faults), route.path
        required = {field.name for field in route.body.fields if field.required}
        assert faults or required <= set(value), route.path


@given(raw=changed_bytes(st.sampled_from([b"limit=5&after=abc", b"metadata[a]=b&status=all"])))
def test_a_query_is_read_or_refused(raw: bytes):
    """Goal: for every list of parameters, values or faults or the one error."""
    for route in ROUTES:
        faults: list[Fault] = []
        outcome(lambda r=route, f=faults: parse_query(raw, r.query, f), ApiError)


@given(text=st.text(max_size=45) | st.datetimes().map(lambda moment: moment.isoformat()))
def test_a_moment_is_one_or_none(text: str):
    """Goal: years that the database can hold, at the millisecond."""
    moment = parse_moment(text)
    if moment is not None:
        assert moment.microsecond % 1000 == 0
        assert parse_moment(moment.isoformat()) == moment


# Amounts, recipients, keys -----------------------------------------------------------------------


@given(raw=changed_bytes(st.from_regex(r"\A[0-9]{1,14}(\.[0-9]{0,8})?\Z").map(str.encode)))
def test_an_amount_is_exact_or_none(raw: bytes):
    """Goal: digits and a point, nothing else, and not one micro-unit more or less."""
    text = raw.decode("utf-8", "replace")
    micros = parse_micros(text)
    if micros is None:
        assert parse_cap_micros(text) is None
        return
    whole, _, fraction = text.partition(".")
    assert text.isascii()
    assert f"{whole}{fraction:0<6}" == str(micros).rjust(len(whole) + 6, "0")
    assert 0 <= micros < 10**18
    assert parse_cap_micros(text) == (None if micros % 10_000 else micros)


@given(raw=changed_bytes(st.sampled_from([b"api.example.com", b"*.example.com", ADDRESS.encode()])))
def test_a_recipient_is_canonical_or_refused(raw: bytes):
    """Goal: one form, that is its own form, of plain letters."""
    text = raw.decode("utf-8", "replace")
    for canonical in (canonical_recipient, canonical_entry):
        form = outcome(lambda c=canonical: c(text), RecipientError)
        if isinstance(form, str):
            assert form.isascii()
            assert canonical(form) == form


@given(text=st.text(max_size=80))
def test_a_key_that_nobody_made_is_not_well_formed(text: str):
    """Goal: no text breaks the look at a key's form."""
    assert well_formed(text) is False or text.startswith("bur_")


# Cursors -----------------------------------------------------------------------------------------


CURSOR = encode_cursor((datetime(2026, 11, 15, tzinfo=UTC), "txn_01m7ezbewry08sd0qg725bcn73"), {})


@given(raw=changed_bytes(st.just(CURSOR.encode())), other=st.text(max_size=60))
def test_a_cursor_is_a_place_or_refused(raw: bytes, other: str):
    """Goal: nothing but `after` is named as the fault."""
    for text in (raw.decode("latin-1"), other):
        place = outcome(lambda t=text: decode_cursor(t, {}), ValidationFailed)
        if isinstance(place, ValidationFailed):
            assert place.param == "after"
        else:
            assert encode_cursor(place, {}) == text


@given(
    place=st.tuples(
        st.datetimes(
            timezones=st.just(UTC),
            min_value=datetime(1970, 1, 1),  # noqa: DTZ001 (hypothesis wants it naive)
        ),
        st.from_regex(r"\A[a-z0-9_]{1,40}\Z"),
    ),
    filters=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_a_cursor_holds_for_its_own_list_only(place: Any, filters: dict[str, str]):
    """Goal: back to the same millisecond and id, and refused with any other filter."""
    text = encode_cursor(place, filters)
    back = decode_cursor(text, filters)
    assert back[1] == place[1]
    assert 0 <= (place[0] - back[0]).total_seconds() < 0.001
    refused = outcome(lambda: decode_cursor(text, {**filters, "more": "x"}), ValidationFailed)
    assert isinstance(refused, ValidationFailed)


# Signatures --------------------------------------------------------------------------------------


def _signed(body: bytes) -> str:
    now = unix_milliseconds() // 1000
    return f"t={now},v1={service_signature(SECRET, now, body)}"


@given(body=changed_bytes(JSON.map(lambda value: written({"type": "x", "data": value}))))
def test_a_body_that_was_changed_is_refused(body: bytes):
    """Goal: one signature, one body."""
    original = written({"type": "x", "data": None})
    header = _signed(original)
    read = outcome(lambda: verify(body, header, SECRET), InvalidSignature)
    assert isinstance(read, dict) == (body == original)
    signed = outcome(lambda: verify(body, _signed(body), SECRET), InvalidSignature)
    assert isinstance(signed, dict | InvalidSignature)


@given(raw=changed_bytes(st.just(_signed(b"{}").encode())))
def test_a_header_that_was_changed_is_refused(raw: bytes):
    """Goal: whatever verifies holds the right time and the right signature."""
    header = raw.decode("latin-1")
    read = outcome(lambda: verify(b"{}", header, SECRET, 10**6), InvalidSignature)
    if isinstance(read, dict):
        times = [part.strip()[2:] for part in header.split(",") if part.strip().startswith("t=")]
        assert len(times) == 1
        assert service_signature(SECRET, int(times[0]), b"{}") in header


# What a node of the chain answers ----------------------------------------------------------------

SIGNATURE = "5" * 88
_TOKENS = [{
    "accountIndex": 1, "mint": ADDRESS, "owner": ADDRESS, "programId": ADDRESS,
    "uiTokenAmount": {"amount": "5", "decimals": 6, "uiAmountString": "0.000005"},
}]  # fmt: skip
_ACCOUNT = {
    "lamports": 1, "owner": answers.TOKEN_PROGRAM, "executable": False, "rentEpoch": 0,
    "data": [base64.b64encode(bytes(108) + b"\1" + bytes(56)).decode(), "base64"],
}  # fmt: skip
_STATUS = {
    "slot": 1, "confirmations": None, "err": None, "status": {"Ok": None},
    "confirmationStatus": "finalized",
}  # fmt: skip
READERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "blockhash": (
        answers.read_blockhash,
        {"context": {"slot": 1}, "value": {"blockhash": ADDRESS, "lastValidBlockHeight": 151}},
    ),
    "height": (answers.read_height, {"absoluteSlot": 5, "blockHeight": 4}),
    "yes_or_no": (answers.read_yes_or_no, {"context": {"slot": 1}, "value": False}),
    "statuses": (
        lambda result: answers.read_statuses(result, ["a", "b"]),
        {"context": {"slot": 1}, "value": [None, _STATUS]},
    ),
    "mentions": (
        answers.read_mentions,
        [
            {"signature": SIGNATURE, "slot": 1, "blockTime": 1, "err": None, "memo": "[3] abc"},
            {"signature": SIGNATURE, "slot": 1, "blockTime": None, "err": {"A": 1}, "memo": None},
        ],
    ),
    "transaction": (
        lambda result: answers.read_transaction(result, SIGNATURE),
        {
            "slot": 1, "blockTime": 1,
            "meta": {
                "err": None, "fee": 5000, "innerInstructions": [],
                "preBalances": [9000, 1], "postBalances": [4000, 1],
                "preTokenBalances": [], "postTokenBalances": _TOKENS,
                "loadedAddresses": {"writable": [], "readonly": []},
            },
            "transaction": {
                "signatures": [SIGNATURE],
                "message": {
                    "accountKeys": [ADDRESS, answers._MEMO_PROGRAMS[0]],
                    "instructions": [{"programIdIndex": 1, "accounts": [], "data": "3yZe7d"}],
                },
            },
        },
    ),
    "accounts": (
        lambda result: answers.read_accounts(result, 2),
        {"context": {"slot": 1}, "value": [None, _ACCOUNT]},
    ),
    "decimals": (answers.read_decimals, {"context": {"slot": 1}, "value": _ACCOUNT}),
    "time": (answers.read_time, 1_790_000_000),
    "fees": (answers.read_fees, [{"slot": 1, "prioritizationFee": 0}]),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_an_answer_of_a_node_is_read_or_unreadable(name: str, data: st.DataObject):
    """Goal: a node can say what it likes; it is understood, or `Unreadable`, and never taken for
    "no error" when the error was missing."""
    reader, valid = READERS[name]
    assert not isinstance(outcome(lambda: reader(valid), Unreadable), Unreadable)
    result = data.draw(changed_json(valid) | JSON)
    outcome(lambda: reader(result), Unreadable)


@given(err=JSON)
def test_an_answer_without_an_error_field_is_no_success(err: Any):
    """Goal: a status counts as paid only with `err: null` said in so many words."""
    for status in ({**_STATUS, "err": err}, {k: v for k, v in _STATUS.items() if k != "err"}):
        read = outcome(
            lambda s=status: answers.read_statuses({"context": {"slot": 1}, "value": [s]}, ["a"]),
            Unreadable,
        )
        if not isinstance(read, Unreadable):
            found = read[1]["a"]
            assert (found.error is None) == (status["err"] is None)


@given(raw=changed_bytes(st.just(b'{"jsonrpc":"2.0","id":1,"result":{"a":[1]}}')))
def test_bytes_from_a_node_are_an_answer_or_none(raw: bytes):
    """Goal: nothing that a node sends breaks the reader."""
    assert isinstance(_decode(raw, _Answer), _Answer | None)
    assert isinstance(_decode(raw, list[_Answer]), list | None)


@given(code=st.integers(-33000, 500), message=st.text(max_size=300), data=JSON)
def test_every_refusal_of_a_node_means_something(code: int, message: str, data: Any):
    """Goal: an error that nobody has seen before is still sorted, and its text is bounded."""
    of_answer(code, message, data)
    of_answer(-32002, message, {"err": data})
    kind_of(data)
    text = error_text(data)
    assert len(text) <= 1_000
    kind_of_text(text)


def test_what_is_fuzzed_is_all_there_is():
    """Goal: a new reader of answers gets its row here."""
    readers = {n.removeprefix("read_") for n in dir(answers) if n.startswith("read_")}
    parts = {"text", "list", "natural", "address", "hash", "context"}
    assert readers == set(READERS) | parts
