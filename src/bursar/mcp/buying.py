"""The tools that buy from sellers on the web: HTTP 402, paid by the service."""

from typing import Final

from bursar.errors import not_found
from bursar.form.kind import Schema
from bursar.form.kinds import Amount, Metadata, Text
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.mcp import words
from bursar.mcp.tool import (
    AGENT,
    APPROVAL_URL,
    DECISION,
    KEY_PATTERN,
    REJECT_CODE,
    WAIT,
    ApiAnswer,
    ApiRequest,
    Result,
    Tool,
    object_schema,
    text_schema,
)
from bursar.mcp.words import Fields
from bursar.purchase.order import ORDER_FIELDS

# For how long the same method, URL, body and credentials are the same purchase, where the model
# gives no key.
SAME_SECONDS: Final = 600


def _ask_buy(given: Fields, agent_id: str) -> ApiRequest:
    body: Fields = {**given, "agentId": agent_id}
    key: str | None = body.pop("idempotencyKey", None)
    seconds: int = body.pop("waitSeconds", 0)
    headers = {"Prefer": f"same-within={SAME_SECONDS}"} if key is None else {"Idempotency-Key": key}
    return ApiRequest("POST", "/v1/purchases", body=body, headers=_waiting(headers, seconds))


def _ask_purchase(given: Fields, agent_id: str) -> ApiRequest:
    del agent_id
    return ApiRequest("GET", f"/v1/purchases/{_id(given)}")


def _ask_continue(given: Fields, agent_id: str) -> ApiRequest:
    del agent_id
    headers = _waiting({}, given.get("waitSeconds", 0))
    return ApiRequest("POST", f"/v1/purchases/{_id(given)}/continue", headers=headers)


def _ask_retry(given: Fields, agent_id: str) -> ApiRequest:
    del agent_id
    headers = _waiting({}, given.get("waitSeconds", 0))
    return ApiRequest("POST", f"/v1/purchases/{_id(given)}/retry", headers=headers)


def _id(given: Fields) -> str:
    if not is_id("pur", given["id"]):
        raise not_found("purchase")
    return given["id"]


def _waiting(headers: dict[str, str], seconds: int) -> dict[str, str]:
    if not seconds:
        return headers
    others = [headers["Prefer"]] if "Prefer" in headers else []
    return {**headers, "Prefer": ", ".join([*others, f"wait={seconds}"])}


def _purchase(answer: ApiAnswer) -> Result:
    found = answer.body["data"]
    replayed = answer.headers.get("idempotent-replayed") == "true"
    return Result(
        words.bought(found, replayed=replayed),
        words.purchase(found) | {"approvalUrl": None},
        pending_id=found["transactionId"] if found["status"] == "pending" else None,
        purchase_id=found["id"],
        replayed=replayed,
    )


_ID: Final = Field("id", Text(1, 100), "As `buy` gave it: pur_…", required=True)
_STATUS: Final = text_schema(
    "`presented`: the payment is with the seller, not final yet. `paid`: paid, final. `free`: it"
    " cost nothing. `pending`: waits for a person. `rejected`: the policy refused. `failed` and"
    " `unpaid`: nothing was paid. `open`: still being made.",
    enum=["open", "free", "failed", "rejected", "pending", "presented", "paid", "unpaid"],
)
_ANSWER: Final[Schema] = {
    "type": ["object", "null"],
    "description": "What the seller answered: the goods, if status is below 300. Null: no answer"
    " came, or it is no longer kept.",
    "properties": {
        "status": {"type": "integer", "description": "The HTTP status."},
        "contentType": text_schema("What the body is.", nullable=True),
        "body": text_schema("The body: text, or base64 where it is no text."),
        "encoding": text_schema("Of the body.", enum=["text", "base64"]),
        "truncated": {"type": "boolean", "description": "True: the body is longer than shown."},
    },
    "required": ["status", "contentType", "body", "encoding", "truncated"],
}
_OUTPUT: Final = object_schema(
    {
        "id": text_schema("For get_purchase, continue_purchase and retry_purchase."),
        "status": _STATUS,
        "url": text_schema("What was asked for."),
        "amount": text_schema("Its price in USDC; null while none is known.", nullable=True),
        "rejectCode": REJECT_CODE,
        "failureCode": text_schema("Why it failed; null unless `failed`.", nullable=True),
        "problem": text_schema("What went wrong, in words.", nullable=True),
        "transactionId": text_schema("Its spend, for get_transaction.", nullable=True),
        "createdAt": text_schema("When it was begun, UTC."),
        "approvalUrl": APPROVAL_URL,
        "response": _ANSWER,
        "decision": {
            **object_schema(DECISION),
            "type": ["object", "null"],
            "description": "What a refused agent needs to know; null while there is no price.",
        },
    }
)

BUYING_TOOLS: Final = (
    Tool(
        name="buy",
        title="Buy from a URL",
        description=(
            "Fetches a URL and, if its seller asks for money (HTTP 402), pays the price from this"
            " agent's wallet if the policy allows it, and returns what the seller answers. Use it"
            " instead of an ordinary fetch for paid APIs; what costs nothing is fetched alike. This"
            " moves real money and cannot be undone.\n"
            "Read `status`: `presented` or `paid` with a `response` is a success. `rejected`:"
            " nothing was paid, rejectCode says why. `pending`: a person has to approve it; then"
            " call continue_purchase. `presented` or `paid` without a usable `response`: call"
            " retry_purchase, which costs nothing more. Never buy the same again because its answer"
            " was lost.\n"
            "The same method, URL, body and credentials (Authorization, Cookie) within 10 minutes"
            " are the same purchase and are paid once, unless you give each its own idempotencyKey."
            " Set maxAmount to what it is worth to you."
        ),
        inputs=Record(
            "Buy",
            (
                *ORDER_FIELDS,
                Field(
                    "maxAmount",
                    Amount(),
                    'The most you would pay for it, in USDC, as a decimal string: "0.05".',
                ),
                Field(
                    "idempotencyKey",
                    Text(1, 255, pattern=KEY_PATTERN),
                    "One for each purchase, the same at every retry of it. Give one to buy the same"
                    " twice within 10 minutes.",
                ),
                WAIT,
                Field("memo", Text(0, 200), "What it is for, for the books."),
                Field("metadata", Metadata(), "Up to 50 pairs of your own, string values."),
                AGENT,
            ),
        ),
        output=_OUTPUT,
        request=_ask_buy,
        result=_purchase,
        spends=True,
    ),
    Tool(
        name="get_purchase",
        title="What became of a purchase?",
        description=(
            "One purchase of this agent by its id, as it is now: whether it is paid, still waits,"
            " or came to nothing and why, and for a day what the seller answered. Asks the seller"
            " nothing and pays nothing."
        ),
        inputs=Record("Purchase", (_ID,)),
        output=_OUTPUT,
        request=_ask_purchase,
        result=_purchase,
    ),
    Tool(
        name="continue_purchase",
        title="Go on after approval",
        description=(
            "Goes on with a purchase that was `pending`, once a person has approved it: asks the"
            " seller again and pays if price and payee are still the approved ones. If they are"
            " not, it ends `failed` with terms_changed and nothing is paid. An error invalid_state"
            " says that nobody has approved it yet."
        ),
        inputs=Record("ContinuePurchase", (_ID, WAIT)),
        output=_OUTPUT,
        request=_ask_continue,
        result=_purchase,
        spends=True,
    ),
    Tool(
        name="retry_purchase",
        title="Ask for the goods again",
        description=(
            "Shows the seller the payment of a `presented` or `paid` purchase once more, to get"
            " goods whose answer was lost or an error. It is the very same payment: nothing is paid"
            " twice, however often you call."
        ),
        inputs=Record("RetryPurchase", (_ID, WAIT)),
        output=_OUTPUT,
        request=_ask_retry,
        result=_purchase,
        spends=True,
    ),
)
