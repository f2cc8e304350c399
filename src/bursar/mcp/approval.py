"""Asks the client's user to open the console's page of a spend that waits for a person.

Opening it approves nothing: the page wants to know who is there, and a person decides on it or does
not. So neither a client nor a model can say yes in a person's place, and nothing that a client
answers is believed: the tool is called again, and tells what it then finds.
"""

from typing import Final

from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.types import (
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bursar.errors import present
from bursar.mcp.tool import WAIT_SECONDS, Result, Tool
from bursar.mcp.words import Fields

_QUESTION: Final = "approval"
_MESSAGE: Final = (
    "A payment of your agent waits for a person's approval. The page shows what it is for; whoever"
    " may approve it decides there."
)
# Clients give a tool a minute; the rest of it is for the wait that follows.
_ASK_SECONDS: Final = 25


def is_asked(session: ServerSession, tool: Tool, result: Result) -> bool:
    """Whether a person is asked: once for each spend, and only where the client opens pages."""
    known = session.client_capabilities
    opens = known and known.elicitation and known.elicitation.url
    waits = tool.spends and result.approval_url is not None and not result.replayed
    return opens is not None and waits and (_in_rounds(session) or session.can_send_request)


async def ask(session: ServerSession, result: Result) -> InputRequiredResult | bool:
    """The question, where the protocol takes it as an answer to which the client repeats its call;
    else whether the user agreed to open the page."""
    params = ElicitRequestURLParams(
        message=_MESSAGE, url=present(result.approval_url, "there is a page to open")
    )
    if _in_rounds(session):
        # Which purchase it is about, for the call that follows.
        return InputRequiredResult(
            input_requests={_QUESTION: ElicitRequest(params=params)},
            request_state=result.purchase_id,
        )
    # Before rounds, each question had a name.
    params.elicitation_id = result.pending_id
    try:
        answer = await session.send_request(
            ElicitRequest(params=params), ElicitResult, request_read_timeout_seconds=_ASK_SECONDS
        )
    except MCPError:
        return False
    return answer.action == "accept"


def has_agreed(responses: InputResponses) -> bool:
    answer = responses.get(_QUESTION)
    return isinstance(answer, ElicitResult) and answer.action == "accept"


def patient(tool: Tool, given: Fields) -> Fields:
    """The arguments of the call that follows: while somebody is on the page, the answer waits."""
    return {"waitSeconds": WAIT_SECONDS, **given} if tool.name == "spend" else given


def _in_rounds(session: ServerSession) -> bool:
    return session.protocol_version in MODERN_PROTOCOL_VERSIONS
