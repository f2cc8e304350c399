"""What a request to each route looks like when nothing is wrong with it."""

import json
from typing import Any

from bursar.api.call import Route
from bursar.api.routes import ROUTES
from bursar.form.record import Field, Record
from tests.support import ON_CURVE, POLICY

NO_AGENT = "ag_00000000000000000000000000"
AGENT = json.dumps({"name": "agent", "policy": POLICY})


KIB = 1024
BODY_ROUTES = [route for route in ROUTES if route.body is not None]


# Bodies that name the agent which pays.
BOUGHT = ("Spend", "NewPurchase")
SAMPLES: dict[str, Any] = {
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
    "Limits": [{"window": "day", "amount": "1.00"}],
    "OrderUrl": "https://api.example.com/",
    "SentHeaders": {"accept": "text/plain"},
    "BroughtHeaders": {"PAYMENT-REQUIRED": "e30="},
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
    if name == "Text":
        return "x" * max(1, kind.schema()["minLength"])
    if name == "Whole":
        return kind.schema()["minimum"]
    return SAMPLES[name]


def body_of(record: Record) -> dict[str, Any]:
    body = {field.name: sample(field) for field in record.fields if field.required}
    # Required of all but agent keys.
    return {**body, "agentId": NO_AGENT} if record.title in BOUGHT else body
