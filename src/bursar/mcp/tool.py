"""What a tool is, and how one is called. Each is one request to the API, so a key can do no more
with them than with the API.

Arguments are validated before anything is sent, by the same kinds of value that the API uses, so
that a model learns of all its mistakes at once. What they mean is for the API to judge.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from bursar.errors import ApiError, Fault, ValidationFailed, not_found
from bursar.form.kind import LocalName, Schema
from bursar.form.kinds import Text, Whole
from bursar.form.record import Field, Record
from bursar.mcp import words
from bursar.mcp.words import Fields

WAIT_SECONDS: Final = 30
# Where the service has its console.
CONSOLE: Final = "/console"
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

    @property
    def console(self) -> str | None:
        """The address of the console, where people decide; None: not known."""
        ...

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
    # The spend that waits for a person, and the page where that person decides.
    pending_id: str | None = None
    approval_url: str | None = None
    # The purchase, if it is one: what was asked for once is looked at, and not asked for again.
    purchase_id: str | None = None
    # It repeats an earlier answer.
    replayed: bool = False


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
    # Whether a local name may stand is for the service to say.
    if not all(isinstance(fault, LocalName) for fault in faults):
        return _explained(ValidationFailed(faults))

    def request(agent_id: str) -> ApiRequest:
        if given.get("agentId", agent_id) != agent_id:
            raise not_found("agent")
        return tool.request(given, agent_id)

    answer = await _asked(api, request)
    return answer if isinstance(answer, Result) else _with_page(tool.result(answer), api.console)


async def read_policy(api: Api) -> Result:
    """The policy of the key's agent, as the API shows it."""
    answer = await _asked(api, lambda agent_id: ApiRequest("GET", f"/v1/agents/{agent_id}"))
    return answer if isinstance(answer, Result) else Result("", answer.body["data"]["policy"])


async def _asked(api: Api, request: Callable[[str], ApiRequest]) -> ApiAnswer | Result:
    """The API's answer to the request for the key's agent, or what went wrong."""
    try:
        agent_id = await api.agent_id()
        # What is no id is the answer that says why there is none.
        known = isinstance(agent_id, str)
        answer = await api.send(request(agent_id)) if known else agent_id
    except ApiError as problem:
        return _explained(problem)
    if answer.status >= 400:
        return failure(answer.body["error"], answer.headers.get("retry-after"))
    return answer


def _explained(problem: ApiError) -> Result:
    return failure(problem.body("")["error"], problem.headers.get("Retry-After"))


def _with_page(result: Result, console: str | None) -> Result:
    """With the page where a person decides on what waits, in words and as a field."""
    if result.pending_id is None or console is None:
        return result
    url = f"{console}/transactions/{result.pending_id}"
    return replace(
        result,
        text=f"{result.text} Whoever may approve it decides at {url}",
        fields={**result.fields, "approvalUrl": url},
        approval_url=url,
    )


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
APPROVAL_URL: Final = text_schema(
    "Where a person decides on it, to tell your user or operator; null unless `pending`.",
    nullable=True,
)
DECISION: Final[dict[str, Schema]] = {
    "maxAmountNow": text_schema(
        "The largest amount that passed for this recipient at the moment of the decision;"
        ' "0.000000" when something other than the amount stands in the way.'
    ),
    "maxWithoutApproval": text_schema("How much of that passes without a person's approval."),
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
