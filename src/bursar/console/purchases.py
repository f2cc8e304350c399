"""Purchases: what agents bought on the web, what came back, and where sellers are paid."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from bursar.console import agent_choice, store
from bursar.console.narrowed import narrowed, older
from bursar.console.transactions import hindrances
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit

_PINS: Final = 100
# Of a seller's answer; the API has all that is kept.
_MOST_CHARACTERS: Final = 20_000
FILTERS: Final = ("agentId", "status", "host", "from", "to")
RETRY: Final = "POST /v1/purchases/:id/retry"
CONTINUE: Final = "POST /v1/purchases/:id/continue"
ACCEPT: Final = "POST /v1/pins/accept"
FORGET: Final = "POST /v1/pins/forget"


@dataclass(frozen=True, slots=True)
class Goods:
    """What a seller answered, as it can be shown: always as text, never as markup."""

    status: int
    kind: str
    headers: tuple[tuple[str, str], ...]
    text: str
    # Whether there is more than is shown.
    cut: bool
    is_text: bool


async def list_purchases(visit: Visit) -> Reply:
    found = await narrowed(visit, "GET /v1/purchases", FILTERS)
    return Drawn(
        "purchases.html",
        {
            "purchases": found.rows,
            "agents": await _agents(visit, found.rows),
            **found.drawn,
            "choice": await agent_choice.field(visit, found.given.get("agentId", "")),
        },
        found.status,
    )


async def purchase(visit: Visit) -> Reply:
    shown = await visit.ask("GET /v1/purchases/:id", params={"id": visit.params["id"]})
    agents = await _agents(visit, [shown])
    spend = shown["transaction"]
    approved = shown["status"] == "pending" and spend["status"] == "approved"
    return Drawn(
        "purchase.html",
        {
            "purchase": shown,
            "spend": spend,
            "agent": agents.get(shown["agentId"]),
            "goods": None if shown["response"] is None else goods_of(shown["response"]),
            "sees_goods": visit.may("POST /v1/purchases"),
            "approved": approved,
            "may_continue": approved and visit.may(CONTINUE),
            "may_retry": shown["status"] in ("presented", "paid") and visit.may(RETRY),
            "may_decide": visit.may("POST /v1/transactions/:id/approve"),
            "hindrance": ""
            if spend is None
            else (await hindrances(visit, [spend], agents))[spend["id"]],
        },
    )


async def retry(visit: Visit) -> Reply:
    await visit.ask(RETRY, params={"id": visit.params["id"]})
    return Sent(f"{ROOT}/purchases/{visit.params['id']}?said=retried")


async def go_on(visit: Visit) -> Reply:
    await visit.ask(CONTINUE, params={"id": visit.params["id"]})
    return Sent(f"{ROOT}/purchases/{visit.params['id']}?said=continued")


async def pins(visit: Visit) -> Reply:
    after = visit.query.get("after", "")
    page = await visit.ask(
        "GET /v1/pins", query={"limit": _PINS, **({"after": after} if after else {})}
    )
    # Those that wait for a person come first.
    rows = sorted(page["data"], key=lambda pin: pin["offered"] is None)
    return Drawn(
        "pins.html",
        {
            "pins": rows,
            "first": not after,
            "older": older(page["nextCursor"]),
            "may_change": visit.may(ACCEPT),
        },
    )


async def accept(visit: Visit) -> Reply:
    body = {"origin": visit.text("origin"), "address": visit.text("address")}
    await visit.ask(ACCEPT, body=body)
    return Sent(f"{ROOT}/pins?said=accepted")


async def forget(visit: Visit) -> Reply:
    await visit.ask(FORGET, body={"origin": visit.text("origin")})
    return Sent(f"{ROOT}/pins?said=forgotten")


async def _agents(visit: Visit, purchases: list[dict[str, Any]]) -> dict[str, store.Standing]:
    today = visit.services.clock.now().date()
    async with visit.services.db.connection() as tx:
        return await store.standings(
            tx, visit.caller.realm_id, today, [purchase["agentId"] for purchase in purchases]
        )


def goods_of(answer: dict[str, Any]) -> Goods:
    headers: dict[str, str] = answer["headers"]
    kinds = [value for name, value in headers.items() if name.lower() == "content-type"]
    is_text = answer["encoding"] == "text"
    text: str = answer["body"] if is_text else ""
    cut: bool = answer["truncated"] or len(text) > _MOST_CHARACTERS
    if kinds and "json" in kinds[0] and not cut:
        text = _indented(text)
    return Goods(
        status=answer["status"],
        kind=kinds[0] if kinds else "unknown",
        headers=tuple(sorted(headers.items())),
        text=text[:_MOST_CHARACTERS],
        cut=cut,
        is_text=is_text,
    )


def _indented(text: str) -> str:
    """JSON with a line for each value; what only claims to be JSON stays as it is."""
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        return text
