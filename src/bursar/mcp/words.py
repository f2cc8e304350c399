"""The API's answers as a model needs them: few fields, and a sentence that says what to do next.

The sentences and the fields say the same: some clients show a model only the text, some only the
structured result.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

Fields = dict[str, Any]
_MINUTE: Final = timedelta(minutes=1)

# What can be done about each refusal: first those of the decision, then those that come later.
RECOVERY: Final[Mapping[str, str]] = {
    "account_stopped": "A person stopped every agent of this account. Only a person can resume"
    " them; ask your operator.",
    "agent_terminated": "This agent was terminated for good. Stop spending and tell your operator.",
    "agent_paused": "A person paused this agent. Only a person can resume it; ask your operator.",
    "policy_frozen": "A person froze this agent's policy. Only a person can lift that; ask your"
    " operator.",
    "budget_frozen": "A person froze a budget that this agent spends from. Only a person can lift"
    " that; ask your operator.",
    "recipient_blocked": "The policy forbids this recipient, whatever the amount. Choose another"
    " recipient or ask your operator.",
    "recipient_not_allowed": "This recipient is not on the allowlist, so no amount passes. Choose"
    " another recipient or ask your operator to allow this one.",
    "recipient_unresolved": "Nobody has set the address this recipient is paid at, so no amount"
    " passes. Ask your operator to add it to the recipients directory.",
    "payee_mismatch": "The seller wants to be paid at another address than your operator has set"
    " for its host. Buy nothing there before your operator has looked into it.",
    "payee_changed": "The seller wants to be paid at another address than before. Only a person can"
    " accept the new one; ask your operator.",
    "payee_account_missing": "The seller's address cannot take USDC yet, so nobody can pay it this"
    " way. Buy elsewhere, or tell your operator.",
    "max_amount_exceeded": "The seller asks for more than your own maxAmount. Raise that if the"
    " price is worth it, or buy elsewhere.",
    "per_transaction_cap_exceeded": "The amount is over the most that one payment may be.",
    "daily_cap_exceeded": "The amount does not fit into what is left of today's cap.",
    "limit_exceeded": "The amount does not fit into what is left of a limit of your policy.",
    "budget_exceeded": "The amount does not fit into what is left of a budget that you share with"
    " other agents.",
    "network_cost_exceeded": "What your payments may cost the network in a day is used up, or this"
    " recipient costs too much to reach. Try later, pay somebody you paid before, or ask your"
    " operator.",
    "too_many_pending": "Too many of your spends already wait for a person. Spend no more than"
    " needs no approval, or wait until some are decided.",
    "insufficient_funds": "The wallet does not hold enough. Spend less, or ask your operator to"
    " fund it.",
    "approval_denied": "A person looked at this spend and said no. Do not try it again unless you"
    " are told to.",
    "approval_expired": "Nobody approved this spend in time, so nothing was paid. Ask your operator"
    " before trying again.",
    "cancelled": "This spend was called off before it was paid; nothing was paid. Do not try it"
    " again unless you are told to.",
    "hold_expired": "The amount was held and not captured in time, so nothing was paid. Hold it"
    " anew if it is still wanted.",
    "purchase_expired": "The seller never had the payment executed, and it no longer can; nothing"
    " was paid. Buy again if it is still wanted.",
    "terms_changed": "The seller's price or address was no longer the approved one, so nothing was"
    " paid. Buy again if the new terms are worth it.",
    "settlement_failed": "The payment could not be made on the chain; nothing was paid and the"
    " amount is available again.",
}
_NEW_KEY: Final = "Another try needs a new idempotencyKey: this one only repeats this answer."
_NOTHING: Final = "0.000000"
# What a model is shown of a list of the policy at most.
MOST_ENTRIES: Final = 200
# What a model is shown of a seller's answer at most; base64 of it stays valid where it is cut.
_MOST_CHARACTERS: Final = 64 * 1024
_ASK_AGAIN: Final = (
    "retry_purchase asks for the goods with the same payment, at no further cost. Do not buy again."
)
_BOUGHT: Final[Mapping[str, str]] = {
    "open": "Still being made. get_purchase shows how it went on. Do not buy again.",
    "free": "The seller asked for no money; `response` has its answer.",
    "pending": "Costs {amount} USDC, and a person has to approve it; the amount is reserved. Once"
    " it is approved call continue_purchase. Do not buy again.",
    "presented": "The payment of {amount} USDC is with the seller; it is final when the status is"
    " `paid`.",
    "paid": "Paid {amount} USDC, final on the chain.",
    "unpaid": "The seller never took the payment of {amount} USDC; nothing was paid and the amount"
    " is available again.",
}
_STATUS: Final[Mapping[str, str]] = {
    "approved": "Approved: the amount is reserved and is being paid; status `settled` means it is"
    " final. get_transaction shows how it went on. Do not spend again for the same purchase.",
    "settled": "Settled: paid, final on the chain.",
}


def transaction(found: Fields) -> Fields:
    """One spend, as it is listed."""
    names = (
        "id", "status", "rejectCode", "amount", "currency", "recipient", "memo", "createdAt",
        "settledAt", "signature", "expiresAt", "decisionReason",
    )  # fmt: skip
    return {name: found[name] for name in names}


def decision(found: Fields) -> Fields:
    """What a refused agent needs to know: what would pass, when, and which rules failed."""
    made = found["decision"]
    return {
        "maxAmountNow": made["maxAmountNow"],
        "maxWithoutApproval": made["maxWithoutApproval"],
        "remainingToday": made["remainingToday"],
        "retryAt": made["retryAt"],
        "failedChecks": [
            {name: check[name] for name in ("rule", "limit", "observed")}
            for check in made["checks"]
            if check["outcome"] == "fail"
        ],
    }


def purchase(found: Fields) -> Fields:
    """One purchase, with as much of what was bought as a model can read."""
    names = (
        "id", "status", "url", "amount", "rejectCode", "failureCode", "problem", "transactionId",
        "createdAt",
    )  # fmt: skip
    answer, made = found["response"], found["decision"]
    return {
        **{name: found[name] for name in names},
        "response": None if answer is None else _goods(answer),
        "decision": None if made is None else decision(found),
    }


def bought(found: Fields, *, replayed: bool) -> str:
    """What became of a purchase."""
    status: str = found["status"]
    if status == "rejected":
        spend: Fields = found["transaction"] or {}
        said = ["Refused, nothing was paid.", *_refusal({**spend, **found})]
    elif status == "failed":
        said = [f"Nothing was paid: {found['failureCode']}. {found['problem'] or ''}".rstrip()]
    elif status in ("presented", "paid"):
        said = [_BOUGHT[status].format(amount=found["amount"]), *_delivery(found["response"])]
    else:
        said = [_BOUGHT[status].format(amount=found["amount"])]
    if replayed:
        said.insert(0, "You asked for this before: nothing was fetched or paid again.")
    return f"{found['id']}: {' '.join(said)}"


def _goods(answer: Fields) -> Fields:
    kinds = [value for name, value in answer["headers"].items() if name.lower() == "content-type"]
    body: str = answer["body"]
    return {
        "status": answer["status"],
        "contentType": kinds[0] if kinds else None,
        "body": body[:_MOST_CHARACTERS],
        "encoding": answer["encoding"],
        "truncated": answer["truncated"] or len(body) > _MOST_CHARACTERS,
    }


def _delivery(answer: Fields | None) -> list[str]:
    if answer is None:
        return [f"No answer of the seller is there. {_ASK_AGAIN}"]
    if answer["status"] >= 400:
        return [f"The seller answered {answer['status']}. {_ASK_AGAIN}"]
    return [f"The seller answered {answer['status']}; `response` has it."]


def spent(found: Fields, *, replayed: bool) -> str:
    """What became of a spend."""
    said = f"{found['id']}: {_outcome(found)}"
    if replayed:
        said = (
            "This idempotencyKey was used before for this very purchase. Nothing was paid again;"
            f" get_transaction shows it as it is now. {said}"
        )
    return said


def previewed(found: Fields) -> str:
    """What would become of a spend; nothing has happened yet."""
    said = {
        "approved": "This spend would be approved.",
        "pending": "This spend would wait for a person's approval. Up to"
        f" {found['decision']['maxWithoutApproval']} passes without.",
    }.get(found["status"]) or f"This spend would be refused. {' '.join(_refusal(found))}"
    return f"{said} Nothing was spent or reserved."


def looked_up(found: Fields) -> str:
    return f"{found['id']}: {_outcome(found)}"


def listed(count: int, cursor: str | None) -> str:
    more = "" if cursor is None else " There are more: pass nextCursor as `after`."
    return f"{count} transaction{'' if count == 1 else 's'}, newest first.{more}"


def cancelled(found: Fields) -> str:
    return f"{found['id']}: Cancelled. Nothing was paid, and the amount is available again."


def budget(found: Fields) -> str:
    if found["accountStopped"]:
        return "Nothing can be spent: every agent of the account is stopped. Ask your operator."
    if found["status"] != "active" or found["frozen"]:
        state = "frozen" if found["status"] == "active" else found["status"]
        return f"Nothing can be spent: the agent is {state}. Ask your operator."
    if found["budgetFrozen"]:
        return "Nothing can be spent: a budget that you share is stopped. Ask your operator."
    return (
        f"Up to {found['maxAmountNow']} USDC passes now in one payment{_alone(found)}. Spent today:"
        f" {found['spentToday']} of {found['dailyCap']}; the count starts again at"
        f" {found['resetsAt']}. The wallet has {found['available']} available."
    )


def limits(found: Fields) -> str:
    rows: list[Fields] = found["limits"]
    if not rows:
        return "No limit stands over you but the daily cap; get_budget has it."
    said = [f"{len(rows)} limit{'' if len(rows) == 1 else 's'} beside the daily cap."]
    full = [row for row in rows if _is_full(row)]
    for row in full:
        whose = "your policy" if row["budgetId"] is None else "a budget that you share"
        again = "never opens again" if row["resetsAt"] is None else f"opens at {row['resetsAt']}"
        said.append(f"Used up: {row['limitId']} of {whose}, by the {row['window']}; it {again}.")
    if not full:
        said.append("None is used up.")
    return " ".join(said)


def _is_full(row: Fields) -> bool:
    amount, count = row["amount"], row["count"]
    return (amount is not None and Decimal(row["usedAmount"]) >= Decimal(amount)) or (
        count is not None and row["usedCount"] >= count
    )


def recipients(policy: Fields) -> Fields:
    """Whom the policy lets an agent pay, as much of it as a model can read."""
    allowed: list[str] = policy["allowlist"]
    blocked: list[str] = policy["blocklist"]
    return {
        "anyone": "*" in allowed,
        "allowlist": allowed[:MOST_ENTRIES],
        "blocklist": blocked[:MOST_ENTRIES],
        "truncated": max(len(allowed), len(blocked)) > MOST_ENTRIES,
        "policyVersion": policy["version"],
    }


def payable(found: Fields) -> str:
    if found["anyone"]:
        said = "Anybody may be paid."
    elif found["allowlist"]:
        said = f"May be paid: {', '.join(found['allowlist'])}."
    else:
        said = "Nobody may be paid: the allowlist is empty. Ask your operator."
    if found["blocklist"]:
        said += f" Never: {', '.join(found['blocklist'])}."
    return f"{said} There are more." if found["truncated"] else said


def failed(error: Fields, retry_after: int | None) -> str:
    """An error: nothing was decided, or the decision is not known."""
    lines = [f"Error {error['code']}: {error['message']}"]
    details: list[Fields] = error.get("details", [])
    lines += [f"- {detail['param']}: {detail['message']}" for detail in details[1:]]
    if retry_after is not None:
        lines.append(f"Try again in {retry_after} s.")
    return "\n".join(lines)


def _outcome(found: Fields) -> str:
    status: str = found["status"]
    if status == "rejected":
        return " ".join(["Refused, nothing was paid.", *_refusal(found), _NEW_KEY])
    if status == "pending":
        return (
            f"Waiting for a person's approval until {found['expiresAt']}; the amount is reserved."
            " wait_for_transaction shows the outcome. Do not spend again for the same purchase."
        )
    return _STATUS[status]


def _refusal(found: Fields) -> list[str]:
    """Why, and what would pass. The amounts and times are those of the moment of the decision."""
    code: str = found["rejectCode"]
    said = [f"Reason: {code}. {RECOVERY[code]}"]
    if found.get("decisionReason"):
        said.append(f"They wrote: {found['decisionReason']!r}.")
    made = found["decision"]
    # A spend that passed and was rejected later says nothing about amounts.
    if any(check["outcome"] == "fail" for check in made["checks"]):
        if made["maxAmountNow"] != _NOTHING:
            said.append(f"Up to {made['maxAmountNow']} passes now{_alone(made)}.")
        if made["retryAt"] is not None:
            wait = _until(found.get("createdAt"), made["retryAt"])
            said.append(f"This amount passes at {made['retryAt']}{wait} if nothing else changes.")
    return said


def _alone(found: Fields) -> str:
    """How much of what passes needs no person, where that is less."""
    if found["maxWithoutApproval"] == found["maxAmountNow"]:
        return ""
    if found["maxWithoutApproval"] == _NOTHING:
        return ", but only with a person's approval"
    return f", of which up to {found['maxWithoutApproval']} without a person's approval"


def _until(start: str | None, end: str) -> str:
    """How long it is until then, for a model that has no clock."""
    if start is None:
        return ""
    passing = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    hours, minutes = divmod(-(-passing // _MINUTE), 60)
    return f" (in {hours} h {minutes} min)"
