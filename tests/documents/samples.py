"""How each endpoint is called with curl, Python and TypeScript, which /docs shows: out of the
OpenAPI document's examples and the methods of the clients.

`python -m tests.documents.samples` (or `make reference`) writes them again after a change.
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Final

from bursar import Bursar
from bursar.api import openapi
from bursar.client.endpoint import Download, Endpoint, Listing, Resource

FILE: Final = Path(__file__).parents[2] / "src/bursar/http/pages/samples.json"
# Only names of resources and methods are read from this client; it calls nothing.
_KEY: Final = "bur_test_00000000000000000000000000000000000000"
_COLUMNS: Final = 76
# What Python calls otherwise than the API: a reserved word, and a name that would say too little.
_PYTHON: Final = {"from": "from_", "version": "policy_version"}
Json = dict[str, Any]
Operation = tuple[str, str, Json]


def samples() -> dict[str, dict[str, str]]:
    """By operation, then by language."""
    by_route = endpoints()
    return {
        operation["operationId"]: {
            "curl": _curl(method, path, operation),
            "python": _python(*by_route[method, path], (method, path, operation)),
            "typescript": _typescript(*by_route[method, path], (method, path, operation)),
        }
        for method, path, operation in operations()
    }


def operations() -> Iterator[Operation]:
    for path, by_method in openapi.document()["paths"].items():
        for method, operation in by_method.items():
            yield method.upper(), path, operation


def body_of(operation: Json) -> Json | None:
    content: Json = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return content.get("example")


def python_arguments(endpoint: Endpoint[..., Any], operation: Operation) -> tuple[list[str], Json]:
    """Those that make the example's request. Python takes the fields of a policy one by one."""
    _, path, asked = operation
    fields = dict(body_of(asked) or {})
    fields |= fields.pop("policy", {})
    named = {_PYTHON.get(name, _snake(name)): value for name, value in fields.items()}
    known = inspect.signature(endpoint.describe).parameters
    return [*_ids(path).values()], {name: named[name] for name in known if name in named}


def _curl(method: str, path: str, operation: Json) -> str:
    address = path.format(**_ids(path))
    lines = [f'curl "$BURSAR_BASE_URL{address}"' + ("" if method == "GET" else f" -X {method}")]
    lines.append('-H "Authorization: Bearer $BURSAR_API_KEY"')
    if any(one["name"] == "Idempotency-Key" for one in operation["parameters"]):
        lines.append('-H "Idempotency-Key: $(uuidgen)"')
    body = body_of(operation)
    if body is not None:
        lines.append('-H "Content-Type: application/json"')
        lines.append("-d '" + json.dumps(body, ensure_ascii=False).replace("'", "'\\''") + "'")
    return " \\\n  ".join(lines)


def _python(resource: str, method: str, endpoint: Endpoint[..., Any], operation: Operation) -> str:
    positional, named = python_arguments(endpoint, operation)
    arguments = [json.dumps(one) for one in positional]
    arguments += [f"{name}={_python_literal(value)}" for name, value in named.items()]
    called = _call(f"client.{resource}.{method}", arguments, indent="    ")
    result = _snake(_result(endpoint))
    if isinstance(endpoint, Listing | Download):
        return f"for {result} in {called}:\n    print({result})"
    return called if endpoint.answer is NoneType else f"{result} = {called}"


def _typescript(
    resource: str, method: str, endpoint: Endpoint[..., Any], operation: Operation
) -> str:
    _, path, asked = operation
    arguments = [json.dumps(one) for one in _ids(path).values()]
    body = body_of(asked)
    if body is not None:
        arguments.append(_typescript_literal(body))
    called = _call(f"bursar.{_camel(resource)}.{_camel(method.rstrip('_'))}", arguments, "  ")
    result = _camel(_snake(_result(endpoint)))
    if isinstance(endpoint, Listing | Download):
        return f"for await (const {result} of {called}) {{\n  console.log({result});\n}}"
    return (
        f"await {called};" if endpoint.answer is NoneType else f"const {result} = await {called};"
    )


def _call(name: str, arguments: list[str], indent: str) -> str:
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _COLUMNS and "\n" not in line:
        return line
    # An object alone stands where the parenthesis opens, as a person would write it.
    if len(arguments) == 1 and arguments[0].startswith("{"):
        return line
    inside = "".join(f"{one},\n" for one in arguments)
    shifted = "".join(f"{indent}{part}" for part in inside.splitlines(keepends=True))
    return f"{name}(\n{shifted})"


def _python_literal(value: Any) -> str:
    if isinstance(value, dict):
        fields: Json = value
        pairs = (f"{json.dumps(name)}: {_python_literal(of)}" for name, of in fields.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        values: list[Any] = value
        return f"[{', '.join(_python_literal(of) for of in values)}]"
    return repr(value) if isinstance(value, bool | int | NoneType) else json.dumps(value)


def _typescript_literal(value: Any, margin: str = "") -> str:
    if isinstance(value, list):
        values: list[Any] = value
        return f"[{', '.join(_typescript_literal(of, margin) for of in values)}]"
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    fields: Json = value
    inner = f"{margin}  "
    pairs = [
        f"{name if name.isidentifier() else json.dumps(name)}: {_typescript_literal(of, inner)}"
        for name, of in fields.items()
    ]
    line = f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if margin and len(line) <= _COLUMNS - len(margin) and "\n" not in line:
        return line
    return "{\n" + "".join(f"{inner}{pair},\n" for pair in pairs) + f"{margin}}}"


def _ids(path: str) -> dict[str, str]:
    """Values for the parts of a path, those of the examples."""
    return {part: _id(path, part) for part in re.findall(r"\{(\w+)\}", path)}


def _id(path: str, part: str) -> str:
    if part == "hostname":
        return "api.example.com"
    one = path.partition("}")[0].replace("/test/", "/") + "}"
    every, _, _ = one.rpartition("/")
    paths = openapi.document()["paths"]
    operation = paths[one]["get"] if "get" in paths[one] else paths[every]["post"]
    content = next(iter(operation["responses"].values()))["content"]["application/json"]
    return content["example"]["data"][part]


def endpoints() -> dict[tuple[str, str], tuple[str, str, Endpoint[..., Any]]]:
    """(resource, method, endpoint) of a route; of several the first, which can do everything."""
    found: dict[tuple[str, str], tuple[str, str, Endpoint[..., Any]]] = {}
    for name, resource in vars(Bursar(_KEY)).items():
        if isinstance(resource, Resource):
            for method, endpoint in vars(type(resource)).items():
                if isinstance(endpoint, Endpoint):
                    route = (endpoint.method, re.sub(r":(\w+)", r"{\1}", endpoint.path))
                    found.setdefault(route, (name, method, endpoint))
    return found


def _result(endpoint: Endpoint[..., Any]) -> str:
    return "Part" if isinstance(endpoint, Download) else endpoint.answer.__name__


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def text() -> str:
    return json.dumps(samples(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
