"""docs/api.md out of the OpenAPI document, which is drawn from the route table.

`python -m tests.documents.reference` (or `make reference`) writes it again after a change.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from bursar.api import openapi

REFERENCE_FILE: Final = Path(__file__).parents[2] / "docs/api.md"
_HEADER: Final = """\
# API reference

Written by `make reference` from the table of routes that the service itself runs on. A running
service shows the same at `/docs`, with search, samples in curl, Python and TypeScript, and requests
to try; and as OpenAPI 3.1 at `/openapi.json`.

- **Keys.** Every request carries `Authorization: Bearer bur_…`. What a key may do is its
  [scope](concepts.md#accounts-modes-keys). What it counts towards: [rate limits](rate-limits.md).
- **Answers.** A single object comes as `{"data": {…}}`, a list as `{"data": […], "hasMore": …,
  "nextCursor": …}`, newest first. Pass `nextCursor` back as `after`, with the same filters.
- **Money** is a decimal string: up to 6 places for amounts, 2 for caps. Never a number.
- **Times** are ISO-8601 in UTC with milliseconds; `blockTime` is Unix seconds.
- **Errors** have [one shape](errors.md). Any request may be answered 400, 401, 413, 415, 429, 500
  or 503; the errors named below come on top. An unknown field or parameter is an error, too.
- **Repeating.** Every POST takes an `Idempotency-Key` (1 to 255 printable ASCII characters). Sent
  again with the same key, a request happens once. A preview ignores it.
- **Tracing.** Every answer has `X-Request-Id`; one that you send is kept.

`/healthz`, `/readyz`, `/metrics`, `/openapi.json` and `/docs` need no key.
"""
# What any request may be answered; the header says it once for all.
_ANY: Final = {"400", "401", "413", "415", "429", "500", "503"}


def reference() -> str:
    return "\n".join([_HEADER, *_contents(), "", *_operations(), *_shapes()]).rstrip() + "\n"


def _groups() -> dict[str, list[tuple[str, str, dict[str, Any]]]]:
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, operations in openapi.document()["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    return groups


def _contents() -> Iterator[str]:
    for tag, operations in _groups().items():
        yield f"\n**[{tag}](#{tag.lower()})**\n"
        yield "| | | |\n|---|---|---|"
        for method, path, operation in operations:
            summary: str = operation["summary"]
            yield f"| {method} | `{path}` | [{summary}](#{_anchor(summary)}) |"


def _anchor(heading: str) -> str:
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _operations() -> Iterator[str]:
    for tag, operations in _groups().items():
        yield f"## {tag}\n"
        for method, path, operation in operations:
            yield f"### {operation['summary']}\n\n`{method} {path}`\n"
            yield f"{operation['description']}\n"
            yield from _parameters(operation["parameters"])
            yield from _body(operation)
            yield from _answer(operation)


def _parameters(parameters: list[dict[str, Any]]) -> Iterator[str]:
    asked = [one for one in parameters if one["in"] == "query"]
    if asked:
        yield "| Parameter | Type | Meaning |\n|---|---|---|"
        for one in asked:
            yield f"| `{one['name']}` | {_type(one['schema'])} | {_cell(one['description'])} |"
        yield ""


def _body(operation: dict[str, Any]) -> Iterator[str]:
    if "requestBody" not in operation:
        return
    content = operation["requestBody"]["content"]["application/json"]
    yield "| Field | Type | Meaning |\n|---|---|---|"
    yield from _fields(_schema(content["schema"]), "")
    yield f"\n```json\n{_pretty(content['example'])}\n```\n"


def _fields(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, of in schema["properties"].items():
        word = ", required" if name in required else ""
        yield f"| `{prefix}{name}` | {_type(of)}{word} | {_cell(of.get('description', ''))} |"
        if "properties" in of:
            yield from _fields(of, f"{prefix}{name}.")


def _answer(operation: dict[str, Any]) -> Iterator[str]:
    status, *others = operation["responses"]
    content = operation["responses"][status].get("content", {})
    example = content.get("application/json", {}).get("example")
    kind = "" if example is not None or not content else f", `{next(iter(content))}`"
    errors = [code for code in others if code not in _ANY]
    more = f" Errors: {', '.join(_codes(operation, code) for code in errors)}." if errors else ""
    yield f"Answer: {status}{kind}{_link(content)}.{more}\n"
    if example is not None:
        yield "<details><summary>Example</summary>\n"
        yield f"```json\n{_pretty(example)}\n```\n\n</details>\n"


def _link(content: dict[str, Any]) -> str:
    if "application/json" not in content:
        return ""
    return f" with {_type(openapi.answer_data(content['application/json']['schema']))}"


def _codes(operation: dict[str, Any], status: str) -> str:
    names: str = operation["responses"][status]["description"].partition("Codes: ")[2]
    return f"{status} {names.rstrip('.')}"


def _shapes() -> Iterator[str]:
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for operations in _groups().values()
        for _, _, operation in operations
        if "requestBody" in operation
    }
    yield "## Shapes\n\nWhat answers and events hold. A field without a value is null.\n"
    for name, schema in openapi.document()["components"]["schemas"].items():
        if (
            f"#/components/schemas/{name}" in bodies
            or name == "Error"
            or not openapi.is_shape(name)
        ):
            continue
        yield f"### {name}\n"
        if "description" in schema:
            yield f"{' '.join(schema['description'].partition(chr(10) * 2)[0].split())}\n"
        if "enum" in schema:
            yield f"{_type(schema)}\n"
        else:
            yield "| Field | Type |\n|---|---|"
            for field, of in schema["properties"].items():
                yield f"| `{field}` | {_type(of)} |"
            yield ""


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    return openapi.document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    either = schema.get("oneOf") or schema.get("anyOf")
    if either:
        return " or ".join(dict.fromkeys(_type(one) for one in either))
    if schema.get("type") == "array":
        return f"array of {_type(schema['items'])}" if "items" in schema else "array"
    if isinstance(schema.get("type"), list):
        return " or ".join(schema["type"])
    bounds = f" from {schema['minimum']} to {schema['maximum']}" if "maximum" in schema else ""
    default = f", {schema['default']} if not given" if "default" in schema else ""
    return f"{schema.get('type', 'any')}{bounds}{default}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


if __name__ == "__main__":
    REFERENCE_FILE.write_text(reference(), "utf-8")
