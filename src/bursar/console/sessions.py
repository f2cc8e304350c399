"""Sessions: which browsers are signed in, and ending one or all others."""

from bursar.access import session
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit


async def list_sessions(visit: Visit) -> Reply:
    async with visit.services.db.connection() as tx:
        sessions = await session.listed(tx, visit.caller)
    return Drawn("sessions.html", {"sessions": sessions, "this_one": visit.session_id})


async def end(visit: Visit) -> Reply:
    async with visit.services.db.transaction() as tx:
        await session.end_one(tx, visit.caller, visit.request_id, visit.params["id"])
    return Sent(f"{ROOT}/sessions?said=ended")


async def end_others(visit: Visit) -> Reply:
    async with visit.services.db.transaction() as tx:
        await session.end_others(tx, visit.caller, visit.request_id, visit.session_id)
    return Sent(f"{ROOT}/sessions?said=others_ended")
