"""OpenAPI 3.1, made from the routes: what a route does not say is not in the document either."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, cast

import msgspec

from bursar import __version__
from bursar.access.idempotency import KEY_PATTERN
from bursar.access.limits import Category
from bursar.api import examples
from bursar.api.call import Route
from bursar.api.event_examples import example, view
from bursar.api.operation_names import operation_name
from bursar.api.routes import ROUTES
from bursar.errors import ErrorCode
from bursar.event.catalog import EventType
from bursar.form.query import MetadataFilter
from bursar.form.record import Record
from bursar.signature import SIGNATURE_HEADERS

_REF: Final = "#/components/schemas/{name}"
# How the names of whole answers end: what wraps an object, and what wraps a list.
_ANSWER: Final = "Answer"
_PAGE: Final = "Page"
# Fields that hold a time.
_TIME: Final = re.compile(r"at|asOf|\w+At|\w+Before", re.ASCII)
# Any route may answer with these; the rest follow from the route.
_ALWAYS: Final = (
    ErrorCode.VALIDATION_ERROR,
    ErrorCode.INVALID_JSON,
    ErrorCode.UNAUTHORIZED,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.RATE_LIMIT_EXCEEDED,
    ErrorCode.INTERNAL_ERROR,
    ErrorCode.UNAVAILABLE,
)
_WHAT: Final = {
    400: "The request is malformed; `details` names every fault.",
    401: "No valid API key.",
    403: "The key's scope does not allow this.",
    404: "No such object for this key.",
    409: "The object's state does not allow this.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "The Idempotency-Key was used for a different request.",
    429: "The key's rate limit is reached; wait `Retry-After` seconds.",
    500: "A fault on our side.",
    503: "The database or the chain is out of reach; wait `Retry-After` seconds.",
}


@cache
def document() -> dict[str, Any]:
    schemas = _response_schemas(ROUTES)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = re.sub(r":(\w+)", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bursar",
            "version": __version__,
            "summary": "Wallets that autonomous agents cannot overspend.",
            "description": "Agents, their policies and wallets, and everything they spend.",
            "contact": {"name": "Bursar's maintainers"},
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"apiKey": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in ROUTES)],
        "paths": paths,
        "webhooks": {type_.value: {"post": _delivery(type_)} for type_ in EventType},
        "components": {
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, `bur_test_…` or `bur_live_…`.",
                }
            },
            "schemas": schemas,
        },
    }


@cache
def encoded() -> bytes:
    return msgspec.json.encode(document())


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    scopes = ", ".join(f"`{scope.value}`" for scope in sorted(route.scopes))
    notes = f"Scopes: {scopes}."
    if route.category is None:
        notes += " Never rate-limited."
    elif isinstance(route.category, Category):
        notes += f" Counts as {route.category.label}."
    made: dict[str, Any] = {
        "operationId": operation_name(route.method, route.path, is_list=route.is_list),
        "summary": route.summary,
        "description": f"{route.description}\n\n{notes}".strip(),
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
    }
    if route.body is not None:
        name = _add_body(route.body, schemas)
        required = any(field.required for field in route.body.fields)
        made["requestBody"] = {
            "required": required,
            "content": {
                "application/json": {
                    "schema": {"$ref": _REF.format(name=name)},
                    "example": examples.BODIES[name],
                }
            },
        }
    return made


def _delivery(type_: EventType) -> dict[str, Any]:
    """The webhook that OpenAPI describes for an event of this type."""
    schema = {
        "type": "object",
        "required": ["id", "type", "createdAt", "mode", "data"],
        "properties": {
            "id": {"type": "string", "description": "Tells duplicates apart."},
            "type": {"const": type_.value},
            "createdAt": {"type": "string", "format": "date-time"},
            "mode": {"enum": ["test", "live"]},
            "data": {"$ref": _REF.format(name=type_.view)},
        },
    }
    words = type_.value.replace("_", ".").split(".")
    return {
        "operationId": "receive" + "".join(word.capitalize() for word in words),
        "summary": type_.doc,
        "description": f"{type_.doc} Delivered at least once; `id` tells duplicates apart.",
        "tags": ["Events"],
        "security": [],
        "parameters": [
            {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
            for name in SIGNATURE_HEADERS
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": schema,
                    "example": msgspec.to_builtins(example(type_)),
                }
            },
        },
        "responses": {
            "2XX": {"description": "Received. Anything else, or nothing within 15 s, is retried."},
            "400": {"description": "The signature does not fit."},
            "410": {"description": "Never again: the webhook is disabled."},
        },
    }


def _parameters(route: Route) -> list[dict[str, Any]]:
    forms = {field.name: field.kind.schema() for field in route.path_fields}
    made: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": forms.get(name, {"type": "string", "minLength": 1}),
        }
        for name in re.findall(r":(\w+)", route.path)
    ]
    for field in route.query:
        parameter: dict[str, Any] = {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "description": field.doc,
            "schema": field.kind.schema(),
        }
        if isinstance(field.kind, MetadataFilter):
            parameter |= {"style": "deepObject", "explode": True}
        made.append(parameter)
    made += [
        {
            "name": field.name,
            "in": "header",
            "required": field.required,
            "description": field.doc,
            "schema": field.kind.schema(),
        }
        for field in route.headers
    ]
    if route.takes_idempotency_key:
        made.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Repeat a request with the same key and it happens once.",
                "schema": {"type": "string", "pattern": f"^{KEY_PATTERN}$"},
            }
        )
    return made


def _responses(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done.", "headers": _headers(route)}
    if route.data is not None:
        success["content"] = {
            "application/json": {
                "schema": _success_schema(route, schemas),
                "example": _example(route),
            }
        }
    elif route.content_type != "application/json":
        success["content"] = {route.content_type: {"schema": {"type": "string"}}}
    responses = {str(route.status): success}
    codes = {*_ALWAYS, *route.errors}
    if route.category is None:
        codes.remove(ErrorCode.RATE_LIMIT_EXCEEDED)
    if len(route.scopes) < 4 or route.permits is not None:
        codes.add(ErrorCode.FORBIDDEN)
    if ":" in route.path:
        codes.add(ErrorCode.NOT_FOUND)
    if route.takes_idempotency_key:
        codes |= {ErrorCode.IDEMPOTENCY_KEY_REUSED, ErrorCode.IDEMPOTENCY_IN_PROGRESS}
    for status in sorted({code.status for code in codes}):
        names = ", ".join(f"`{c.value}`" for c in sorted(codes) if c.status == status)
        responses[str(status)] = {
            "description": f"{_WHAT[status]} Codes: {names}.",
            "headers": _error_headers(route, {code for code in codes if code.status == status}),
            "content": {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}},
        }
    return responses


def _example(route: Route) -> dict[str, Any]:
    example = examples.ANSWERS[route.data.__name__]
    if route.is_list:
        return {"data": [example], "hasMore": False, "nextCursor": None}
    return {"data": example}


def _success_schema(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the whole answer, which has a name so that generated clients have one too."""
    of = _public(route.data.__name__)
    item = {"$ref": _REF.format(name=of)}
    name = of + (_PAGE if route.is_list else _ANSWER)
    schema: dict[str, Any] = {
        "title": name,
        "type": "object",
        "required": ["data"],
        "properties": {"data": item},
    }
    if route.is_list:
        schema["required"] = ["data", "hasMore", "nextCursor"]
        schema["properties"] = {
            "data": {"type": "array", "items": item},
            "hasMore": {"type": "boolean"},
            "nextCursor": {"type": ["string", "null"]},
        }
    schemas[name] = schema
    return {"$ref": _REF.format(name=name)}


def answer_data(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of `data`, of a reference to a whole answer."""
    name = schema["$ref"].rpartition("/")[2]
    return document()["components"]["schemas"][name]["properties"]["data"]


def is_shape(name: str) -> bool:
    """Whether a schema says more than what every answer is wrapped in."""
    return not name.endswith((_ANSWER, _PAGE))


_REQUEST_ID: Final = {"description": "Quote it when you ask.", "schema": {"type": "string"}}
_INTEGER: Final = {"type": "integer"}


# Headers of every answer to a request that counted towards a rate limit.
_RATE_LIMIT: Final = {
    "RateLimit-Limit": {"description": "Requests per 60 s.", "schema": _INTEGER},
    "RateLimit-Remaining": {"description": "Left right now.", "schema": _INTEGER},
    "RateLimit-Reset": {"description": "Seconds until one more.", "schema": _INTEGER},
}
# Every retryable error has Retry-After, except 500: nobody knows when an unforeseen fault ends.
_SAY_WHEN: Final = {
    ErrorCode.RATE_LIMIT_EXCEEDED,
    ErrorCode.UNAVAILABLE,
    ErrorCode.IDEMPOTENCY_IN_PROGRESS,
}


def _headers(route: Route) -> dict[str, Any]:
    made: dict[str, Any] = {"X-Request-Id": _REQUEST_ID, **_limits(route)}
    if route.takes_idempotency_key:
        made["Idempotent-Replayed"] = {
            "description": "`true` when the answer is that of an earlier request.",
            "schema": {"type": "string", "enum": ["true"]},
        }
    return made


def _limits(route: Route) -> dict[str, Any]:
    return {} if route.category is None else _RATE_LIMIT


def _error_headers(route: Route, codes: set[ErrorCode]) -> dict[str, Any]:
    """The headers of an error with this status."""
    made: dict[str, Any] = {"X-Request-Id": _REQUEST_ID}
    if ErrorCode.UNAUTHORIZED in codes:
        # Without a valid key the request counts towards no limit.
        return {**made, "WWW-Authenticate": {"schema": {"type": "string"}}}
    made |= _limits(route)
    if saying := codes & _SAY_WHEN:
        with_ = "" if saying == codes else f", with `{min(saying).value}`"
        made["Retry-After"] = {"description": f"Whole seconds to wait{with_}.", "schema": _INTEGER}
    return made


def _add_body(record: Record, schemas: dict[str, Any]) -> str:
    schemas[record.title] = record.schema()
    return record.title


def _response_schemas(routes: Sequence[Route]) -> dict[str, Any]:
    answers = (route.data for route in routes if route.data is not None)
    structs = list(dict.fromkeys([*answers, *(view(type_) for type_ in EventType)]))
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    return {**{_public(name): _shown(schema) for name, schema in schemas.items()}, "Error": _ERROR}


def _shown(schema: Any) -> Any:
    """As msgspec draws it, with the names that the outside knows, and what our types do not say:
    which strings are times."""
    if isinstance(schema, list):
        return [_shown(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {
        name: _shown(value) for name, value in cast("dict[str, Any]", schema).items()
    }
    for name in ("$ref", "title"):
        if isinstance(made.get(name), str):
            made[name] = _public(made[name])
    if "enum" in made:
        made = {"type": "string", **made}
    for name, of in made.get("properties", {}).items():
        if _TIME.fullmatch(name):
            for one in of.get("anyOf", [of]):
                if one.get("type") == "string":
                    one["format"] = "date-time"
    return made


def _public(name: str) -> str:
    """A struct is called a view where its row has the plain name. Outside only where another struct
    has that name, too."""
    plain = name.removesuffix("View")
    return name if plain in _ANSWERED else plain


_ANSWERED: Final = frozenset(route.data.__name__ for route in ROUTES if route.data is not None)
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "retryable", "requestId"],
            "properties": {
                "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
                "message": {"type": "string", "description": "What to do next."},
                "param": {"type": "string", "description": "The first place at fault."},
                "details": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["param", "message"],
                        "properties": {
                            "param": {"type": "string"},
                            "message": {"type": "string"},
                        },
                    },
                },
                "retryable": {"type": "boolean"},
                "requestId": {"type": "string"},
            },
        }
    },
}
