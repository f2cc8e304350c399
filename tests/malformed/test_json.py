"""Bodies that are not strict JSON, and those that are: always a 4xx, never a 5xx."""

import asyncio
import json

import pytest

from tests.malformed.support import AGENT, KIB
from tests.support import Service, error_of


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
