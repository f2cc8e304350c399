"""Malformed requests: always a 4xx in the error shape that names every fault, never a 5xx."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from bursar.http.call import Route
from bursar.http.codec import Field, Record
from bursar.http.query import PageSize
from bursar.http.routes import ROUTES
from tests.support import ON_CURVE, POLICY, Service, error_of, new_account, new_agent

NO_AGENT = "ag_00000000000000000000000000"
AGENT = json.dumps({"name": "agent", "policy": POLICY})
KIB = 1024


# JSON --------------------------------------------------------------------------------------------


def nested(levels: int, *, arrays: bool = False) -> bytes:
    """A body whose `metadata` makes it `levels` deep, the outermost object included."""
    left, right = ("[", "]") if arrays else ('{"a":', "}")
    core = "1" if not arrays else ""
    inside = left * (levels - 1) + core + right * (levels - 1)
    return f'{{"name":"x","metadata":{inside}}}'.encode()


INVALID_JSON: dict[str, bytes] = {
    # Encodings
    "byte order mark": b"\xef\xbb\xbf" + AGENT.encode(),
    "UTF-16 with mark": AGENT.encode("utf-16"),
    "UTF-16 little endian": AGENT.encode("utf-16-le"),
    "UTF-16 big endian": AGENT.encode("utf-16-be"),
    "UTF-32": AGENT.encode("utf-32"),
    "Latin-1": '{"name":"ü"}'.encode("latin-1"),
    "lone continuation byte": b'{"name":"\x80"}',
    "overlong slash": b'{"name":"\xc0\xaf"}',
    "overlong NUL": b'{"name":"\xc0\x80"}',
    "surrogate in UTF-8": b'{"name":"\xed\xa0\x80"}',
    "beyond U+10FFFF": b'{"name":"\xf4\x90\x80\x80"}',
    "cut off character": b'{"name":"\xe2\x82"}',
    "byte FF": b"\xff",
    "bad UTF-8 after the object": b"{}\xff",
    # Not an object
    "array": b"[]",
    "array of object": f"[{AGENT}]".encode(),
    "string": b'"text"',
    "number": b"1",
    "fraction": b"1.5",
    "null": b"null",
    "true": b"true",
    "false": b"false",
    # Nothing, or too much
    "a space": b" ",
    "white space": b" \t\r\n",
    "two objects": b"{}{}",
    "two objects on lines": b"{}\n{}",
    "text after the object": b"{} x",
    "bracket after the object": b"{}]",
    "comma after the object": b"{},",
    "NUL after the object": b"{}\0",
    "NUL before the object": b"\0{}",
    "form feed": b"\x0c{}",
    "no-break space": "\u00a0{}".encode(),
    "query string": b"name=x",
    "XML": b"<agent/>",
    "multipart": b"--x\r\n\r\n--x--",
    # Unterminated
    "open object": b"{",
    "open key": b'{"name',
    "open value": b'{"name":"x',
    "no value": b'{"name":',
    "no colon": b'{"name"}',
    "no closing brace": b'{"name":"x"',
    "open array": b'{"name":[1',
    "wrong closing": b'{"name":"x"]',
    "crossed": b'{"name":[1}]',
    "half escape": b'{"name":"\\',
    "half unicode escape": b'{"name":"\\u12',
    # Commas, comments, quotes
    "trailing comma in object": b'{"name":"x",}',
    "trailing comma in array": b'{"name":[1,]}',
    "leading comma": b'{,"name":"x"}',
    "double comma": b'{"name":"x",,"a":1}',
    "missing comma": b'{"name":"x" "a":1}',
    "comma for colon": b'{"name","x"}',
    "double colon": b'{"name"::"x"}',
    "line comment": b'{"name":"x"} // agent',
    "block comment": b'{/* agent */"name":"x"}',
    "hash comment": b'{"name":"x"} # agent',
    "single quotes": b"{'name':'x'}",
    "unquoted key": b'{name:"x"}',
    "unquoted value": b'{"name":x}',
    "number as key": b'{1:"x"}',
    "null as key": b'{null:"x"}',
    "typographic quotes": "{“name”:“x”}".encode(),
    # Strings
    "raw newline in string": b'{"name":"a\nb"}',
    "raw tab in string": b'{"name":"a\tb"}',
    "raw NUL in string": b'{"name":"a\0b"}',
    "raw U+001F in string": b'{"name":"a\x1fb"}',
    "escaped NUL": b'{"name":"a\\u0000b"}',
    "escaped NUL in key": b'{"na\\u0000me":"x"}',
    "escaped NUL deep": b'{"name":"x","metadata":{"a":["\\u0000"]}}',
    "lone high surrogate": b'{"name":"\\ud800"}',
    "lone low surrogate": b'{"name":"\\udc00"}',
    "surrogates in the wrong order": b'{"name":"\\udc00\\ud800"}',
    "high surrogate and text": b'{"name":"\\ud83dx"}',
    "lone surrogate in key": b'{"\\udfff":"x"}',
    "capital lone surrogate": b'{"name":"\\uD800"}',
    "bad escape": b'{"name":"\\x41"}',
    "octal escape": b'{"name":"\\101"}',
    "bad unicode escape": b'{"name":"\\uZZZZ"}',
    "unicode escape with sign": b'{"name":"\\u+041"}',
    # Numbers
    "NaN": b'{"name":NaN}',
    "Infinity": b'{"name":Infinity}',
    "minus Infinity": b'{"name":-Infinity}',
    "nan": b'{"name":nan}',
    "leading zero": b'{"name":01}',
    "leading plus": b'{"name":+1}',
    "bare point": b'{"name":.5}',
    "point at the end": b'{"name":5.}',
    "bare minus": b'{"name":-}',
    "bare exponent": b'{"name":1e}',
    "hexadecimal": b'{"name":0x10}',
    "underscore": b'{"name":1_000}',
    "full-width digit": '{"name":１}'.encode(),
    "True": b'{"name":True}',
    "undefined": b'{"name":undefined}',
    # Duplicate keys
    "duplicate key": b'{"name":"a","name":"b"}',
    "duplicate key, same value": b'{"name":"a","name":"a"}',
    "duplicate key in policy": b'{"policy":{"dailyCap":"1","dailyCap":"2"}}',
    "duplicate key by escape": b'{"name":"a","n\\u0061me":"b"}',
    "duplicate key in array": b'{"name":[{"a":1,"a":2}]}',
    "duplicate empty key": b'{"":1,"":2}',
    "duplicate key deep": b'{"a":{"b":{"c":{"d":1,"d":2}}}}',
    # Depth
    "33 objects": nested(33),
    "33 arrays": nested(33, arrays=True),
    "1,000 arrays": nested(1_000, arrays=True),
    "100,000 arrays": b"[" * 100_000,
    "100,000 arrays, closed": nested(100_000, arrays=True),
    "50,000 objects": b'{"a":' * 50_000,
    "50,000 objects, closed": nested(50_000),
}


@pytest.mark.parametrize("body", INVALID_JSON.values(), ids=INVALID_JSON)
async def test_what_is_not_strict_json_is_refused(service: Service, body: bytes):
    """Goal: every corner case is 400 `invalid_json`, with a sentence that says what is wrong."""
    async with await service.admin() as client:
        answer = await client.post("/v1/agents", content=body)
        error = error_of(answer, 400, "invalid_json")
        assert error["retryable"] is False
        assert len(answer.content) < 2 * KIB
        assert "sys." not in error["message"]


FINE_JSON: dict[str, str] = {
    "spaces around": f" \t\r\n{AGENT}\r\n ",
    "literal backslash u0000": AGENT.replace("agent", r"a\\u0000", 1),
    "escaped letters": AGENT.replace("agent", r"\u0061gent", 1),
    "escaped key": AGENT.replace('"name"', r'"n\u0061me"', 1),
    "escaped slash": AGENT.replace("agent", r"a\/b", 1),
    "all short escapes": AGENT.replace("agent", r"a\"\\\/\b\f\n\r\tz", 1),
    "surrogate pair": AGENT.replace("agent", r"\ud83d\ude00", 1),
    "astral character": AGENT.replace("agent", "😀", 1),
    "line separator": AGENT.replace("agent", "a\u2028b", 1),
    "noncharacter": AGENT.replace("agent", "a\uffffb", 1),
    "DEL": AGENT.replace("agent", "a\x7fb", 1),
    "100 characters": AGENT.replace("agent", "😀" * 100, 1),
    "empty metadata": AGENT[:-1] + ',"metadata":{}}',
    "metadata of every kind of text": AGENT[:-1] + r',"metadata":{"\u2028":"","x":"\\u0000"}}',
}


@pytest.mark.parametrize("body", FINE_JSON.values(), ids=FINE_JSON)
async def test_strict_json_is_taken_as_it_is_written(service: Service, body: str):
    """Goal: strictness refuses nothing that is well-formed, and keeps every character."""
    async with await service.admin() as client:
        answer = await client.post("/v1/agents", content=body.encode())
        assert answer.status_code == 201, answer.text
        assert answer.json()["data"]["name"] == json.loads(body)["name"]


NUMBERS = ["1e400", "-1e400", "1" * 5_000, "-" + "9" * 400, "1e-400", "0.1e1", "-0", "1E+2", "1.0"]


@pytest.mark.parametrize("number", NUMBERS, ids=[n[:12] for n in NUMBERS])
async def test_odd_numbers_are_refused_by_the_field_that_holds_them(service: Service, number: str):
    """Goal: no number, however large, passes for money, a name or a version."""
    async with await service.admin() as client:
        body = f'{{"name":{number},"policy":{{"dailyCap":{number},"allowlist":[{number}]}}}}'
        error = error_of(
            await client.post("/v1/agents", content=body.encode()), 400, "validation_error"
        )
        faults = {fault["param"] for fault in error["details"]}
        assert faults == {"name", "policy.dailyCap", "policy.allowlist[0]"}


async def test_nesting_is_counted_exactly(service: Service):
    """Goal: 32 levels are read (and then refused by the field), 33 are not."""
    async with await service.admin() as client:
        for arrays in (False, True):
            answer = await client.post("/v1/agents", content=nested(32, arrays=arrays))
            error_of(answer, 400, "validation_error")
            answer = await client.post("/v1/agents", content=nested(33, arrays=arrays))
            assert "32" in error_of(answer, 400, "invalid_json")["message"]
        # Brackets side by side are not deep.
        wide = json.dumps({"name": "x", "metadata": {"k": [[]] * 5_000}})
        error_of(await client.post("/v1/agents", content=wide), 400, "validation_error")


async def test_a_hostile_body_costs_little_time(service: Service):
    """Goal: no body of the allowed size holds up the process, and no answer to it is huge."""
    keys = [f'"{n:x}":1' for n in range(50_000)]
    bodies = {
        "many unknown fields": "{" + ",".join(keys) + "}",
        "a duplicate at the end": "{" + ",".join([*keys, keys[-1]]) + "}",
        "much metadata": '{"metadata":{' + ",".join(keys) + "}}",
        "many entries": '{"policy":{"allowlist":[' + ",".join(["1"] * 200_000) + "]}}",
        "a long number": '{"name":' + "9" * 500_000 + "}",
        "a long name": '{"name":"' + "x" * 500_000 + '"}',
        "a long key": '{"' + "x" * 500_000 + '":1}',
        "long entries": '{"policy":{"allowlist":["' + '","'.join(["ü" * 400] * 600) + '"]}}',
    }
    async with await service.admin() as client:
        for name, body in bodies.items():
            assert len(body.encode()) <= 512 * KIB, name
            started = asyncio.get_running_loop().time()
            answer = await client.post("/v1/agents", content=body.encode())
            seconds = asyncio.get_running_loop().time() - started
            assert answer.status_code == 400, name
            assert answer.json()["error"]["code"] in ("validation_error", "invalid_json"), name
            assert len(answer.content) < 256 * KIB, name
            # Generous: the quadratic ways of doing it took from ten seconds to minutes.
            assert seconds < 3, (name, seconds)


# Fields ------------------------------------------------------------------------------------------

BODY_ROUTES = [route for route in ROUTES if route.body is not None]
SAMPLES: dict[str, Any] = {
    "Text": "x",
    "Amount": "1.00",
    "Cap": "1.00",
    "Flag": True,
    "Recipient": "api.example.com",
    "Address": ON_CURVE,
    "Entries": ["api.example.com"],
    "EventTypes": ["agent.paused"],
    "Url": "https://example.com/hook",
    "Metadata": {"k": "v"},
    "Moment": "2099-01-01T00:00:00Z",
}
JSON_VALUES: dict[str, Any] = {
    "null": None,
    "integer": 7,
    "fraction": 1.5,
    "boolean": True,
    "string": "some text",
    "array": [{"a": []}],
    "object": {"a": [1]},
}


def route_id(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route) -> str:
    return (
        route.path.replace(":hostname", "api.example.com")
        .replace(":agentId", NO_AGENT)
        .replace(":id", NO_AGENT)
    )


def sample(field: Field) -> Any:
    kind = field.kind
    name = type(kind).__name__
    if isinstance(kind, Record):
        return {inner.name: sample(inner) for inner in kind.fields if inner.required}
    if name == "Choice":
        return kind.schema()["enum"][0]
    if name == "Whole":
        return kind.schema()["minimum"]
    return SAMPLES[name]


def body_of(record: Record) -> dict[str, Any]:
    body = {field.name: sample(field) for field in record.fields if field.required}
    # Required of all but agent keys.
    return {**body, "agentId": NO_AGENT} if record.title == "Spend" else body


def places(record: Record, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Every field at every depth, with the way to it."""
    for field in record.fields:
        yield (*path, field.name), field
        if isinstance(field.kind, Record):
            yield from places(field.kind, (*path, field.name))


def with_value(record: Record, way: tuple[str, ...], value: Any) -> dict[str, Any]:
    body = body_of(record)
    inner = body
    fields = {field.name: field for field in record.fields}
    for step in way[:-1]:
        inner = inner.setdefault(step, sample(fields[step]))
        kind = fields[step].kind
        assert isinstance(kind, Record)
        fields = {field.name: field for field in kind.fields}
    inner[way[-1]] = value
    return body


def wrong_values(field: Field) -> Iterator[tuple[str, Any, str]]:
    """(type, value, suffix of the param that is to be named) for every type that is wrong here."""
    schema = field.kind.schema()
    accepted = {schema["type"], "null"} if field.nullable else {schema["type"]}
    for name, value in JSON_VALUES.items():
        if name not in accepted:
            yield name, value, ""
    if schema["type"] == "array":
        for name, value in JSON_VALUES.items():
            if name != "string":
                good = SAMPLES[type(field.kind).__name__]
                yield f"array of {name}", [*good, value], "[1]"
    elif schema["type"] == "object" and not isinstance(field.kind, Record):
        for name, value in JSON_VALUES.items():
            if name != "string":
                yield f"object of {name}", {"fine": "x", "k": value}, ".k"


@pytest.mark.parametrize("route", BODY_ROUTES, ids=route_id)
async def test_a_wrong_type_in_any_field_is_named(service: Service, route: Route):
    """Goal: each JSON type in each field of each body is taken, or refused by that field's name."""
    record = route.body
    assert record is not None
    tried = 0
    async with await service.admin() as client:
        for way, field in places(record):
            for name, value, suffix in wrong_values(field):
                body = with_value(record, way, value)
                answer = await client.request(route.method, path_of(route), json=body)
                error = error_of(answer, 400, "validation_error")
                param = ".".join(way) + suffix
                assert error["details"][0]["param"] == error["param"], (param, name)
                assert [fault["param"] for fault in error["details"]] == [param], (param, name)
                assert param in error["details"][0]["message"], (param, name)
                tried += 1
    assert tried >= 4


# How a name is mistyped, or written where other habits rule: `daily_cap`, `DailyCap`, `DAILY_CAP`.
TYPOS: tuple[Callable[[str], str], ...] = (
    lambda name: name + "s",
    lambda name: re.sub("([A-Z])", r"_\1", name).lower(),
    lambda name: name[0].upper() + name[1:],
    lambda name: re.sub("([A-Z])", r"_\1", name).upper(),
)


@pytest.mark.parametrize("route", BODY_ROUTES, ids=route_id)
async def test_an_unknown_field_teaches_the_accepted_ones(service: Service, route: Route):
    """Goal: at every depth, the nearest name and all accepted names; a typo never passes."""
    record = route.body
    assert record is not None
    records = [((), record)] + [
        (way, field.kind) for way, field in places(record) if isinstance(field.kind, Record)
    ]
    async with await service.admin() as client:
        for way, inner in records:
            names = [field.name for field in inner.fields]
            typos = [(way_to_write(name), name) for name in names for way_to_write in TYPOS]
            for typo, meant in [("zzzzzz", None), *typos]:
                if typo in names:
                    continue
                body = with_value(record, (*way, typo), "x")
                answer = await client.request(route.method, path_of(route), json=body)
                error = error_of(answer, 400, "validation_error")
                param = ".".join((*way, typo))
                (message,) = (f["message"] for f in error["details"] if f["param"] == param)
                accepted = message.partition("Accepted fields: ")[2]
                assert [part.split(" ")[0] for part in accepted[:-1].split(", ")] == names
                nearest = message.partition("Did you mean ")[2].partition("?")[0]
                assert nearest in {".".join((*way, name)) for name in names}
                if meant:
                    assert nearest == ".".join((*way, meant))


@pytest.mark.parametrize("route", BODY_ROUTES, ids=route_id)
async def test_an_empty_body_teaches_the_whole_payload(service: Service, route: Route):
    """Goal: `{}` and no body at all name every required field, and list the others."""
    record = route.body
    assert record is not None
    required = [field.name for field in record.fields if field.required]
    if route.path.startswith("/v1/spend/"):
        required = ["agentId", *required]
    async with await service.admin() as client:
        for content in (b"", b"{}"):
            answer = await client.request(route.method, path_of(route), content=content)
            if not required:
                error_of(answer, 404, "not_found")
                continue
            error = error_of(answer, 400, "validation_error")
            assert [fault["param"] for fault in error["details"]] == required
            for field in record.fields:
                assert field.name in error["details"][0]["message"]


async def test_all_faults_of_one_request_are_reported_together(service: Service):
    """Goal: body at every depth, query, path and header in one reply; nothing hides the rest."""
    async with await service.admin() as client:
        answer = await client.post(
            "/v1/agents?verbose=1",
            json={
                "nane": "x",
                "policy": {
                    "dailyCap": 25,
                    "allowlist": ["ok.example.com", "http://x.example.com", 7, "*.com"],
                    "approvalThreshold": "1.001",
                    "blocklist": "none",
                    "frozen": True,
                },
                "metadata": {"a": 1, "": "x", "k" * 41: "v", "long": "v" * 501},
            },
            headers={b"Idempotency-Key": "ü".encode()},
        )
        error = error_of(answer, 400, "validation_error")
        assert {fault["param"] for fault in error["details"]} == {
            "name",
            "nane",
            "policy.dailyCap",
            "policy.allowlist[1]",
            "policy.allowlist[2]",
            "policy.allowlist[3]",
            "policy.approvalThreshold",
            "policy.blocklist",
            "policy.frozen",
            "metadata.a",
            "metadata.",
            "metadata." + "k" * 40,
            "metadata.long",
            "verbose",
            "Idempotency-Key",
        }
        assert error["param"] == error["details"][0]["param"]
        assert "14 more" in error["message"]
        put = await client.put("/v1/recipients/no_host", json={"address": "x", "adress": "y"})
        error = error_of(put, 400, "validation_error")
        assert [f["param"] for f in error["details"]] == ["address", "adress", "hostname"]
        key = await client.post("/v1/keys", json={"scope": "agent", "expiresAt": "tomorrow"})
        error = error_of(key, 400, "validation_error")
        assert [f["param"] for f in error["details"]] == ["agentId", "name", "expiresAt"]
        body = {"name": "k", "scope": "agent", "expiresAt": "2001-01-01T00:00:00Z"}
        error = error_of(await client.post("/v1/keys", json=body), 400, "validation_error")
        assert [f["param"] for f in error["details"]] == ["agentId", "expiresAt"]
        assert (await client.get("/v1/agents")).json()["data"] == []


LIMITS: list[tuple[dict[str, Any], str | None]] = [
    ({"name": ""}, "name"),
    ({"name": "   "}, "name"),
    ({"name": "x" * 101}, "name"),
    ({"name": " " + "x" * 100 + "\n"}, None),
    ({"metadata": {str(n): "v" for n in range(51)}}, "metadata"),
    ({"metadata": {str(n): "v" for n in range(50)}}, None),
    ({"metadata": {"k" * 40: "v" * 500}}, None),
    ({"metadata": {"k" * 41: "v"}}, "metadata." + "k" * 40),
    ({"metadata": {"k": "v" * 501}}, "metadata.k"),
    ({"policy": {**POLICY, "allowlist": [f"h{n}.example.com" for n in range(1_000)]}}, None),
    ({"policy": {**POLICY, "allowlist": ["a.example.com"] * 1_001}}, "policy.allowlist"),
    ({"policy": {**POLICY, "blocklist": ["*"] * 1_001}}, "policy.blocklist"),
    ({"policy": {**POLICY, "dailyCap": "0"}}, None),
    ({"policy": {**POLICY, "dailyCap": "0.001"}}, "policy.dailyCap"),
    ({"policy": {**POLICY, "dailyCap": "-1"}}, "policy.dailyCap"),
    ({"policy": {**POLICY, "dailyCap": "１"}}, "policy.dailyCap"),
    ({"policy": {**POLICY, "dailyCap": "1000000000000"}}, "policy.dailyCap"),
    ({"policy": {**POLICY, "perTransactionCap": None}}, None),
    ({"policy": {**POLICY, "perTransactionCap": ""}}, "policy.perTransactionCap"),
]


@pytest.mark.parametrize(("fields", "param"), LIMITS)
async def test_the_limits_of_an_agent_are_where_the_contract_puts_them(
    service: Service, fields: dict[str, Any], param: str | None
):
    """Goal: the last value inside is taken, the first outside is refused by name."""
    async with await service.admin() as client:
        body = {"name": "agent", "policy": POLICY, **fields}
        answer = await client.post("/v1/agents", json=body)
        if param is None:
            assert answer.status_code == 201, answer.text
        else:
            assert error_of(answer, 400, "validation_error")["param"] == param


# Queries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids=route_id)
async def test_unknown_and_repeated_parameters_are_refused(service: Service, route: Route):
    """Goal: on every route a parameter is known and given once, or it is named."""
    known = [field.name for field in route.query]
    body = None if route.body is None else body_of(route.body)
    async with await service.admin() as client:
        path = path_of(route)
        answer = await client.request(route.method, f"{path}?zzz=1&LIMIT=1", json=body)
        error = error_of(answer, 400, "validation_error")
        assert [fault["param"] for fault in error["details"]] == ["zzz", "LIMIT"]
        accepted = error["details"][0]["message"].partition("Accepted parameters: ")[2]
        assert accepted == f"{', '.join(known) or 'none'}."
        for name in known:
            twice = f"{path}?{name}=1&{name}=1"
            error = error_of(
                await client.request(route.method, twice, json=body), 400, "validation_error"
            )
            assert name in {fault["param"] for fault in error["details"]}
            (message,) = (
                fault["message"]
                for fault in error["details"]
                if "more than once" in fault["message"]
            )
            assert message.partition("Accepted parameters: ")[2] == f"{', '.join(known)}."


BAD_LIMITS = [
    "0",
    "-1",
    "1.5",
    "abc",
    "",
    "%20",
    "+5",
    "%2B5",
    "1e1",
    "0x5",
    "%EF%BC%95",
    "٣",
    "5%00",
    "5%0A",
    "true",
    "null",
    "99999999999999999999",
    "9" * 5000,
    "[]",
    "1,2",
]
PAGED = [(r, f.kind) for r in ROUTES for f in r.query if isinstance(f.kind, PageSize)]


@pytest.mark.parametrize(("route", "size"), PAGED, ids=[route_id(route) for route, _ in PAGED])
async def test_a_page_size_is_a_whole_number_within_its_bounds(
    service: Service, route: Route, size: PageSize
):
    """Goal: anything but 1 to the maximum is refused, and the message names the maximum."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        path = route.path
        if path.startswith("/v1/webhooks/:id"):
            hook = {"url": "https://example.com/hook", "events": ["*"]}
            made = (await client.post("/v1/webhooks", json=hook)).json()["data"]
            path = path.replace(":id", made["id"])
        path = path.replace(":id", agent["id"]).replace(":agentId", agent["id"])
        for text in [*BAD_LIMITS, str(size.most + 1)]:
            error = error_of(await client.get(f"{path}?limit={text}"), 400, "validation_error")
            assert error["param"] == "limit", text
            if "%00" not in text:
                assert str(size.most) in error["message"], text
        for text in ("1", str(size.most)):
            assert (await client.get(f"{path}?limit={text}")).status_code == 200


BAD_QUERIES = [
    "status=open",
    "status=",
    "status=active&status=active",
    "after=",
    "after=%00",
    "after=!",
    "after=AAAA",
    "after=" + "A" * 200,
    "after=" + "A" * 1001,
    "metadata=",
    "metadata=x",
    "metadata=[]",
    "metadata=null",
    "metadata={}{}",
    'metadata={"a":1}',
    'metadata={"a":"1","a":"2"}',
    "metadata[]=x",
    "metadata[a]=1&metadata[a]=2",
    "metadata[a]=1&metadata={}",
    "metadata={}&metadata={}",
    "metadata[a]=%00",
    "metadata[%00]=1",
    f"metadata[{'k' * 41}]=1",
    f"metadata[k]={'v' * 501}",
    "status[a]=active",
    "limit[]=1",
    "[a]=1",
    "=1",
    "%00=1",
    "metadata[a=1",
    "metadata.a=1",
    "Status=active",
    "%FF=1",
    "status=%FF",
    "status=%ED%A0%80",
    "&".join(f"p{n}=1" for n in range(200)),
    'metadata={"a":"\\u0000"}',
    'metadata={"a":"\\ud800"}',
    "metadata=" + "[" * 500,
]


@pytest.mark.parametrize("query", BAD_QUERIES, ids=[query[:40] for query in BAD_QUERIES])
async def test_a_malformed_query_is_refused(service: Service, query: str):
    """Goal: odd filters, encodings and NUL are 400, never ignored and never a 5xx."""
    async with await service.admin() as client:
        quoted = httpx.QueryParams(query) if '"' in query else query
        error_of(await client.get(f"/v1/agents?{quoted}"), 400, "validation_error")


async def test_a_cursor_is_refused_by_every_list_it_does_not_belong_to(service: Service):
    """Goal: cursors do not travel between lists, filters, agents, modes or tenants."""
    account = new_account()
    async with await service.admin(account=account) as client:
        agents = [await new_agent(client) for _ in range(2)]
        for agent in agents:
            for cap in ("1", "2"):
                await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"dailyCap": cap}})
        first, second = (f"/v1/agents/{agent['id']}/policies" for agent in agents)
        cursor = (await client.get(f"{first}?limit=1")).json()["nextCursor"]
        assert (await client.get(f"{first}?limit=2&after={cursor}")).status_code == 200
        async with (
            await service.admin() as stranger,
            await service.admin(account=account, mode="live") as other_mode,
        ):
            listed = (await client.get("/v1/agents?limit=1")).json()["nextCursor"]
            for asked in (
                client.get(f"{second}?after={cursor}"),
                client.get(f"/v1/agents?after={cursor}"),
                client.get(f"/v1/keys?after={cursor}"),
                client.get(f"{first}?after={listed}"),
                client.get(f"{first}?after={cursor[:-1]}"),
                client.get(f"{first}?after={cursor.swapcase()}"),
                client.get(f"/v1/agents?status=active&after={listed}"),
                client.get(f"/v1/agents?metadata[a]=1&after={listed}"),
                stranger.get(f"/v1/agents?after={listed}"),
                other_mode.get(f"/v1/agents?after={listed}"),
            ):
                assert error_of(await asked, 400, "validation_error")["param"] == "after"


# Size and content type ---------------------------------------------------------------------------


async def chunks(content: bytes, size: int = 64 * KIB) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def test_a_body_may_have_512_kib_and_not_a_byte_more(service: Service):
    """Goal: counted exactly, with a declared length and without one."""
    most = AGENT.encode().ljust(512 * KIB)
    async with await service.admin() as client:
        for content in (most, chunks(most)):
            answer = await client.post("/v1/agents", content=content)
            assert answer.status_code == 201, answer.text
        for content in (most + b" ", chunks(most + b" "), chunks(most + b" ", 1_000)):
            answer = await client.post("/v1/agents", content=content)
            assert "512 KiB" in error_of(answer, 413, "payload_too_large")["message"]
        for content in (b" " * 5_000_000, chunks(b" " * 5_000_000)):
            answer = await client.post("/v1/agents", content=content)
            error_of(answer, 413, "payload_too_large")
        assert len((await client.get("/v1/agents")).json()["data"]) == 2


@pytest.mark.parametrize(
    ("content_type", "taken"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/json;charset=UTF-8", True),
        ("Application/JSON", True),
        ("application/merge-patch+json", True),
        ("application/vnd.api+json", True),
        (None, True),
        ("text/plain", False),
        ("text/json", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("application/jsonx", False),
        ("application/json, text/plain", False),
        ("json", False),
        ("", False),
        ("*/*", False),
        ("application/xml; x=application/json", False),
    ],
)
async def test_a_declared_body_has_to_be_json(
    service: Service, content_type: str | None, taken: bool
):
    """Goal: a wrong Content-Type on a body is 415 and shows the header to send."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    async with await service.admin() as client:
        answer = await client.post("/v1/agents", content=AGENT.encode(), headers=headers)
        if taken:
            assert answer.status_code == 201, answer.text
        else:
            error = error_of(answer, 415, "unsupported_media_type")
            assert "Content-Type: application/json" in error["message"]


async def test_a_content_type_without_a_body_is_ignored(service: Service):
    """Goal: clients that always send the header are not refused for it."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        headers = {"Content-Type": "text/plain"}
        path = f"/v1/agents/{agent['id']}"
        assert (await client.get(path, headers=headers)).status_code == 200
        assert (await client.delete(path, headers=headers)).status_code == 200
        answer = await client.post("/v1/agents", headers=headers)
        error_of(answer, 400, "validation_error")


async def test_a_body_where_none_belongs(service: Service):
    """Goal: fields that nothing would read are refused, an empty object is harmless."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        path = f"/v1/agents/{agent['id']}"
        assert (await client.request("GET", path, json={})).status_code == 200
        answer = await client.request("DELETE", path, json={"reason": "x"})
        assert error_of(answer, 400, "validation_error")["param"] == "reason"
        assert (await client.get(path)).json()["data"]["status"] == "active"


# Paths and methods -------------------------------------------------------------------------------

UNKNOWN_PATHS = [
    "/",
    "/v1",
    "/v1/",
    "/v1/agents/",
    "/v1/agents//",
    "//v1/agents",
    "/v1//agents",
    "/V1/agents",
    "/v1/Agents",
    "/v2/agents",
    "/v1/agents/x/y/z",
    "/v1/nothing",
    "/v1/agents%00",
    "/v1/agents%20",
    "/v1/./agents/.",
    "/v1/agents;x=1",
    "/healthz/",
    "/docs/",
    "/openapi.yaml",
    "/.env",
    "/v1/keys/x/",
    f"/v1/agents/{NO_AGENT}/",
    f"/v1/wallets/{NO_AGENT}/balance/",
    "/%ff",
    "/v1/%C0%AF",
    "/v1/agents/..%2f..%2fetc",
    "/" + "a" * 8_000,
]


@pytest.mark.parametrize("path", UNKNOWN_PATHS, ids=[path[:40] for path in UNKNOWN_PATHS])
async def test_an_unknown_path_is_not_found(service: Service, path: str):
    """Goal: 404 in the error shape, with or without a key; a trailing slash is another path."""
    async with await service.admin() as client, service.client(None) as nobody:
        for caller in (client, nobody):
            assert (await raw(caller, "GET", path))[0] == 404
            assert (await raw(caller, "POST", path))[0] == 404


ODD_IDS = [
    "x",
    "ag_",
    "AG_00000000000000000000000000",
    "ag_0000000000000000000000000u",
    "%00",
    "%20",
    "ag_00000000000000000000000000%00",
    "ag_00000000000000000000000000%0A",
    "%F0%9F%98%80",
    "%ff",
    "'%20OR%201=1--",
    "..",
    ".",
    "%2e%2e",
    "*",
    "null",
    "a" * 5_000,
    "key_1",
    "😀",
]
BY_ID = [r for r in ROUTES if ":id" in r.path or ":agentId" in r.path]


@pytest.mark.parametrize("route", BY_ID, ids=route_id)
async def test_an_id_of_the_wrong_form_is_simply_not_found(service: Service, route: Route):
    """Goal: NUL, wrong letters, wrong length, another kind's prefix: 404 `not_found`."""
    content = b"" if route.body is None else json.dumps(body_of(route.body)).encode()
    async with await service.admin() as client:
        for text in ODD_IDS:
            quoted = text if text.isascii() else httpx.URL(f"http://h/{text}").raw_path.decode()[1:]
            path = route.path.replace(":id", quoted).replace(":agentId", quoted)
            status, _, body = await raw(client, route.method, path, content)
            assert status == 404, (text, body)
            assert json.loads(body)["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
async def test_a_wrong_method_names_the_right_ones(service: Service, path: str):
    """Goal: 405 with `Allow` on every known path, before anybody asks for a key."""
    allowed = sorted(route.method for route in ROUTES if route.path == path)
    target = path.replace(":hostname", "a.example.com").replace(":agentId", "x").replace(":id", "x")
    async with service.client(None) as nobody:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"):
            if method in allowed:
                continue
            answer = await nobody.request(method, target)
            error = error_of(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == ", ".join(allowed)
            assert all(name in error["message"] for name in allowed)
        head = await nobody.head(target)
        assert (head.status_code, head.content) == (405, b"")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"])
async def test_the_services_own_pages_are_read_only(service: Service, path: str):
    """Goal: they answer GET and HEAD without a key, and 405 to anything else, like every path."""
    async with service.client(None) as nobody:
        page = await nobody.get(path, headers={"X-Request-Id": "mine"})
        assert page.status_code == 200
        assert page.headers["x-request-id"] == "mine"
        assert "ratelimit-limit" not in page.headers
        head = await nobody.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            answer = await nobody.request(method, path)
            error_of(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == "GET, HEAD"


# Request ids -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("my-request.1:2_3", True),
        ("a", True),
        ("x" * 100, True),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", True),
        ("x" * 101, False),
        ("", False),
        ("two words", False),
        ('"quoted"', False),
        ("a{b}", False),
        ("<script>", False),
        ("a,b", False),
        ("a/b", False),
        ("ü", False),
        ("a\tb", False),
        ("%0d%0aSet-Cookie:x", False),
    ],
)
async def test_a_request_id_is_kept_if_it_is_well_formed(service: Service, given: str, kept: bool):
    """Goal: the caller's id comes back in header and error, or a fresh one of ours does."""
    async with await service.admin() as client:
        headers = {b"X-Request-Id": given.encode("latin-1")}
        good = await client.get("/v1/me", headers=headers)
        bad = await client.get("/v1/agents/x", headers=headers)
        error_of(bad, 404, "not_found")
        for answer in (good, bad):
            shown = answer.headers["x-request-id"]
            assert shown == given if kept else shown.startswith("req_")
        assert kept or good.headers["x-request-id"] != bad.headers["x-request-id"]


# Order -------------------------------------------------------------------------------------------


async def test_checks_come_in_the_order_of_the_contract(service: Service):
    """Goal: 404/405, 401, 429, 403, 413/415/400, idempotency, 404 of the object, 409."""
    account, stranger = new_account(), new_account()
    admin = await service.key(account=account, mode="live")
    read = await service.key(account=account, mode="live", scope="read")
    approver = await service.key(account=account, mode="live", scope="approver")
    bad_key = admin[:-1] + ("0" if admin[-1] != "0" else "1")
    async with (
        service.client(bad_key) as unknown,
        service.client(admin) as client,
        service.client(read) as reader,
        service.client(approver) as stopper,
        await service.admin(account=stranger) as other,
    ):
        agent = await new_agent(client)
        path = f"/v1/agents/{agent['id']}"
        foreign = f"/v1/agents/{(await new_agent(other))['id']}"
        await client.delete(path)

        # The route before the key
        error_of(await unknown.post("/v1/nothing", content=b"{"), 404, "not_found")
        error_of(await unknown.put("/v1/agents", content=b"{"), 405, "method_not_allowed")
        # The key before scope, size, type, body and object
        for content in (b"{", b" " * (512 * KIB + 1)):
            answer = await unknown.post("/v1/agents?x=1", content=content)
            error_of(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "ratelimit-limit" not in answer.headers
        error_of(await unknown.get(f"/v1/agents/{NO_AGENT}"), 401, "unauthorized")
        # The scope before size, type and body
        for content in (b"{", b'{"x":1}', b" " * (512 * KIB + 1)):
            headers = {"Content-Type": "text/plain"}
            answer = await reader.post("/v1/agents?x=1", content=content, headers=headers)
            assert "admin" in error_of(answer, 403, "forbidden")["message"]
        error_of(await reader.delete(f"/v1/agents/{NO_AGENT}"), 403, "forbidden")
        answer = await stopper.patch(f"/v1/agents/{NO_AGENT}?x=1", json={"name": 7})
        error_of(answer, 403, "forbidden")
        # Size before type before body
        big = b"{" * (512 * KIB + 1)
        headers = {"Content-Type": "text/plain"}
        answer = await client.post("/v1/agents?x=1", content=big, headers=headers)
        error_of(answer, 413, "payload_too_large")
        answer = await client.post("/v1/agents?x=1", content=b"{", headers=headers)
        error_of(answer, 415, "unsupported_media_type")
        error_of(await client.post("/v1/agents?x=1", content=b"{"), 400, "invalid_json")
        # The body before idempotency
        key = {"Idempotency-Key": "one"}
        made = await client.post("/v1/keys", json={"name": "a", "scope": "read"}, headers=key)
        assert made.status_code == 201
        answer = await client.post("/v1/keys", json={"name": 1, "scope": "read"}, headers=key)
        error_of(answer, 400, "validation_error")
        # Idempotency before the object
        body = {"name": "a", "scope": "agent", "agentId": NO_AGENT}
        answer = await client.post("/v1/keys", json=body, headers=key)
        error_of(answer, 422, "idempotency_key_reused")
        # The body before the object
        error_of(
            await client.patch(f"/v1/agents/{NO_AGENT}", json={"name": 7}), 400, "validation_error"
        )
        body = {"name": "a", "scope": "agent", "agentId": NO_AGENT}
        past = {**body, "expiresAt": "2001-01-01T00:00:00Z"}
        answer = await client.post("/v1/keys", json=past)
        assert error_of(answer, 400, "validation_error")["param"] == "expiresAt"
        error_of(await client.post("/v1/keys", json=body), 404, "not_found")
        error_of(await client.patch(path, json={"name": 7}), 400, "validation_error")
        # The object before its state
        error_of(await client.patch(foreign, json={"name": "x"}), 404, "not_found")
        error_of(await client.patch(path, json={"name": "x"}), 409, "agent_terminated")
        # The limit before the scope: refused requests count, up to the limit
        left = int((await reader.delete(path)).headers["ratelimit-remaining"])
        refused = await asyncio.gather(*(reader.delete(path) for _ in range(left)))
        assert {answer.status_code for answer in refused} == {403}
        error_of(await reader.post("/v1/agents", content=b"{"), 429, "rate_limit_exceeded")
        error_of(await reader.put("/v1/agents"), 405, "method_not_allowed")


# Below HTTP clients ------------------------------------------------------------------------------


async def raw(
    client: httpx.AsyncClient, method: str, path: str, content: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """A request whose path is sent byte for byte, which HTTP clients tidy up."""
    where = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines.append(f"Content-Length: {len(content)}")
        if "authorization" in client.headers:
            lines.append(f"Authorization: {client.headers['authorization']}")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        await writer.drain()
        async with asyncio.timeout(10):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *others = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (o.partition(":") for o in others)}
    return int(first.split(" ")[1]), headers, body


async def test_hypertext_that_no_client_sends_is_no_5xx(service: Service):
    """Goal: broken requests are refused or dropped, and the service goes on answering."""
    key = await service.key(account=new_account())
    auth = f"Authorization: Bearer {key}\r\n"
    requests = [
        b"GET /v1/me\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /v1/me HTTP/9.9\r\nHost: x\r\n\r\n",
        f"GET /v1/agents?limit=\x00 HTTP/1.1\r\nHost: x\r\n{auth}\r\n".encode(),
        f"GET /v1/\x00 HTTP/1.1\r\nHost: x\r\n{auth}\r\n".encode(),
        f"GET /v1/agents?a=\xff HTTP/1.1\r\nHost: x\r\n{auth}\r\n".encode("latin-1"),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: x\r\n\r\n".encode(),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: -1\r\n\r\n".encode(),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Transfer-Encoding: chunked\r\n\r\n"
        "zz\r\n".encode(),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 9\r\n"
        "Content-Length: 10\r\n\r\n".encode(),
        # A body that breaks off, although what came of it is an object.
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 999\r\n\r\n{AGENT}".encode(),
        f"GET /v1/me HTTP/1.1\r\nHost: x\r\n{auth}X: {'x' * 100_000}\r\n\r\n".encode(),
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization\r\n\r\n",
    ]
    where = urlsplit(service.url)
    for request in requests:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(request)
            await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(10):
                answer = await reader.read()
        except OSError:
            answer = b""  # it hung up
        finally:
            writer.close()
        assert not answer or answer.split(b" ")[1].startswith(b"4"), (request[:60], answer[:200])
    async with service.client(key) as client:
        assert (await client.get("/v1/agents")).json()["data"] == []


async def test_every_kind_of_bad_key_looks_alike(service: Service):
    """Goal: missing, malformed, mistyped, unknown and revoked keys give one and the same 401."""
    account = new_account()
    good = await service.key(account=account)
    revoked = await service.key(account=account)
    async with service.client(good) as client:
        for row in (await client.get("/v1/keys")).json()["data"]:
            if row["lastUsedAt"] is None:
                await client.delete(f"/v1/keys/{row['id']}")
                break
    values = [
        None,
        "",
        "Bearer",
        "Basic eDp5",
        good,
        f"Basic {good}",
        f"Bearer {good}x",
        f"Bearer {good[:-1]}",
        "Bearer bur_test_" + "0" * 38,
        f"Bearer {revoked}",
        f"Bearer {good} {good}",
        "Bearer " + "x" * 5_000,
    ]
    bodies: set[str] = set()
    async with service.client(None) as nobody:
        for value, path in itertools.product(values, ("/v1/me", f"/v1/agents/{NO_AGENT}")):
            headers = {} if value is None else {"Authorization": value}
            answer = await nobody.get(path, headers={**headers, "X-Request-Id": "same"})
            error_of(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            bodies.add(answer.text)
    assert len(bodies) == 1
