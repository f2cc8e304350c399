"""A list that filters narrow. What was asked for stays in the form and in the links to other pages,
also where the API refuses it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from bursar.console import agent_choice
from bursar.console.visit import Visit
from bursar.errors import ValidationFailed

_PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class Narrowed:
    rows: list[Any]
    # The filters as the API takes them: of an agent its id, whatever it was called.
    given: dict[str, str]
    # What every page of such a list draws.
    drawn: dict[str, Any]
    status: int


async def narrowed(visit: Visit, route: str, filters: Sequence[str]) -> Narrowed:
    asked = {name: visit.query.get(name, "").strip() for name in filters}
    given = {name: value for name, value in asked.items() if value}
    after = visit.query.get("after", "")
    page: dict[str, Any] = {"data": [], "nextCursor": None}
    status = 200
    try:
        if "agentId" in given:
            given["agentId"] = await agent_choice.chosen(visit, given["agentId"])
        page = await visit.ask(
            route, query={**given, "limit": _PAGE, **({"after": after} if after else {})}
        )
    except ValidationFailed as problem:
        visit.problem, status = problem, 400
    drawn = {
        "asked": asked,
        "narrowed": bool(given),
        "first": not after,
        "newest": f"?{urlencode(given)}",
        "older": older(page["nextCursor"], given),
    }
    return Narrowed(page["data"], given, drawn, status)


def older(cursor: str | None, given: dict[str, str] | None = None) -> str | None:
    """The link to the next page of a list."""
    return None if cursor is None else f"?{urlencode({**(given or {}), 'after': cursor})}"
