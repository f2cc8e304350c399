"""The banner of every page: who is paid at another address than before, or wants to be."""

from datetime import timedelta
from typing import Final

from bursar.console.payee_store import Payees, changed_payees
from bursar.console.visit import Visit

# A change is told of for this long: somebody who was away for a weekend still sees it.
TOLD_FOR: Final = timedelta(days=3)


async def lately(visit: Visit) -> Payees | None:
    """None where the key may not see the directory, or nothing changed."""
    if not visit.may("GET /v1/recipients"):
        return None
    since = visit.services.clock.now() - TOLD_FOR
    async with visit.services.db.connection() as tx:
        found = await changed_payees(tx, visit.caller.realm_id, since)
    return found if found.moved or found.asking else None
