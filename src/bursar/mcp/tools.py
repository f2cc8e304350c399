"""The tools, all of them; those that buy from sellers on the web are in `mcp/buying.py`."""

from collections.abc import Mapping
from typing import Final

from bursar.errors import not_found
from bursar.form.kind import Schema
from bursar.form.kinds import Amount, Choice, Flag, Metadata, Recipient, Text, Whole
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.mcp import words
from bursar.mcp.buying import BUYING_TOOLS
from bursar.mcp.tool import (
    AGENT,
    APPROVAL_URL,
    DECISION,
    KEY_PATTERN,
    REJECT_CODE,
    WAIT,
    WAIT_SECONDS,
    ApiAnswer,
    ApiRequest,
    Result,
    Tool,
    object_schema,
    text_schema,
)
from bursar.mcp.words import Fields

_PAGE_ROWS: Final = 20
_MOST_PAGE_ROWS: Final = 100

INSTRUCTIONS: Final = (
    "Bursar holds your wallet. You can spend USDC within a policy that people set and that you"
    " cannot pass or change. Before a purchase ask get_budget or preview_spend. A refused spend is"
    " not an error: read rejectCode, maxAmountNow and retryAt, and act on them or ask your"
    " operator. Spends up to maxWithoutApproval need no person; larger ones wait for one, who may"
    " take hours. Give each purchase an idempotencyKey of its own and keep it: if a spend call"
    " fails or gets no answer, call again with the same key and arguments, and it is paid once."
    " To get something from a URL that costs money (HTTP 402), use buy, not spend."
)


# Requests -----------------------------------------------------------------------------------------


def _ask_budget(given: Fields, agent_id: str) -> ApiRequest:
    del given
    return ApiRequest("GET", f"/v1/agents/{agent_id}/budget")


def _ask_preview(given: Fields, agent_id: str) -> ApiRequest:
    return ApiRequest("POST", "/v1/spend/preview", body={**given, "agentId": agent_id})


def _ask_spend(given: Fields, agent_id: str) -> ApiRequest:
    body = {**given, "agentId": agent_id}
    headers = {"Idempotency-Key": body.pop("idempotencyKey")}
    if seconds := body.pop("waitSeconds", 0):
        headers["Prefer"] = f"wait={seconds}"
    return ApiRequest("POST", "/v1/spend/authorise", body=body, headers=headers)


def _ask_recipients(given: Fields, agent_id: str) -> ApiRequest:
    del given
    return ApiRequest("GET", f"/v1/agents/{agent_id}")


def _ask_transaction(given: Fields, agent_id: str) -> ApiRequest:
    del agent_id
    return ApiRequest("GET", f"/v1/transactions/{_id(given)}")


def _ask_outcome(given: Fields, agent_id: str) -> ApiRequest:
    del agent_id
    seconds = given.get("waitSeconds", WAIT_SECONDS)
    headers = {"Prefer": f"wait={seconds}"}
    return ApiRequest("GET", f"/v1/transactions/{_id(given)}", headers=headers)


def _ask_cancel(given: Fields, agent_id: str) -> ApiRequest:
    del agent_id
    body = {name: value for name, value in given.items() if name != "id"}
    return ApiRequest("POST", f"/v1/transactions/{_id(given)}/cancel", body=body)


def _id(given: Fields) -> str:
    if not is_id("txn", given["id"]):
        raise not_found("transaction")
    return given["id"]


def _ask_transactions(given: Fields, agent_id: str) -> ApiRequest:
    query = {"limit": _PAGE_ROWS, **given, "agentId": agent_id}
    return ApiRequest(
        "GET", "/v1/transactions", query={name: str(value) for name, value in query.items()}
    )


# Results ------------------------------------------------------------------------------------------


def _budget(answer: ApiAnswer) -> Result:
    found = answer.body["data"]
    # Tools of their own have these: they may be long, and a model reads every word each time.
    fields = {name: value for name, value in found.items() if name not in ("allowlist", "limits")}
    return Result(words.budget(found), fields)


def _limits(answer: ApiAnswer) -> Result:
    found = answer.body["data"]
    return Result(words.limits(found), {"limits": found["limits"]})


def _recipients(answer: ApiAnswer) -> Result:
    fields = words.recipients(answer.body["data"]["policy"])
    return Result(words.payable(fields), fields)


def _preview(answer: ApiAnswer) -> Result:
    found = answer.body["data"]
    fields = {name: found[name] for name in ("status", "rejectCode")} | words.decision(found)
    return Result(words.previewed(found), fields)


def _spend(answer: ApiAnswer) -> Result:
    found = answer.body["data"]
    replayed = answer.headers.get("idempotent-replayed") == "true"
    fields = _with_decision(found) | {"replayed": replayed}
    said = words.spent(found, replayed=replayed)
    return Result(said, fields, pending_id=_pending(found), replayed=replayed)


def _transaction(answer: ApiAnswer) -> Result:
    found = answer.body["data"]
    return Result(words.looked_up(found), _with_decision(found), pending_id=_pending(found))


def _with_decision(found: Fields) -> Fields:
    return words.transaction(found) | words.decision(found) | {"approvalUrl": None}


def _pending(found: Fields) -> str | None:
    return found["id"] if found["status"] == "pending" else None


def _cancelled(answer: ApiAnswer) -> Result:
    found = answer.body["data"]
    return Result(words.cancelled(found), words.transaction(found))


def _transactions(answer: ApiAnswer) -> Result:
    rows = [words.transaction(found) for found in answer.body["data"]]
    cursor = answer.body["nextCursor"]
    return Result(words.listed(len(rows), cursor), {"transactions": rows, "nextCursor": cursor})


# Schemas ------------------------------------------------------------------------------------------


def _entries(doc: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": doc}


_STATUSES: Final = ["pending", "approved", "settled", "rejected"]
_STATUS: Final = text_schema(
    "`approved`: reserved and being paid. `settled`: paid, final. `pending`: waits for a person."
    " `rejected`: refused, nothing is paid.",
    enum=_STATUSES,
)
_TRANSACTION: Final[dict[str, Schema]] = {
    "id": text_schema("For get_transaction."),
    "status": _STATUS,
    "rejectCode": REJECT_CODE,
    "amount": text_schema("Six decimal places."),
    "currency": text_schema("USDC."),
    "recipient": text_schema("Hostname or address, in its canonical form."),
    "memo": text_schema("Your note.", nullable=True),
    "createdAt": text_schema("When it was decided, UTC."),
    "settledAt": text_schema("When it was final on the chain.", nullable=True),
    "signature": text_schema("The payment's signature on the chain, once settled.", nullable=True),
    "expiresAt": text_schema("Until when a pending spend can be approved.", nullable=True),
    "decisionReason": text_schema("What the person who decided wrote.", nullable=True),
}
_LIMIT: Final[dict[str, Schema]] = {
    "limitId": text_schema("As a decision's checks name it."),
    "budgetId": text_schema("The shared budget that it is of; null: your policy.", nullable=True),
    "window": text_schema(
        "In UTC; a week starts on Monday.", enum=["hour", "day", "week", "month", "lifetime"]
    ),
    "recipient": text_schema("If only spends to it count.", nullable=True),
    "amount": text_schema("The most that may be spent in the window.", nullable=True),
    "count": {"type": ["integer", "null"], "description": "The most spends in the window."},
    "usedAmount": text_schema("What was spent in it so far."),
    "usedCount": {"type": "integer", "description": "How many spends were made in it so far."},
    "resetsAt": text_schema("When the count starts again; null: never.", nullable=True),
}
_TRANSACTION_ID: Final = Field(
    "id", Text(1, 100), "As `spend` or a list gave it: txn_…", required=True
)
_PURCHASE: Final = (
    Field(
        "amount",
        Amount(),
        'How much, in USDC, as a decimal string: "12.50". Never a number.',
        required=True,
    ),
    Field(
        "recipient",
        Recipient(),
        "Who is paid: a bare hostname such as api.example.com (no https://, no path), or a base58"
        " Solana address.",
        required=True,
    ),
    Field(
        "allowOffCurve",
        Flag(),
        "True pays an address that no key can spend from, such as a program's vault.",
    ),
    Field("memo", Text(0, 200), "What it is for, for the books; up to 200 characters."),
    Field("metadata", Metadata(), "Up to 50 pairs of your own, string values, 8 KiB in all."),
    AGENT,
)

TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        Tool(
            name="get_budget",
            title="What can I spend now?",
            description=(
                "What this agent may spend at this moment: maxAmountNow is the largest single"
                " payment that passes to an allowed recipient, maxWithoutApproval the largest that"
                " passes without a person; dailyCap, spentToday and remainingToday say how much of"
                " the day is used, spentTodayBy how far it came; resetsAt is when the day's count"
                " starts again; available is what the wallet holds. Changes nothing."
            ),
            inputs=Record("Budget", (AGENT,)),
            output=object_schema(
                {
                    "dailyCap": text_schema("The most that may be spent in a UTC day."),
                    "spentToday": text_schema("Counted towards today, waiting spends included."),
                    "spentTodayBy": {
                        **object_schema(
                            {
                                "settled": text_schema("Paid, final."),
                                "onItsWay": text_schema("Approved, being paid."),
                                "waiting": text_schema("Waits for a person's approval."),
                            }
                        ),
                        "description": "The same by how far it came; the three add up to it.",
                    },
                    "remainingToday": text_schema("What is left of the daily cap."),
                    "reserved": text_schema("What is reserved for payments that are not final."),
                    "available": text_schema("What the wallet holds and has not reserved."),
                    "maxAmountNow": text_schema("The largest single payment that passes now."),
                    "maxWithoutApproval": text_schema("The largest that passes without a person."),
                    "approvalThreshold": text_schema(
                        "Payments above it wait for a person's approval; null: none do.",
                        nullable=True,
                    ),
                    "resetsAt": text_schema("When the day's count starts again, UTC."),
                    "status": text_schema("Of the agent.", enum=["active", "paused", "terminated"]),
                    "frozen": {"type": "boolean", "description": "True: nothing can be spent."},
                    "accountStopped": {
                        "type": "boolean",
                        "description": "True: a person stopped every agent of the account.",
                    },
                    "budgetFrozen": {
                        "type": "boolean",
                        "description": "True: a person stopped a budget that you share.",
                    },
                    "policyVersion": {"type": "integer", "description": "Of the policy in force."},
                }
            ),
            request=_ask_budget,
            result=_budget,
        ),
        Tool(
            name="list_limits",
            title="Which limits and budgets stand over me?",
            description=(
                "Every limit beside the daily cap that this agent's spends must fit, and what is"
                " used of it: those of its own policy, and those of budgets that it shares with"
                " other agents, which may use them up too. resetsAt is when the count starts again."
                " Ask it when get_budget allows less than you expect, or after a spend was refused"
                " with limit_exceeded or budget_exceeded. Changes nothing."
            ),
            inputs=Record("Limits", (AGENT,)),
            output=object_schema(
                {
                    "limits": {
                        "type": "array",
                        "description": "In the order in which a spend is checked.",
                        "items": object_schema(_LIMIT),
                    }
                }
            ),
            request=_ask_budget,
            result=_limits,
        ),
        Tool(
            name="list_recipients",
            title="Whom may I pay?",
            description=(
                "Whom this agent's policy lets it pay: the entries of its allowlist, and of the"
                " blocklist, which wins. A hostname stands for exactly that host, *.example.com for"
                " every host below example.com, * for anybody. Whether a payment to one of them"
                " passes now, preview_spend tells: amounts, and the address that a host is paid at,"
                " are judged there. Changes nothing."
            ),
            inputs=Record("Recipients", (AGENT,)),
            output=object_schema(
                {
                    "anyone": {
                        "type": "boolean",
                        "description": "True: everybody but those of the blocklist.",
                    },
                    "allowlist": _entries("Who may be paid."),
                    "blocklist": _entries("Who may not, whatever the allowlist says."),
                    "truncated": {
                        "type": "boolean",
                        "description": f"True: a list is longer than the {words.MOST_ENTRIES}"
                        " entries shown. preview_spend knows all of them.",
                    },
                    "policyVersion": {"type": "integer", "description": "Of the policy in force."},
                }
            ),
            request=_ask_recipients,
            result=_recipients,
        ),
        Tool(
            name="preview_spend",
            title="Would this spend pass?",
            description=(
                "What `spend` would answer now for this amount and recipient. Nothing is spent,"
                " reserved or recorded, so it is safe to call at any time. If status is `rejected`:"
                " rejectCode says why, maxAmountNow what would pass, retryAt when this amount"
                " would. `pending` means that a person will have to approve it. Only `spend` itself"
                " decides: things may change in between."
            ),
            inputs=Record("Preview", _PURCHASE),
            output=object_schema({"status": _STATUS, "rejectCode": REJECT_CODE, **DECISION}),
            request=_ask_preview,
            result=_preview,
        ),
        Tool(
            name="spend",
            title="Spend",
            description=(
                "Pays a recipient from this agent's wallet, if the policy allows it. This moves"
                " real money and cannot be undone.\n"
                "Read `status`: `approved` (reserved, being paid), `settled` (paid, final),"
                " `pending` (waits for a person's approval), or `rejected`: nothing was paid, and"
                " rejectCode says why, maxAmountNow what would pass now, retryAt when this amount"
                " would pass.\n"
                "idempotencyKey makes one purchase one payment. Choose one for each purchase, for"
                " example from the order number, and use it in no other. No answer, a timeout or an"
                " error: call again with the same key and the same arguments; it is paid once."
                " Never take a new key just because you did not see the answer. After a `rejected`"
                " answer, or to buy again, take a new key: the old one only repeats its answer"
                " (replayed: true)."
            ),
            inputs=Record(
                "Spend",
                (
                    *_PURCHASE,
                    Field(
                        "idempotencyKey",
                        Text(1, 255, pattern=KEY_PATTERN),
                        "One for each purchase, the same at every retry of it: 1 to 255 printable"
                        " ASCII characters, such as order-1042.",
                        required=True,
                    ),
                    WAIT,
                ),
            ),
            output=object_schema(
                {
                    **_TRANSACTION,
                    **DECISION,
                    "approvalUrl": APPROVAL_URL,
                    "replayed": {
                        "type": "boolean",
                        "description": "True: the answer of an earlier call with this key. Nothing"
                        " was paid by this one.",
                    },
                }
            ),
            request=_ask_spend,
            result=_spend,
            spends=True,
        ),
        Tool(
            name="cancel_spend",
            title="Call off a spend",
            description=(
                "Calls off a spend of yours that is `pending`, so that no person has to decide on"
                " it; its amount is available again. Only what still waits can be cancelled: one"
                " that was approved is being paid."
            ),
            inputs=Record(
                "Cancel",
                (
                    _TRANSACTION_ID,
                    Field("reason", Text(0, 500), "Why, for the books."),
                ),
            ),
            output=object_schema(_TRANSACTION),
            request=_ask_cancel,
            result=_cancelled,
            changes=True,
        ),
        Tool(
            name="get_transaction",
            title="What became of a spend?",
            description=(
                "One spend of this agent by its id, as it is now: whether it was settled (with the"
                " signature on the chain), still waits, or was rejected and why. maxAmountNow,"
                " remainingToday and retryAt are those of the moment it was decided; get_budget has"
                " today's."
            ),
            inputs=Record("Transaction", (_TRANSACTION_ID,)),
            output=object_schema({**_TRANSACTION, **DECISION, "approvalUrl": APPROVAL_URL}),
            request=_ask_transaction,
            result=_transaction,
        ),
        Tool(
            name="wait_for_transaction",
            title="Wait for a spend",
            description=(
                "The same as get_transaction, but it answers when the spend is `settled` or"
                " `rejected`, or after waitSeconds as it stands then. A spend that is `approved` is"
                " paid within seconds. One that is `pending` waits for a person: call again, do"
                " something else meanwhile, or call it off with cancel_spend."
            ),
            inputs=Record(
                "Outcome",
                (
                    _TRANSACTION_ID,
                    Field(
                        "waitSeconds",
                        Whole(1, WAIT_SECONDS),
                        f"How long to wait at most; {WAIT_SECONDS} by default.",
                    ),
                ),
            ),
            output=object_schema({**_TRANSACTION, **DECISION, "approvalUrl": APPROVAL_URL}),
            request=_ask_outcome,
            result=_transaction,
        ),
        Tool(
            name="list_transactions",
            title="What did I spend?",
            description=(
                "This agent's spends, newest first, refused ones too. Use it to see whether a"
                " purchase was already made before making it again. Filters can be combined."
            ),
            inputs=Record(
                "Transactions",
                (
                    Field("status", Choice(("all", *_STATUSES)), "Only those in this state."),
                    Field("recipient", Recipient(), "Only those to this hostname or address."),
                    Field("from", Text(8, 40), "Created from this date or time on: 2026-11-30."),
                    Field("to", Text(8, 40), "Created before this time; a bare date is included."),
                    Field(
                        "limit",
                        Whole(1, _MOST_PAGE_ROWS),
                        f"How many; {_PAGE_ROWS} by default, at most {_MOST_PAGE_ROWS}.",
                    ),
                    Field("after", Text(1, 1_000), "`nextCursor` of the page before."),
                    AGENT,
                ),
            ),
            output=object_schema(
                {
                    "transactions": {"type": "array", "items": object_schema(_TRANSACTION)},
                    "nextCursor": text_schema(
                        "Pass it as `after`; null on the last page.", nullable=True
                    ),
                }
            ),
            request=_ask_transactions,
            result=_transactions,
        ),
        *BUYING_TOOLS,
    )
}
