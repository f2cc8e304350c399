"""Deposits and withdrawals of the account, or of one agent, as CSV."""

from typing import Final

from bursar.api.call import Stream
from bursar.console import agent_choice
from bursar.console.visit import Visit

DEPOSITS: Final = "GET /v1/deposits/export"
WITHDRAWALS: Final = "GET /v1/withdrawals/export"
FILTERS: Final = ("agentId", "from", "to")


async def deposits(visit: Visit) -> Stream:
    return await visit.stream(DEPOSITS, query=await _given(visit))


async def withdrawals(visit: Visit) -> Stream:
    return await visit.stream(WITHDRAWALS, query=await _given(visit))


async def _given(visit: Visit) -> dict[str, str]:
    given = {name: visit.query[name] for name in FILTERS if visit.query.get(name)}
    if "agentId" in given:
        given["agentId"] = await agent_choice.chosen(visit, given["agentId"])
    return given
