"""The types and resources of the TypeScript client, out of the OpenAPI document. Resources and
methods have the names that the Python client gives them, so a route is here once it is there.

`python -m tests.documents.typescript` (or `make reference`) writes them again after a change.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bursar import Bursar, __version__
from bursar.api import openapi
from bursar.client.endpoint import Endpoint, Resource
from bursar.mcp.toolkit import NAMES
from bursar.mcp.tools import TOOLS

FOLDER: Final = Path(__file__).parents[2] / "clients/typescript/src/generated"
_HEADER: Final = "// Written by `make reference` from the OpenAPI document. Change nothing here.\n"
# Only names of resources and methods are read from this client; it calls nothing.
_KEY: Final = "bur_test_00000000000000000000000000000000000000"
_BOUNDARIES: Final = ("from", "to", "settledFrom", "settledTo")
_COLUMNS: Final = 100
Json = dict[str, Any]


def files() -> dict[str, str]:
    return {
        "types.ts": _types(),
        "errors.ts": _errors(),
        "resources.ts": _resources(),
        "tools.ts": _tools(),
        "version.ts": f'{_HEADER}\nexport const VERSION = "{__version__}";\n',
    }


# Types --------------------------------------------------------------------------------------------


def _types() -> str:
    bodies = {
        content["schema"]["$ref"].rpartition("/")[2]
        for _, _, operation in _operations()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    }
    declared: dict[str, list[str]] = {}
    for name, schema in _schemas().items():
        if openapi.is_shape(name) and name != "Error":
            for of in schema.get("properties", {}).values():
                inner = of.get("items", of)
                if _is_record(inner):
                    declared[inner["title"]] = [*_named(inner["title"], inner, given=True)]
            declared[name] = [*_named(name, schema, given=name in bodies)]
    codes = _schemas()["Error"]["properties"]["error"]["properties"]["code"]
    declared["ErrorCode"] = [*_named("ErrorCode", codes, given=False)]
    lines = [line for lines in declared.values() for line in lines]
    return "\n".join([_HEADER, *lines, *_events()]).rstrip() + "\n"


def _named(name: str, schema: Json, *, given: bool) -> Iterator[str]:
    yield from _comment(schema.get("description"), "")
    if "properties" not in schema:
        yield from _wrapped(f"export type {name} =", _union(_alternatives(schema, given)))
        yield ""
        return
    yield f"export interface {name} {{"
    for field, of in schema["properties"].items():
        yield from _comment(of.get("description"), "  ")
        optional = "" if field in schema.get("required", ()) else "?"
        yield from _wrapped(f"  {field}{optional}:", _union(_alternatives(of, given)))
    yield "}\n"


def _events() -> Iterator[str]:
    yield "/** One delivery, by its type: what `verifyWebhook` gives. */"
    yield "export type WebhookEvent ="
    for type_, item in openapi.document()["webhooks"].items():
        schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
        of = _alternatives(schema["properties"]["data"], given=False)[0]
        yield f'  | Delivered<"{type_}", {of}>'
    yield "  ;\n"
    yield "export interface Delivered<Type extends EventType, Data> {"
    yield "  /** Tells duplicates apart. */\n  id: string;\n  type: Type;"
    yield '  createdAt: string;\n  mode: "test" | "live";\n  data: Data;\n}\n'


def _alternatives(schema: Json, given: bool) -> list[str]:
    """The types that a value may have. In what is `given` to the service, lists may be readonly and
    times may be dates."""
    if "$ref" in schema:
        return [schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        return [json.dumps(value) for value in schema["enum"]]
    either = schema.get("oneOf") or schema.get("anyOf")
    if either:
        return [kind for one in either for kind in _alternatives(one, given)]
    if isinstance(schema.get("type"), list):
        return [kind for one in schema["type"] for kind in _alternatives({"type": one}, given)]
    match schema.get("type"):
        case "integer" | "number":
            return ["number"]
        case "array":
            item = _union(_alternatives(schema["items"], given))
            item = f"({item})" if " | " in item else item
            return [f"readonly {item}[]" if given else f"{item}[]"]
        case "object":
            return [_object(schema, given)]
        case "string" if given and schema.get("format") == "date-time":
            return ["string", "Date"]
        case "string" | "boolean" | "null" as kind:
            return [kind]
        case _:
            return ["unknown"]


def _object(schema: Json, given: bool) -> str:
    if _is_record(schema):
        return schema["title"]
    values = schema.get("additionalProperties")
    inner = _union(_alternatives(values, given)) if isinstance(values, dict) else "unknown"
    return f"Record<string, {inner}>"


def _is_record(schema: Json) -> bool:
    return "properties" in schema and "title" in schema


def _union(kinds: list[str]) -> str:
    return " | ".join(dict.fromkeys(kinds))


# Errors -------------------------------------------------------------------------------------------


def _errors() -> str:
    codes: list[str] = _schemas()["Error"]["properties"]["error"]["properties"]["code"]["enum"]
    lines = [_HEADER, 'import { ServiceError } from "../errors.js";\n']
    for name in map(_pascal, codes):
        lines.append(f"export class {name} extends ServiceError {{")
        lines.append(f'  override readonly name: string = "{name}";\n}}\n')
    return "\n".join(lines).rstrip() + "\n"


# Tools --------------------------------------------------------------------------------------------


def _tools() -> str:
    """The words are MCP's, so that a model is told the same everywhere."""
    lines = [_HEADER, f"export type ToolName = {_union([json.dumps(name) for name in NAMES])};\n"]
    lines.append("export const TOOLS: {")
    lines.append("  name: ToolName;\n  description: string;")
    lines.append("  inputSchema: Record<string, unknown>;\n}[] = [")
    for name in NAMES:
        tool = TOOLS[name]
        shown = {"name": name, "description": tool.description, "inputSchema": tool.inputs.schema()}
        text = json.dumps(shown, indent=2, ensure_ascii=False)
        lines.append("\n".join(f"  {line}" for line in text.splitlines()) + ",")
    return "\n".join([*lines, "];", ""])


# Resources ----------------------------------------------------------------------------------------


def _resources() -> str:
    methods: list[str] = []
    queries: list[str] = []
    used: set[str] = set()
    names = _names()
    asked = {(method, path): operation for method, path, operation in _operations()}
    for resource, endpoints in names.items():
        methods.append(f"export class {_pascal(resource)}Resource extends Resource {{")
        for name, route in endpoints.items():
            written = _method(resource, name, *route, asked[route], queries)
            used |= set(re.findall(r"\b[A-Z]\w+\b", "\n".join(written)))
            methods += written
        methods.append("}\n")
    used |= set(re.findall(r"\b[A-Z]\w+\b", "\n".join(queries)))
    known = {name for name in _schemas() if name in used}
    imports = "".join(f"\n  {name}," for name in sorted(known))
    return (
        "\n".join(
            [
                _HEADER,
                'import { Resource } from "../endpoint.js";',
                "import type {\n  Options,\n  PostOptions,\n  ReadOptions,\n  WaitOptions,",
                '} from "../endpoint.js";',
                'import type { Pages } from "../pages.js";',
                f'import type {{{imports}\n}} from "./types.js";\n',
                *queries,
                *methods,
                *_every(list(names)),
            ]
        ).rstrip()
        + "\n"
    )


def _method(
    resource: str, name: str, verb: str, path: str, operation: Json, queries: list[str]
) -> list[str]:
    arguments = [f"{part}: string" for part in re.findall(r"\{(\w+)\}", path)]
    given: list[str] = []
    headers = {one["name"] for one in operation["parameters"] if one["in"] == "header"}
    asked = [one for one in operation["parameters"] if one["in"] == "query"]
    if "requestBody" in operation:
        body = operation["requestBody"]
        kind = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        arguments.append(f"body: {kind}" if body["required"] else f"body: {kind} = {{}}")
        given.append("body")
    if asked:
        kind = f"{_pascal(resource)}{_pascal(name)}Query"
        queries += _query(kind, asked)
        arguments.append(f"query: {kind} = {{}}")
        given.append("query")
    if verb == "POST":
        options = "WaitOptions" if "Prefer" in headers else "PostOptions"
    else:
        options = "ReadOptions" if "Prefer" in headers else "Options"
    arguments.append(f"options: {options} = {{}}")
    given.append("options")
    address = re.sub(r"\{(\w+)\}", r"${segment(\1)}", path)
    quote = "`" if "$" in address else '"'
    call, answer = _answer(operation)
    what = "" if call != "send" else f'"{verb}", '
    sent = f"this.{call}({what}{quote}{address}{quote}, {{ {', '.join(given)} }})"
    return [
        *_comment(f"{operation['summary']}. {operation['description']}", "  "),
        f"  {name}(",
        *(f"    {argument}," for argument in arguments),
        f"  ): {answer} {{",
        f"    return {sent.replace('segment(', 'this.segment(')};",
        "  }\n",
    ]


def _answer(operation: Json) -> tuple[str, str]:
    """The function of `Resource` that makes the call, and what the method returns."""
    content: Json = next(iter(operation["responses"].values())).get("content", {})
    if "application/json" not in content:
        return ("download", "AsyncIterable<Uint8Array>") if content else ("send", "Promise<void>")
    data = openapi.answer_data(content["application/json"]["schema"])
    if data.get("type") == "array":
        return "pages", f"Pages<{_union(_alternatives(data['items'], given=False))}>"
    return "send", f"Promise<{_union(_alternatives(data, given=False))}>"


def _query(name: str, parameters: list[Json]) -> Iterator[str]:
    yield f"export interface {name} {{"
    for one in parameters:
        kinds = _alternatives(one["schema"], given=True)
        if one["name"] in _BOUNDARIES:
            kinds.append("Date")
        yield from _comment(one["description"], "  ")
        yield from _wrapped(f"  {one['name']}?:", _union(kinds))
    yield "}\n"


def _every(resources: list[str]) -> Iterator[str]:
    yield "/** A resource for every part of the API. */"
    yield "export class Resources extends Resource {"
    for name in resources:
        yield f"  readonly {_camel(name)} = new {_pascal(name)}Resource(this.transport);"
    yield "}\n"


def _names() -> dict[str, dict[str, tuple[str, str]]]:
    """Resources, their methods, and the route of each. Of several methods for one route the first
    is the one that can do everything."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    taken: set[tuple[str, str]] = set()
    for name, resource in vars(Bursar(_KEY)).items():
        if not isinstance(resource, Resource):
            continue
        for method, endpoint in vars(type(resource)).items():
            if isinstance(endpoint, Endpoint):
                route = (endpoint.method, re.sub(r":(\w+)", r"{\1}", endpoint.path))
                if route not in taken:
                    taken.add(route)
                    found.setdefault(name, {})[_camel(method.rstrip("_"))] = route
    return found


def _operations() -> Iterator[tuple[str, str, Json]]:
    for path, operations in openapi.document()["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def _schemas() -> dict[str, Json]:
    return openapi.document()["components"]["schemas"]


# Text ---------------------------------------------------------------------------------------------


def _comment(text: str | None, indent: str) -> Iterator[str]:
    if not text:
        return
    text = " ".join(text.split()).replace("*/", "* /")
    if len(indent) + len(text) + len("/**  */") <= _COLUMNS:
        yield f"{indent}/** {text} */"
        return
    yield f"{indent}/**"
    for line in _filled(text.split(), _COLUMNS - len(indent) - 3):
        yield f"{indent} * {line}"
    yield f"{indent} */"


def _wrapped(start: str, kinds: str) -> Iterator[str]:
    line = f"{start} {kinds};"
    if len(line) <= _COLUMNS:
        yield line
        return
    indent = " " * (len(start) - len(start.lstrip()) + 2)
    yield start
    alternatives = kinds.split(" | ")
    for number, kind in enumerate(alternatives, 1):
        yield f"{indent}| {kind}{';' if number == len(alternatives) else ''}"


def _filled(words: list[str], width: int) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


def _pascal(name: str) -> str:
    camel = _camel(name)
    return camel[:1].upper() + camel[1:]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in files().items():
        (FOLDER / file).write_text(text, "utf-8")
