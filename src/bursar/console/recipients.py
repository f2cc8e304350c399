"""The recipients directory: where hosts are paid, who said so, and changing it."""

from typing import Any, Final
from urllib.parse import urlencode

from bursar.console import store
from bursar.console.narrowed import narrowed
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit, typed
from bursar.errors import Fault, ValidationFailed

FILTERS: Final = ("hostname", "address")
LIST: Final = "GET /v1/recipients"
PUT: Final = "PUT /v1/recipients/:hostname"
DELETE: Final = "DELETE /v1/recipients/:hostname"


async def list_recipients(visit: Visit) -> Reply:
    found = await narrowed(visit, LIST, FILTERS)
    by = [entry[who] for entry in found.rows for who in ("createdBy", "updatedBy")]
    return Drawn(
        "recipients.html",
        {
            "entries": found.rows,
            "people": await key_names(visit, by),
            **found.drawn,
            "may_change": visit.may(PUT),
            "typed": typed(visit, host=visit.query.get("change", ""), payTo="", allowOffCurve=""),
            "changing": "change" in visit.query or "host" in visit.form,
        },
        found.status,
    )


async def put(visit: Visit) -> Reply:
    hostname = visit.text("host")
    if not hostname:
        raise ValidationFailed([Fault("host", "Say which host it is.")])
    body: dict[str, Any] = {"address": visit.text("payTo")}
    if visit.text("allowOffCurve"):
        body["allowOffCurve"] = True
    try:
        entry = await visit.ask(PUT, params={"hostname": hostname}, body=body)
    except ValidationFailed as problem:
        # The form's own names: the filter above it has fields called as the API's.
        names = {"hostname": "host", "address": "payTo"}
        raise ValidationFailed(
            [Fault(names.get(fault.param, fault.param), fault.message) for fault in problem.details]
        ) from None
    return Sent(
        f"{ROOT}/recipients?{urlencode({'hostname': entry['hostname'], 'said': 'paid_at'})}"
    )


async def remove(visit: Visit) -> Reply:
    await visit.ask(DELETE, params={"hostname": visit.text("hostname")})
    return Sent(f"{ROOT}/recipients?said=host_removed")


async def key_names(visit: Visit, key_ids: list[str]) -> dict[str, str]:
    """What the keys are called, for those who may list keys."""
    if not visit.may("GET /v1/keys"):
        return {}
    async with visit.services.db.connection() as tx:
        return await store.key_names(tx, visit.caller.realm_id, key_ids)
