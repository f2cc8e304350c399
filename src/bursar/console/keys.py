"""Keys: make one, see them, revoke one."""

from typing import Any, Final

from bursar.access.model import Scope
from bursar.console import agent_choice, store
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit, typed

_PAGE: Final = 50


async def list_keys(visit: Visit) -> Reply:
    after = visit.query.get("after", "")
    page = await visit.ask(
        "GET /v1/keys", query={"limit": _PAGE, **({"after": after} if after else {})}
    )
    today = visit.services.clock.now().date()
    bound = [key["agentId"] for key in page["data"] if key["agentId"]]
    async with visit.services.db.connection() as tx:
        agents = await store.standings(tx, visit.caller.realm_id, today, bound)
    return Drawn(
        "keys.html",
        {
            "keys": page["data"],
            "agents": agents,
            "scopes": list(Scope),
            "older": page["nextCursor"],
            "typed": typed(visit, name="", scope="read", expiresAt=""),
            "choice": await agent_choice.field(visit, visit.text("agentId")),
        },
    )


async def create(visit: Visit) -> Reply:
    body: dict[str, Any] = {"name": visit.text("name"), "scope": visit.text("scope")}
    if visit.text("agentId"):
        body["agentId"] = await agent_choice.chosen(visit, visit.text("agentId"))
    if visit.text("expiresAt"):
        # A key that expires on a day works until the end of that day, in UTC.
        body["expiresAt"] = f"{visit.text('expiresAt')}T23:59:59Z"
    made = await visit.ask("POST /v1/keys", body=body)
    return Drawn(
        "secret.html",
        {
            "title": "The key is made",
            "secret": made["key"],
            "kind": "key",
            "what": made["name"],
            "back": f"{ROOT}/keys",
        },
    )


async def revoke(visit: Visit) -> Reply:
    await visit.ask("DELETE /v1/keys/:id", params={"id": visit.params["id"]})
    return Sent(f"{ROOT}/keys?said=revoked")
