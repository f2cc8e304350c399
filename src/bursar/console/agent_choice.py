"""An agent as people name it in a form: by its name, a part of that, or its id.

The field suggests "Travel desk (ag_…)" and takes it back. Where a browser runs no script it
suggests only the newest agents, but takes any name all the same.
"""

import re
from typing import Any, Final

from bursar.console import store
from bursar.console.store import Named
from bursar.console.visit import ROOT, Drawn, Reply, Visit
from bursar.errors import Fault, ValidationFailed
from bursar.ids import is_id

# What a field suggests at once.
_SUGGESTED: Final = 50
# How many of those that fit are named when a name was not clear.
_TOLD: Final = 3
_ID_AT_END: Final = re.compile(r"(?:\A|\()(ag_[0-9a-z]{26})\)?\Z", re.ASCII)
_FIELD: Final = "agentId"


def spoken(agent: Named) -> str:
    return f"{agent.name} ({agent.id})"


async def suggestions(visit: Visit, words: str = "") -> list[Named]:
    """For a key of one agent nothing: it has no choice."""
    if visit.caller.agent_id is not None:
        return []
    async with visit.services.db.connection() as tx:
        return await store.named_agents(tx, visit.caller.realm_id, words, _SUGGESTED)


async def names(visit: Visit) -> Reply:
    """What a field suggests for what was typed so far; the page's script asks for it."""
    found = await suggestions(visit, visit.query.get("q", "").strip())
    return Drawn("agent_names.html", {"suggested": found})


async def chosen(visit: Visit, said: str) -> str:
    """The id of the agent that is meant. An id is taken as it is: the route that it is for knows
    whether there is such an agent, and whose."""
    ending = _ID_AT_END.search(said)
    if ending is not None:
        return ending[1]
    if not said or visit.caller.agent_id is not None:
        return said
    found = await suggestions(visit, said)
    found = [agent for agent in found if agent.name.casefold() == said.casefold()] or found
    if not found:
        raise _unclear(f"No agent is called “{said}”.")
    if len(found) > 1:
        fit = ", ".join(spoken(agent) for agent in found[:_TOLD])
        more = " and others" if len(found) > _TOLD else ""
        raise _unclear(f"More than one agent fits: {fit}{more}. Choose one of them.")
    return found[0].id


async def field(visit: Visit, said: str) -> dict[str, Any]:
    """What the template's field shows: an agent's name in place of its id, and suggestions."""
    known = await suggestions(visit, said) if is_id("ag", said) else []
    return {
        "value": spoken(known[0]) if known else said,
        "suggested": await suggestions(visit),
        "more": f"{ROOT}/agents/names",
    }


def _unclear(message: str) -> ValidationFailed:
    return ValidationFailed([Fault(_FIELD, message)])
