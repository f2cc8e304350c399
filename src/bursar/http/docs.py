"""The page at /, and /docs: the API reference as one page that works offline, drawn from the
OpenAPI document and the samples that `make reference` writes."""

from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader

from bursar import __version__
from bursar.access.limits import Category
from bursar.api import openapi
from bursar.errors import ErrorCode

_LANGUAGES: Final = {"curl": "curl", "python": "Python", "typescript": "TypeScript"}
_PAGES = Environment(loader=PackageLoader("bursar.http", "pages"), autoescape=True)


@cache
def front_page() -> bytes:
    return _PAGES.get_template("front.html").render(version=__version__).encode()


@cache
def reference_page() -> bytes:
    document = openapi.document()
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(
                {"path": path, "method": method.upper(), **operation, **_shapes(operation)}
            )
    page = _PAGES.get_template("reference.html").render(
        version=__version__,
        groups=groups,
        languages=_LANGUAGES,
        samples=msgspec.json.decode(_file("samples.json")),
        errors=list(ErrorCode),
        categories=list(Category),
        schemas={
            name: schema
            for name, schema in document["components"]["schemas"].items()
            if openapi.is_shape(name)
        },
    )
    return page.encode()


@cache
def style_sheet() -> bytes:
    return _file("reference.css")


@cache
def script() -> bytes:
    return _file("reference.js")


def _file(name: str) -> bytes:
    return resources.files("bursar.http").joinpath("pages", name).read_bytes()


def _shapes(operation: dict[str, Any]) -> dict[str, Any]:
    """The names of the request's and the answer's shapes, to link to their descriptions."""
    takes = gives = None
    if "requestBody" in operation:
        takes = _name(operation["requestBody"]["content"]["application/json"]["schema"])
    status = next(iter(operation["responses"]))
    content = operation["responses"][status].get("content", {})
    if "application/json" in content:
        of = openapi.answer_data(content["application/json"]["schema"])
        gives = _name(of) or f"list of {_name(of['items'])}"
    return {
        "takes": takes,
        "gives": gives,
        "success": status,
        "answers": _example(content.get("application/json", {})),
    }


def _example(content: dict[str, Any]) -> str | None:
    if "example" not in content:
        return None
    return msgspec.json.format(msgspec.json.encode(content["example"]), indent=2).decode()


def _name(schema: dict[str, Any]) -> str | None:
    return schema["$ref"].rpartition("/")[2] if "$ref" in schema else None
