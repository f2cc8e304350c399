"""The stop button of every page, and the way back."""

from bursar.console.visit import ROOT, Reply, Sent, Visit
from bursar.stop import store
from bursar.stop.model import Stop

STOP = "POST /v1/stop"
RESUME = "POST /v1/resume"


async def standing(visit: Visit) -> Stop | None:
    """The stop of the visitor's account, for the banner."""
    async with visit.services.db.connection() as tx:
        return await store.get_stop(tx, visit.caller.realm_id)


async def stop(visit: Visit) -> Reply:
    await visit.ask(
        STOP,
        body={"reason": visit.text("reason"), "alsoUnsigned": bool(visit.text("alsoUnsigned"))},
    )
    return Sent(f"{ROOT}?said=stopped")


async def resume(visit: Visit) -> Reply:
    """What stands is what the page showed: somebody may have stopped again meanwhile, and then to
    go on, and to pay what is held, is another question."""
    await visit.ask(RESUME, body={"unsigned": visit.text("unsigned")}, seen=visit.text("seen"))
    return Sent(f"{ROOT}?said=going_on")
