"""Whose rows a list shows: those of `agentId`, and to an agent's key its own agent's."""

from typing import Final

from bursar.api.call import Call
from bursar.ids import is_id

# An id that no agent has, for a filter that must match nothing.
_NOBODY: Final = "nobody"


def wanted_agent(call: Call) -> str | None:
    """None: every agent of the account. A malformed id, or another agent's from an agent key,
    matches nothing."""
    wanted: str | None = call.query.get("agentId", call.caller.agent_id)
    if wanted is None or (is_id("ag", wanted) and call.caller.may_see_agent(wanted)):
        return wanted
    return _NOBODY
