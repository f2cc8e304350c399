"""Budgets: the tree with what was used, one of them, its limits, and the agents under it."""

from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from bursar.api.budgets import MOST_BUDGETS
from bursar.budget import store
from bursar.budget.view import show_budget
from bursar.console import budget_tree
from bursar.console.agents import pairs
from bursar.console.budget_tree import Node
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit, overtaken, seen, typed
from bursar.db import moment
from bursar.errors import ApiError, ErrorCode, not_found
from bursar.policy.limits import MOST_LEVELS, MOST_LIMITS, WINDOWS

LIST: Final = "GET /v1/budgets"
GET: Final = "GET /v1/budgets/:id"
CREATE: Final = "POST /v1/budgets"
PATCH: Final = "PATCH /v1/budgets/:id"
DELETE: Final = "DELETE /v1/budgets/:id"
MOVE: Final = "PATCH /v1/agents"
MOVE_ONE: Final = "PATCH /v1/agents/:id"
_ROWS: Final = 50
_NEAR: Final = 8
_AGENTS: Final = 10
# Empty rows of the form for more limits.
_MORE_LIMITS: Final = 2

# What each button sends.
ACTIONS: Final[dict[str, dict[str, Any]]] = {"stop": {"frozen": True}, "resume": {"frozen": False}}
_DONE: Final = {"stop": "team_stopped", "resume": "team_resumed"}


async def forest(visit: Visit) -> list[Node]:
    """All budgets of the account, as the API shows them; none for a key that may not see them. Read
    at once, because the API's list would be ten pages, and a tree has no pages."""
    if not visit.may(LIST):
        return []
    async with visit.services.db.connection() as tx:
        rows = await store.list_budgets(tx, visit.caller.realm_id, None, None, MOST_BUDGETS)
        ids = [row.id for row in rows]
        meters = await store.meters(tx, ids)
        agents = await store.agents_of(tx, ids)
        now = await moment(tx)
    # One may have been deleted in between; its meter stays.
    shown = [show_budget(row, meters[row.id], agents.get(row.id, 0), now) for row in rows]
    return budget_tree.forest(msgspec.to_builtins(shown), now)


async def list_budgets(visit: Visit) -> Reply:
    words = visit.query.get("q", "").strip()
    roots = await forest(visit)
    rows = [node for node in budget_tree.walk(roots) if words.casefold() in node.name.casefold()]
    start = _start(visit, len(rows))
    end = start + _ROWS
    near = budget_tree.nearest(roots)
    asked = {"q": words} if words else {}
    return Drawn(
        "budgets.html",
        {
            "near": near[:_NEAR],
            "more_near": max(len(near) - _NEAR, 0),
            "rows": rows[start:end],
            "total": len(rows),
            "words": words,
            "start": start,
            "first": start == 0,
            "newest": f"?{urlencode(asked)}",
            "older": f"?{urlencode({**asked, 'from': end})}" if end < len(rows) else None,
            "may_stop": visit.may(PATCH),
        },
    )


def _start(visit: Visit, rows: int) -> int:
    text = visit.query.get("from", "")
    return min(int(text), rows) if text.isascii() and text.isdigit() and len(text) < 6 else 0


async def budget(visit: Visit) -> Reply:
    nodes = {node.id: node for node in budget_tree.walk(await forest(visit))}
    node = nodes.get(visit.params["id"])
    if node is None:
        raise not_found("budget")
    agents = await visit.ask(
        "GET /v1/agents", query={"budgetId": node.id, "status": "all", "limit": _AGENTS}
    )
    return Drawn(
        "budget.html",
        {
            "node": node,
            "agents": agents,
            "windows": WINDOWS,
            "may_stop": visit.may(PATCH),
            "may_change": visit.may(PATCH),
            "may_delete": visit.may(DELETE) and not node.below and not agents["data"],
            "may_nest": visit.may(CREATE) and node.level < MOST_LEVELS,
            "typed": typed(visit, metadata=""),
        },
    )


async def act(visit: Visit) -> Reply:
    """Stop, resume or delete."""
    doing, of = visit.text("doing"), {"id": visit.params["id"]}
    if doing == "delete":
        await visit.ask(DELETE, params=of)
        return Sent(f"{ROOT}/budgets?said=budget_deleted")
    if doing not in ACTIONS:
        raise ApiError(ErrorCode.VALIDATION_ERROR, "There is no such button.")
    await visit.ask(PATCH, params=of, body=ACTIONS[doing])
    return Sent(_to(visit.params["id"], _DONE[doing]))


async def move_agents(visit: Visit) -> Reply:
    """Puts every agent with these labels under the budget."""
    labels = pairs(visit.text("metadata"))
    await visit.ask(
        MOVE,
        query={f"metadata[{name}]": value for name, value in labels.items()},
        body={"budgetId": visit.params["id"]},
    )
    return Sent(_to(visit.params["id"], "moved"))


async def choose(visit: Visit) -> Reply:
    """The page that moves one agent to another budget."""
    of = {"id": visit.params["id"]}
    shown = await visit.ask("GET /v1/agents/:id", params=of)
    # Refused before the form is shown, not after it was filled in.
    visit.prepare(MOVE_ONE, params=of, body={"budgetId": None})
    nodes = list(budget_tree.walk(await forest(visit)))
    fields = typed(visit, budgetId=shown["budgetId"] or "")
    return Drawn(
        "agent_budget.html",
        {
            "agent": shown,
            "nodes": nodes,
            "typed": fields,
            "seen": seen(visit, shown["budgetId"] or ""),
            "overtaken": overtaken(visit),
        },
    )


async def move_agent(visit: Visit) -> Reply:
    body = {"budgetId": visit.text("budgetId") or None}
    of = {"id": visit.params["id"]}
    await visit.ask(MOVE_ONE, params=of, body=body, seen=visit.text("seen"))
    return Sent(f"{ROOT}/agents/{visit.params['id']}?said=agent_moved")


# Making and changing ------------------------------------------------------------------------------


async def new_budget(visit: Visit) -> Reply:
    roots = await forest(visit)
    parents = [node for node in budget_tree.walk(roots) if node.level < MOST_LEVELS]
    fields = typed(visit, name="", parentId=visit.query.get("parentId", ""))
    return Drawn(
        "new_budget.html",
        {"typed": fields, "parents": parents, "limits": _rows(visit, []), "windows": WINDOWS},
    )


async def create(visit: Visit) -> Reply:
    made = await visit.ask(
        CREATE,
        body={
            "name": visit.text("name"),
            "parentId": visit.text("parentId") or None,
            "limits": _limits(visit),
        },
    )
    return Sent(_to(made["id"], "budget_created"))


async def edit(visit: Visit) -> Reply:
    shown = await visit.ask(GET, params={"id": visit.params["id"]})
    fields = typed(visit, name=shown["name"])
    return Drawn(
        "edit_budget.html",
        {
            "budget": shown,
            "typed": fields,
            "limits": _rows(visit, shown["limits"]),
            "windows": WINDOWS,
            "seen": seen(visit, shown["updatedAt"]),
            "overtaken": overtaken(visit),
        },
    )


async def change(visit: Visit) -> Reply:
    await visit.ask(
        PATCH,
        params={"id": visit.params["id"]},
        body={"name": visit.text("name"), "limits": _limits(visit)},
        seen=visit.text("seen"),
    )
    return Sent(_to(visit.params["id"], "budget_changed"))


_COLUMNS: Final = ("limitId", "window", "amount", "count")


def _rows(visit: Visit, limits: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of the form: what was typed if it is shown again, else the limits that stand; and
    some empty ones."""
    rows = _typed_rows(visit)
    if visit.problem is None:
        rows = [(row["id"], row["window"], row["amount"], row["count"]) for row in limits]
    filled = [
        tuple("" if value is None else str(value) for value in row)
        for row in rows
        if row[2] or row[3]
    ]
    room = min(len(filled) + _MORE_LIMITS, MOST_LIMITS)
    return filled + [("", "day", "", "")] * (room - len(filled))


def _typed_rows(visit: Visit) -> list[tuple[Any, ...]]:
    columns = [[text.strip() for text in visit.form.get(name, [])] for name in _COLUMNS]
    return list(zip(*columns, strict=False))


def _limits(visit: Visit) -> list[dict[str, Any]]:
    """As the API takes them. A row without amount and count is a limit that is taken away."""
    limits: list[dict[str, Any]] = []
    for id_, window, amount, count in _typed_rows(visit):
        if amount or count:
            whole = count.isascii() and count.isdigit() and len(count) < 16
            # Text that is no number is for the API to refuse.
            limits.append(
                {
                    "window": window,
                    **({"id": id_} if id_ else {}),
                    **({"amount": amount} if amount else {}),
                    **({"count": int(count) if whole else count} if count else {}),
                }
            )
    return limits


def _to(budget_id: str, said: str) -> str:
    return f"{ROOT}/budgets/{budget_id}?said={said}"
