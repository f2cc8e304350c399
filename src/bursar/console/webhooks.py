"""Webhooks: where events are sent, what became of each, and sending one again."""

from typing import Any, Final

from bursar.console import store
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit
from bursar.errors import ApiError, ErrorCode
from bursar.event.catalog import SUBSCRIBABLE

_PAGE: Final = 25
_STATUSES: Final = ("enabled", "disabled")


async def list_webhooks(visit: Visit) -> Reply:
    page = await visit.ask("GET /v1/webhooks", query={"limit": 100})
    async with visit.services.db.connection() as tx:
        hooks = await store.hooks(tx, visit.caller.realm_id)
    again = visit.problem is not None
    return Drawn(
        "webhooks.html",
        {
            "webhooks": page["data"],
            "hooks": hooks,
            "types": SUBSCRIBABLE,
            "typed_url": visit.text("url") if again else "",
            "typed_events": visit.form.get("events", []) if again else ["*"],
        },
    )


async def create(visit: Visit) -> Reply:
    made = await visit.ask(
        "POST /v1/webhooks",
        body={"url": visit.text("url"), "events": visit.form.get("events", [])},
    )
    return _secret(made, "The webhook is registered")


async def rotate(visit: Visit) -> Reply:
    made = await visit.ask("POST /v1/webhooks/:id/rotate-secret", params={"id": visit.params["id"]})
    return _secret(made, "The webhook has a new secret")


def _secret(made: dict[str, Any], title: str) -> Reply:
    return Drawn(
        "secret.html",
        {
            "title": title,
            "secret": made["secret"],
            "kind": "secret",
            "what": made["url"],
            "back": f"{ROOT}/webhooks/{made['id']}",
        },
    )


async def webhook(visit: Visit) -> Reply:
    of = {"id": visit.params["id"]}
    after = visit.query.get("after", "")
    shown = await visit.ask("GET /v1/webhooks/:id", params=of)
    page = await visit.ask(
        "GET /v1/webhooks/:id/deliveries",
        params=of,
        query={"limit": _PAGE, **({"after": after} if after else {})},
    )
    async with visit.services.db.connection() as tx:
        hooks = await store.hooks(tx, visit.caller.realm_id, shown["id"])
    return Drawn(
        "webhook.html",
        {
            "webhook": shown,
            "hook": hooks.get(shown["id"]),
            "deliveries": page["data"],
            "older": page["nextCursor"],
            "first": not after,
        },
    )


async def deliveries_mark(visit: Visit) -> str:
    """A delivery attempt makes no event, so the page's mark comes from the deliveries
    themselves."""
    async with visit.services.db.connection() as tx:
        return await store.deliveries_mark(tx, visit.caller.realm_id, visit.params["id"], _PAGE)


async def act(visit: Visit) -> Reply:
    """Enable, disable, test or delete."""
    doing, of = visit.text("doing"), {"id": visit.params["id"]}
    here = f"{ROOT}/webhooks/{visit.params['id']}"
    if doing in _STATUSES:
        await visit.ask("PATCH /v1/webhooks/:id", params=of, body={"status": doing})
        return Sent(f"{here}?said={doing}")
    if doing == "test":
        await visit.ask("POST /v1/webhooks/:id/test", params=of)
        return Sent(f"{here}?said=tested")
    if doing == "delete":
        await visit.ask("DELETE /v1/webhooks/:id", params=of)
        return Sent(f"{ROOT}/webhooks?said=deleted")
    raise ApiError(ErrorCode.VALIDATION_ERROR, "There is no such button.")


async def redeliver(visit: Visit) -> Reply:
    await visit.ask(
        "POST /v1/events/:id/redeliver",
        params={"id": visit.params["event"]},
        body={"webhookId": visit.params["id"]},
    )
    return Sent(f"{ROOT}/webhooks/{visit.params['id']}?said=redelivered")
