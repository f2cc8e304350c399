"""Wrong, unknown and missing fields: every fault is named, and what would be right."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bursar.api.call import Route
from bursar.form.record import Field, Record
from tests.malformed.support import BODY_ROUTES, BOUGHT, SAMPLES, body_of, path_of, route_id, sample
from tests.support import POLICY, Service, error_of

JSON_VALUES: dict[str, Any] = {
    "null": None,
    "integer": 7,
    "fraction": 1.5,
    "boolean": True,
    "string": "some text",
    "array": [{"a": []}],
    "object": {"a": [1]},
}


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
            if name != schema["items"]["type"]:
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


# Every field may be left out, but not which agents are meant, or what is tried.
SAID_BY_ONE_OF_SOME = {"PATCH /v1/agents": "metadata", "POST /v1/backtests": "policy"}


@pytest.mark.parametrize("route", BODY_ROUTES, ids=route_id)
async def test_an_empty_body_teaches_the_whole_payload(service: Service, route: Route):
    """Goal: `{}` and no body at all name every required field, and list the others."""
    record = route.body
    assert record is not None
    required = [field.name for field in record.fields if field.required]
    if record.title in BOUGHT:
        required = ["agentId", *required]
    async with await service.admin() as client:
        for content in (b"", b"{}"):
            answer = await client.request(route.method, path_of(route), content=content)
            if route_id(route) in SAID_BY_ONE_OF_SOME:
                error = error_of(answer, 400, "validation_error")
                assert error["param"] == SAID_BY_ONE_OF_SOME[route_id(route)]
                continue
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
    # 8 KiB as JSON: each of these 16 pairs takes 512 bytes with its quotes, colon and comma or
    # brace; the other brace is one byte too many.
    ({"metadata": {f"{n:07}": "v" * 499 for n in range(16)}}, "metadata"),
    ({"metadata": {f"{n:07}": "v" * (499 - (n == 0)) for n in range(16)}}, None),
    ({"metadata": {str(n): "ü" * 300 for n in range(14)}}, "metadata"),
    ({"metadata": {str(n): "\u0001" * 200 for n in range(7)}}, "metadata"),
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
