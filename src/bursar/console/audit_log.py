"""The audit log: who did what, and what it changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec

from bursar.api.call import Stream
from bursar.console.recipients import key_names
from bursar.console.visit import ROOT, Drawn, Reply, Visit
from bursar.errors import ValidationFailed

_PAGE: Final = 50
FILTERS: Final = ("actor", "action", "subject", "from", "to")
LIST: Final = "GET /v1/audit-log"
EXPORT: Final = "GET /v1/audit-log/export"
# Of one line; the API and the CSV have all of it.
_MOST_FIELDS: Final = 40
_MOST_CHARACTERS: Final = 300
# Where a subject has a page of its own, by the first part of its id.
_PAGES: Final = {
    "ag": "agents",
    "txn": "transactions",
    "pur": "purchases",
    "bud": "budgets",
    "wh": "webhooks",
}
# What changes with every change, and says nothing.
_DULL: Final = {"updatedAt", "updatedBy"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the subject before and after; None where it was not there."""

    field: str
    before: str | None
    after: str | None


async def list_lines(visit: Visit) -> Reply:
    asked = {name: visit.query.get(name, "").strip() for name in FILTERS}
    given = {name: value for name, value in asked.items() if value}
    after = visit.query.get("after", "")
    page: dict[str, Any] = {"data": [], "nextCursor": None}
    status = 200
    try:
        page = await visit.ask(
            LIST, query={**given, "limit": _PAGE, **({"after": after} if after else {})}
        )
    except ValidationFailed as problem:
        visit.problem, status = problem, 400
    cursor = page["nextCursor"]
    lines = page["data"]
    return Drawn(
        "audit_log.html",
        {
            "lines": lines,
            "people": await key_names(visit, [line["actor"] for line in lines]),
            "differences": {line["id"]: differences(line) for line in lines},
            "pages": {line["id"]: _page_of(line["subject"]) for line in lines},
            "asked": asked,
            "narrowed": bool(given),
            "first": not after,
            "newest": f"?{urlencode(given)}",
            "older": None if cursor is None else f"?{urlencode({**given, 'after': cursor})}",
            "csv": f"{ROOT}/audit-log.csv?{urlencode(given)}",
        },
        status,
    )


async def export(visit: Visit) -> Stream:
    given = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
    return await visit.stream(EXPORT, query=given)


def differences(line: dict[str, Any]) -> list[Difference]:
    """What a line changed, field by field; of something new or gone, all that it was."""
    before = dict(_fields(line["before"] or {}))
    after = dict(_fields(line["after"] or {}))
    return [
        Difference(name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) and name not in _DULL
    ][:_MOST_FIELDS]


def _fields(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Each field with its text, those of a field within it as `policy.dailyCap`."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _fields(cast("dict[str, Any]", inner), f"{above}{name}.")
        elif inner is not None:
            yield above + name, _text(inner)


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value)):
        text = ", ".join(cast("list[str]", value))
    else:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _page_of(subject: str) -> str | None:
    kind, _, rest = subject.partition("_")
    return f"{ROOT}/{_PAGES[kind]}/{subject}" if rest.isalnum() and kind in _PAGES else None
