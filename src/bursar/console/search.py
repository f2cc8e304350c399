"""One box for ids, names and hosts. A whole id, address or signature that stands for one thing
leads to its page; anything else lists what fits, a few of each kind."""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from bursar.console import agent_choice, store
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit
from bursar.errors import ApiError, ErrorCode, ValidationFailed
from bursar.ids import Prefix, is_id

_MOST_WORDS: Final = 200
# Of each kind; the list that a group links to has the rest.
_LISTED: Final = 8
# What has a page of its own: the page and the route that knows whether there is such a thing.
_PAGES: Final[tuple[tuple[Prefix, str, str], ...]] = (
    ("ag", "agents", "GET /v1/agents/:id"),
    ("txn", "transactions", "GET /v1/transactions/:id"),
    ("pur", "purchases", "GET /v1/purchases/:id"),
    ("bud", "budgets", "GET /v1/budgets/:id"),
    ("wh", "webhooks", "GET /v1/webhooks/:id"),
)


@dataclass(frozen=True, slots=True)
class Hit:
    name: str
    to: str
    detail: str = ""
    at: str | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    hits: list[Hit]
    # The list of all that fit, where there is one.
    all: str | None = None


async def search(visit: Visit) -> Reply:
    words = visit.query.get("q", "").strip()[:_MOST_WORDS]
    to = await _page_of(visit, words)
    if to is not None:
        return Sent(to)
    groups = await _groups(visit, words) if words else ()
    return Drawn("search.html", {"words": words, "groups": [each for each in groups if each.hits]})


async def _page_of(visit: Visit, words: str) -> str | None:
    for prefix, page, route in _PAGES:
        if is_id(prefix, words) and await _is_there(visit, route, words):
            return f"{ROOT}/{page}/{words}"
    if is_id("wdr", words):
        made = await _answer(visit, "GET /v1/withdrawals/:id", words)
        return None if made is None else f"{ROOT}/agents/{made['agentId']}"
    if is_id("key", words) and visit.may("GET /v1/audit-log"):
        return f"{ROOT}/audit-log?{urlencode({'actor': words})}"
    async with visit.services.db.connection() as tx:
        known = await store.on_the_chain(tx, visit.caller.realm_id, words)
    if known is None or not visit.caller.may_see_agent(known.agent_id):
        return None
    return (
        f"{ROOT}/transactions/{known.id}" if known.is_spend else f"{ROOT}/agents/{known.agent_id}"
    )


async def _is_there(visit: Visit, route: str, id_: str) -> bool:
    return await _answer(visit, route, id_) is not None


async def _answer(visit: Visit, route: str, id_: str) -> Any:
    """None for what is not there and for what this key may not see."""
    if not visit.may(route):
        return None
    try:
        return await visit.ask(route, params={"id": id_})
    except ApiError as problem:
        if problem.code is not ErrorCode.NOT_FOUND:
            raise
        return None


async def _groups(visit: Visit, words: str) -> tuple[Group, ...]:
    return (
        await _agents(visit, words),
        await _budgets(visit, words),
        await _hosts(visit, words),
        await _spends(visit, words),
        await _purchases(visit, words),
        await _keys(visit, words),
        await _webhooks(visit, words),
    )


async def _agents(visit: Visit, words: str) -> Group:
    found = await agent_choice.suggestions(visit, words)
    hits = [Hit(agent.name, f"{ROOT}/agents/{agent.id}", agent.id) for agent in found[:_LISTED]]
    return Group("Agents", hits, _all("agents", q=words))


async def _budgets(visit: Visit, words: str) -> Group:
    if not visit.may("GET /v1/budgets"):
        return Group("Budgets", [])
    async with visit.services.db.connection() as tx:
        found = await store.named_budgets(tx, visit.caller.realm_id, words, _LISTED)
    hits = [Hit(budget.name, f"{ROOT}/budgets/{budget.id}", budget.id) for budget in found]
    return Group("Budgets", hits, _all("budgets", q=words))


async def _hosts(visit: Visit, words: str) -> Group:
    entries = await _list(visit, "GET /v1/recipients", hostname=words)
    entries += await _list(visit, "GET /v1/recipients", address=words)
    hits = [
        Hit(entry["hostname"], _all("recipients", hostname=entry["hostname"]), entry["address"])
        for entry in entries[:_LISTED]
    ]
    return Group("Recipients directory", hits, _all("recipients", hostname=words))


async def _spends(visit: Visit, words: str) -> Group:
    hits = [
        Hit(
            f"{spend['amount']} USDC to {spend['recipient']}",
            f"{ROOT}/transactions/{spend['id']}",
            at=spend["createdAt"],
            status=spend["status"],
        )
        for spend in await _list(visit, "GET /v1/transactions", recipient=words)
    ]
    return Group("Transactions to it", hits, _all("transactions", recipient=words))


async def _purchases(visit: Visit, words: str) -> Group:
    hits = [
        Hit(
            f"{purchase['method']} {purchase['url']}",
            f"{ROOT}/purchases/{purchase['id']}",
            at=purchase["createdAt"],
            status=purchase["status"],
        )
        for purchase in await _list(visit, "GET /v1/purchases", host=words)
    ]
    return Group("Purchases from it", hits, _all("purchases", host=words))


async def _keys(visit: Visit, words: str) -> Group:
    if not visit.may("GET /v1/keys"):
        return Group("Keys", [])
    async with visit.services.db.connection() as tx:
        found = await store.named_keys(tx, visit.caller.realm_id, words, _LISTED)
    # A key's own page is what was done with it.
    hits = [Hit(key.name, _all("audit-log", actor=key.id), key.id) for key in found]
    return Group("Keys", hits, f"{ROOT}/keys")


async def _webhooks(visit: Visit, words: str) -> Group:
    if not visit.may("GET /v1/webhooks"):
        return Group("Webhooks", [])
    async with visit.services.db.connection() as tx:
        hooks = await store.hooks(tx, visit.caller.realm_id)
    fit = [hook for hook in hooks.values() if words.casefold() in hook.url.casefold()]
    hits = [Hit(hook.url, f"{ROOT}/webhooks/{hook.id}", status=hook.status) for hook in fit]
    return Group("Webhooks", hits[:_LISTED], f"{ROOT}/webhooks")


async def _list(visit: Visit, route: str, **query: str) -> list[Any]:
    """The first of a list; nothing where the words cannot be what the filter asks for."""
    if not visit.may(route):
        return []
    try:
        page = await visit.ask(route, query={**query, "limit": _LISTED})
    except ValidationFailed:
        return []
    return page["data"]


def _all(page: str, **query: str) -> str:
    return f"{ROOT}/{page}?{urlencode(query)}"
