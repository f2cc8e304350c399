"""Transactions: the list with every filter of the API, one of them, and the queue of approvals."""

from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from bursar.api.call import Stream
from bursar.api.transactions import approves_own
from bursar.console import agent_choice, money_moves, stops, store
from bursar.console.narrowed import narrowed, older
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit
from bursar.errors import ApiError, of_kind

_PAGE: Final = 50
FILTERS: Final = ("agentId", "status", "recipient", "from", "to", "settledFrom", "settledTo")


async def list_spends(visit: Visit) -> Reply:
    found = await narrowed(visit, "GET /v1/transactions", FILTERS)
    moves = {name: of for name, of in found.given.items() if name in money_moves.FILTERS}
    return Drawn(
        "transactions.html",
        {
            "spends": found.rows,
            "agents": await _agents(visit, found.rows),
            **found.drawn,
            "choice": await agent_choice.field(visit, found.given.get("agentId", "")),
            "csv": f"{ROOT}/transactions.csv?{urlencode(found.given)}",
            # Deposits and withdrawals have no more in common with spends than these.
            "moves": f"?{urlencode(moves)}",
        },
        found.status,
    )


async def export(visit: Visit) -> Stream:
    given = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
    return await visit.stream("GET /v1/transactions/export", query=given)


async def spend(visit: Visit) -> Reply:
    shown = await visit.ask("GET /v1/transactions/:id", params={"id": visit.params["id"]})
    agents = await _agents(visit, [shown])
    return Drawn(
        "transaction.html",
        {
            "spend": shown,
            "agent": agents.get(shown["agentId"]),
            "may_decide": may_decide(visit),
            "hindrance": (await hindrances(visit, [shown], agents))[shown["id"]],
            "may_cancel": _may_cancel(visit, shown),
        },
    )


async def approvals(visit: Visit) -> Reply:
    after = visit.query.get("after", "")
    page = await visit.ask(
        "GET /v1/transactions",
        query={"status": "pending", "limit": _PAGE, **({"after": after} if after else {})},
    )
    pending = None
    if visit.caller.agent_id is None:
        # The count covers all agents, so an agent key does not see it.
        async with visit.services.db.connection() as tx:
            pending = await store.waiting_spends(tx, visit.caller.realm_id, "pending")
    agents = await _agents(visit, page["data"])
    return Drawn(
        "approvals.html",
        {
            "spends": page["data"],
            "agents": agents,
            "hindrances": await hindrances(visit, page["data"], agents),
            "pending": pending,
            "may_decide": may_decide(visit),
            "older": older(page["nextCursor"]),
        },
    )


async def approve(visit: Visit) -> Reply:
    return await _decide(visit, "POST /v1/transactions/:id/approve", "approved")


async def deny(visit: Visit) -> Reply:
    return await _decide(visit, "POST /v1/transactions/:id/deny", "denied")


async def cancel(visit: Visit) -> Reply:
    return await _decide(visit, "POST /v1/transactions/:id/cancel", "cancelled")


async def undecided(visit: Visit) -> Reply:
    """Shows the form's page again after the decision failed, with the spend as it is now: somebody
    else may have decided it meanwhile."""
    if visit.text("from") != "approvals":
        return await spend(visit)
    try:
        shown = await visit.ask("GET /v1/transactions/:id", params={"id": visit.params["id"]})
    except ApiError:
        shown = None
    reply = of_kind(await approvals(visit), Drawn, "the page is drawn")
    return Drawn(reply.template, {**reply.content, "undecided": shown}, reply.status)


def may_decide(visit: Visit) -> bool:
    return visit.may("POST /v1/transactions/:id/approve")


async def hindrances(
    visit: Visit, spends: list[dict[str, Any]], agents: dict[str, store.Standing]
) -> dict[str, str]:
    """Why approving each of these, if it waits, cannot work now; empty if it can."""
    stopped = await stops.standing(visit) is not None
    async with visit.services.db.connection() as tx:
        under_frozen = await store.under_frozen_budgets(
            tx, visit.caller.realm_id, [spend["id"] for spend in spends]
        )
    return {
        spend["id"]: _hindrance(
            visit, spend, agents.get(spend["agentId"]), stopped, spend["id"] in under_frozen
        )
        for spend in spends
    }


def _hindrance(
    visit: Visit,
    spend: dict[str, Any],
    agent: store.Standing | None,
    stopped: bool,
    under_frozen: bool,
) -> str:
    expires_at = spend["expiresAt"]
    if expires_at and visit.services.clock.now() >= datetime.fromisoformat(expires_at):
        return "Its time is over. It is about to be rejected."
    own = spend["createdBy"] == visit.caller.key_id
    if own and not approves_own(visit.services, visit.caller):
        return "It was asked for with your own key: somebody with another one approves it."
    if stopped:
        return "Every agent is stopped. It can be approved once an admin has resumed the account."
    if agent is not None and agent.status == "paused":
        return "The agent is paused. It can be approved once the agent is resumed."
    if agent is not None and agent.frozen:
        return "The agent's policy is frozen. It can be approved once it is unfrozen."
    if under_frozen:
        return "A budget above it is frozen. It can be approved once that is unfrozen."
    return ""


def _may_cancel(visit: Visit, spend: dict[str, Any]) -> bool:
    """An admin may, and the key that asked for it."""
    asked = visit.caller.agent_id is None or spend["createdBy"] == visit.caller.key_id
    return asked and visit.may("POST /v1/transactions/:id/cancel")


async def _decide(visit: Visit, route: str, said: str) -> Reply:
    reason = visit.text("reason")
    body = {"reason": reason} if reason else {}
    await visit.ask(route, params={"id": visit.params["id"]}, body=body)
    back = (
        "approvals" if visit.text("from") == "approvals" else f"transactions/{visit.params['id']}"
    )
    return Sent(f"{ROOT}/{back}?said={said}")


async def _agents(visit: Visit, spends: list[dict[str, Any]]) -> dict[str, store.Standing]:
    today = visit.services.clock.now().date()
    async with visit.services.db.connection() as tx:
        return await store.standings(
            tx, visit.caller.realm_id, today, [spend["agentId"] for spend in spends]
        )
