"""What a tool is, and how one is called. Each is one request to the API, so a key can do no more
with them than with the API.

Arguments are validated before anything is sent, by the same kinds of value that the API uses, so
that a model learns of all its mistakes at once. What they mean is for the API to judge.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from bursar.errors import ApiError, Fault, ValidationFailed, not_found
from bursar.form.kind import LocalName, Schema
from bursar.form.kinds import Text, Whole
from bursar.form.record import Field, Record
from bursar.mcp import words
from bursar.mcp.words import Fields

WAIT_SECONDS: Final = 30
# A valid Idempotency-Key without spaces around it, which HTTP would strip.
KEY_PATTERN: Final = r"[!-~](?:[ -~]*[!-~])?"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Fields | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    status: int
    headers: Mapping[str, str]
    body: Fields


class Api(Protocol):
    """The API as one agent key sees it."""

    async def agent_id(self) -> "str | ApiAnswer":
        """The agent that the key is bound to, or the answer that says why there is none."""
        ...

    async def send(self, request: ApiRequest) -> ApiAnswer: ...


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool returns: the same content as a sentence and as fields."""

    text: str
    fields: Fields
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    title: str
    description: str
    inputs: Record
    output: Schema
    # Makes the tool's one API request from its arguments and the agent's id.
    request: Callable[[Fields, str], ApiRequest]
    result: Callable[[ApiAnswer], Result]
    spends: bool = False
    # Changes something, but pays nobody.
    changes: bool = False


async def call_tool(tool: Tool, arguments: Fields, api: Api) -> Result:
    """Never raises for a caller's mistake: a model can only correct what it is told."""
    # Models often send null for an argument that they leave out.
    given = {name: value for name, value in arguments.items() if value is not None}
    faults: list[Fault] = []
    tool.inputs.parse(given, "", faults)
    try:
        # Whether a local name may stand is for the service to say.
        if not all(isinstance(fault, LocalName) for fault in faults):
            raise ValidationFailed(faults)
        agent_id = await api.agent_id()
        if isinstance(agent_id, ApiAnswer):
            answer = agent_id
        elif given.get("agentId", agent_id) != agent_id:
            raise not_found("agent")
        else:
            answer = await api.send(tool.request(given, agent_id))
    except ApiError as problem:
        return failure(problem.body("")["error"], problem.headers.get("Retry-After"))
    if answer.status >= 400:
        return failure(answer.body["error"], answer.headers.get("retry-after"))
    return tool.result(answer)


def failure(error: Fields, retry_after: str | None = None) -> Result:
    shown = {name: value for name, value in error.items() if value != ""}
    # Bursar writes seconds; a proxy in between may write a date.
    seconds = int(retry_after) if retry_after and retry_after.isdecimal() else None
    if seconds is not None:
        shown["retryAfterSeconds"] = seconds
    return Result(words.failed(error, seconds), {"error": shown}, is_error=True)


# Arguments and schemas that several tools share ---------------------------------------------------


def object_schema(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def text_schema(doc: str, *, nullable: bool = False, **more: Any) -> Schema:
    return {"type": ["string", "null"] if nullable else "string", "description": doc, **more}


AGENT: Final = Field(
    "agentId", Text(1, 100), "Leave it out: the key says whose wallet it is. No other is allowed."
)
WAIT: Final = Field(
    "waitSeconds",
    Whole(0, WAIT_SECONDS),
    "Wait up to so many seconds for the payment to be final; 0 answers at once and is the default.",
)
REJECT_CODE: Final = text_schema(
    "Why it was refused; null unless `rejected`.", nullable=True, enum=[*words.RECOVERY, None]
)
DECISION: Final[dict[str, Schema]] = {
    "maxAmountNow": text_schema(
        "The largest amount that passed for this recipient at the moment of the decision;"
        ' "0.000000" when something other than the amount stands in the way.'
    ),
    "remainingToday": text_schema("What was left of the daily cap after the decision."),
    "retryAt": text_schema(
        "When this amount passes if nothing but time goes by; null when waiting does not help.",
        nullable=True,
    ),
    "failedChecks": {
        "type": "array",
        "description": "The rules that stood in the way, in the order they are looked at.",
        "items": object_schema(
            {
                "rule": text_schema("The rule of the policy."),
                "limit": text_schema("What it allows.", nullable=True),
                "observed": text_schema("What it saw.", nullable=True),
            }
        ),
    },
}
