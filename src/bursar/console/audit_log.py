"""The audit log: who did what, and what it changed."""

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec

from bursar.api.call import Stream
from bursar.console.narrowed import narrowed
from bursar.console.recipients import key_names
from bursar.console.visit import ROOT, Drawn, Reply, Visit

FILTERS: Final = ("actor", "action", "subject", "from", "to")
LIST: Final = "GET /v1/audit-log"
EXPORT: Final = "GET /v1/audit-log/export"
# What is drawn of one line, of one list and of one value; the API and the CSV have all of it.
_MOST_FIELDS: Final = 40
_MOST_ENTRIES: Final = 20
_MOST_CHARACTERS: Final = 300
# Of what a long value has in common with the other one, drawn before the part that changed.
_LEAD: Final = 20
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
    """A field of the subject before and after, None where it was not there. Of a list, what went
    and what came; both are None where only the order is another."""

    field: str
    before: str | None
    after: str | None


async def list_lines(visit: Visit) -> Reply:
    found = await narrowed(visit, LIST, FILTERS)
    lines = found.rows
    return Drawn(
        "audit_log.html",
        {
            "lines": lines,
            "people": await key_names(visit, [line["actor"] for line in lines]),
            "differences": {line["id"]: differences(line) for line in lines},
            "most_fields": _MOST_FIELDS,
            "pages": {line["id"]: _page_of(line["subject"]) for line in lines},
            **found.drawn,
            "csv": f"{ROOT}/audit-log.csv?{urlencode(found.given)}",
        },
        found.status,
    )


async def export(visit: Visit) -> Stream:
    given = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
    return await visit.stream(EXPORT, query=given)


def differences(line: dict[str, Any]) -> list[Difference]:
    """What a line changed, field by field; of something new or gone, all that it was."""
    before = dict(_fields(line["before"] or {}))
    after = dict(_fields(line["after"] or {}))
    return [
        Difference(name, *_told(before.get(name), after.get(name)))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) and name not in _DULL
    ]


def _fields(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each field with its value, those of a field within it as `policy.dailyCap`. A list that is
    empty says as little as one that is not there."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _fields(cast("dict[str, Any]", inner), f"{above}{name}.")
        elif inner is not None and inner != []:
            yield above + name, inner


def _told(before: Any, after: Any) -> tuple[str | None, str | None]:
    if isinstance(before, list | None) and isinstance(after, list | None):
        was = Counter(map(_text, cast("list[Any]", before or [])))
        will = Counter(map(_text, cast("list[Any]", after or [])))
        return _entries(was - will), _entries(will - was)
    values = cast("tuple[Any, Any]", (before, after))
    texts = ["" if value is None else _text(value) for value in values]
    same = len(list(takewhile(bool, map(operator.eq, *texts))))
    was, will = (_cut(text, same) for text in texts)
    return None if before is None else was, None if after is None else will


def _entries(found: Counter[str]) -> str | None:
    texts = [_cut(text) for text in found.elements()]
    left_out = len(texts) - _MOST_ENTRIES
    more = f" and {left_out} more, in the CSV" if left_out > 0 else ""
    return ", ".join(texts[:_MOST_ENTRIES]) + more if texts else None


def _cut(text: str, same: int = 0) -> str:
    """Of a long text the part that changed: what follows its first `same` characters."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    start = max(same - _LEAD, 0)
    end = start + _MOST_CHARACTERS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _page_of(subject: str) -> str | None:
    kind, _, rest = subject.partition("_")
    return f"{ROOT}/{_PAGES[kind]}/{subject}" if rest.isalnum() and kind in _PAGES else None
