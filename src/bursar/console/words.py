"""What the console calls things: every code and rule in words that people use."""

from typing import Final

from bursar.policy.engine import RejectCode, Rule
from bursar.policy.limits import Window
from bursar.purchase.model import FailureCode, PurchaseStatus

REFUSALS: Final[dict[RejectCode, str]] = {
    RejectCode.ACCOUNT_STOPPED: "Every agent of the account is stopped.",
    RejectCode.AGENT_TERMINATED: "The agent is terminated.",
    RejectCode.AGENT_PAUSED: "The agent is paused.",
    RejectCode.POLICY_FROZEN: "The agent's policy is frozen.",
    RejectCode.BUDGET_FROZEN: "A budget above the agent is frozen.",
    RejectCode.RECIPIENT_BLOCKED: "The recipient is on the blocklist.",
    RejectCode.RECIPIENT_NOT_ALLOWED: "The recipient is not on the allowlist.",
    RejectCode.RECIPIENT_UNRESOLVED: "Nobody has said at which address this recipient is paid.",
    RejectCode.PAYEE_MISMATCH: "The seller wants to be paid elsewhere than the directory says.",
    RejectCode.PAYEE_CHANGED: "The seller wants to be paid elsewhere than before.",
    RejectCode.PAYEE_ACCOUNT_MISSING: "The seller's address cannot take USDC yet.",
    RejectCode.MAX_AMOUNT_EXCEEDED: "More than the agent itself wanted to pay.",
    RejectCode.PER_TRANSACTION_CAP_EXCEEDED: "More than a single spend may be.",
    RejectCode.DAILY_CAP_EXCEEDED: "More than was left of the day's cap.",
    RejectCode.LIMIT_EXCEEDED: "More than was left of a limit of the policy.",
    RejectCode.BUDGET_EXCEEDED: "More than was left of a budget above the agent.",
    RejectCode.NETWORK_COST_EXCEEDED: "More than was left for network fees and token accounts.",
    RejectCode.TOO_MANY_PENDING: "Too many spends of this agent already wait for a person.",
    RejectCode.INSUFFICIENT_FUNDS: "More than the wallet had available.",
    RejectCode.APPROVAL_DENIED: "A person denied it.",
    RejectCode.APPROVAL_EXPIRED: "Nobody decided in time.",
    RejectCode.CANCELLED: "It was called off before it was paid.",
    RejectCode.HOLD_EXPIRED: "It was held, and nobody took the money in time.",
    RejectCode.PURCHASE_EXPIRED: "The seller did not take the payment; the funds are back.",
    RejectCode.TERMS_CHANGED: "The seller changed price or payee after it was approved.",
    RejectCode.SETTLEMENT_FAILED: "It could not be paid on the chain; the funds are back.",
}

# Why a purchase ended with nothing signed.
FAILURES: Final[dict[FailureCode, str]] = {
    "seller_unreachable": "The seller gave no answer.",
    "interrupted": "The service stopped in the middle, or the chain was out of reach.",
    "unsupported_payment": "The seller takes no payment that Bursar makes.",
    "terms_changed": "The seller changed price or payee after it was approved.",
    "not_continued": "It was approved, and the agent did not go on with it in time.",
}
# What became of a purchase, for states that say it themselves.
PURCHASES: Final[dict[PurchaseStatus, str]] = {
    "open": "Being made.",
    "free": "The seller asked for nothing.",
    "failed": "Nothing was signed, so nothing was paid.",
    "rejected": "Nothing was paid.",
    "pending": "Waits for a person.",
    "presented": "The payment is with the seller. The chain has not spoken yet; until it does, the"
    " amount counts as spent.",
    "paid": "Paid, final on the chain.",
    "unpaid": "The seller never had the payment executed. It is proven dead, and the funds are"
    " back.",
}

# For each rule: its name, and what its limit and its observed value are called.
RULES: Final[dict[Rule, tuple[str, str, str]]] = {
    Rule.ACCOUNT_STOPPED: ("The account is not stopped", "stopped must be", "is"),
    Rule.AGENT_STATUS: ("The agent is active", "must be", "is"),
    Rule.POLICY_FROZEN: ("The policy is not frozen", "frozen must be", "is"),
    Rule.BUDGET_FROZEN: ("No budget above it is frozen", "frozen must be", "is"),
    Rule.BLOCKLIST: ("The recipient is not blocked", "", "recipient"),
    Rule.ALLOWLIST: ("The recipient is allowed", "", "recipient"),
    Rule.RECIPIENT_RESOLVED: ("The recipient has an address", "", "pays"),
    Rule.PAYEE: ("The seller is paid where it is known to be paid", "", "pays"),
    Rule.PAYEE_ACCOUNT: ("The seller can take USDC there", "", "pays"),
    Rule.MAX_AMOUNT: ("Within the agent's own bound", "at most", "asked"),
    Rule.PER_TRANSACTION_CAP: ("Within the cap of a single spend", "at most", "asked"),
    Rule.DAILY_CAP: ("Within the day's cap", "at most", "the day with it"),
    Rule.LIMIT: ("Within a limit of the policy", "at most", "its window with it"),
    Rule.BUDGET: ("Within a budget above the agent", "at most", "its window with it"),
    Rule.NETWORK_COST: ("Within the day's network budget", "at most", "lamports with it"),
    Rule.PENDING_COUNT: ("Few enough wait for a person", "at most", "waiting with it"),
    Rule.FUNDS: ("The wallet has enough", "available", "asked"),
    Rule.APPROVAL_THRESHOLD: ("Needs no person's approval", "up to", "asked"),
}

# What a rule goes by where it is counted how often it refused.
RULE_NAMES: Final[dict[Rule, str]] = {
    Rule.ACCOUNT_STOPPED: "Account stopped",
    Rule.AGENT_STATUS: "Agent not active",
    Rule.POLICY_FROZEN: "Policy frozen",
    Rule.BUDGET_FROZEN: "Budget above stopped",
    Rule.BLOCKLIST: "Blocklist",
    Rule.ALLOWLIST: "Allowlist",
    Rule.RECIPIENT_RESOLVED: "Recipient without an address",
    Rule.PAYEE: "Who is paid",
    Rule.PAYEE_ACCOUNT: "Seller cannot take USDC",
    Rule.MAX_AMOUNT: "Agent's own bound",
    Rule.PER_TRANSACTION_CAP: "Cap of a single spend",
    Rule.DAILY_CAP: "Daily cap",
    Rule.LIMIT: "Limit of the policy",
    Rule.BUDGET: "Budget above the agent",
    Rule.NETWORK_COST: "Network cost a day",
    Rule.PENDING_COUNT: "Too many waiting",
    Rule.FUNDS: "Funds of the wallet",
    Rule.APPROVAL_THRESHOLD: "A person approves",
}

# After an amount: so much "an hour".
WINDOW_WORDS: Final[dict[Window, str]] = {
    "hour": " an hour",
    "day": " a day",
    "week": " a week",
    "month": " a month",
    "lifetime": " in all",
}

# What forms call the fields of the API.
FIELDS: Final = {
    "name": "The name",
    "metadata": "Metadata",
    "dailyCap": "The daily cap",
    "perTransactionCap": "The cap of a single spend",
    "approvalThreshold": "What a person approves above",
    "dailyNetworkLamports": "The network cost a day",
    "allowlist": "The allowlist",
    "blocklist": "The blocklist",
    "payees": "Who says where a seller is paid",
    "limits": "The limits",
    "amount": "The amount",
    "destination": "The address",
    "host": "The host",
    "payTo": "The address",
    "url": "The address",
    "events": "The events",
    "scope": "The scope",
    "agentId": "The agent",
    "expiresAt": "The last day",
    "reason": "The reason",
    "memo": "The note",
}

OUTCOMES: Final = {"pass": "yes", "fail": "no", "not_evaluated": "no such limit"}

# Messages after a form was sent. The address carries only a code, so that no link can show other
# text.
DONE: Final = {
    "approved": "Approved. It will be paid now.",
    "cancelled": "Cancelled. Its funds are available again.",
    "stopped": "Stopped. No spend and no approval passes until an admin resumes.",
    "going_on": "Resumed. Spends are decided again.",
    "denied": "Denied. Its funds are available again.",
    "retried": "The seller was shown the same payment again. What it answered is below.",
    "continued": "The seller was asked again. What came of it is below.",
    "accepted": "The new address is accepted. Purchases there pass again.",
    "paid_at": "Said. Every spend that is asked for from now on is paid there.",
    "host_removed": "The entry is removed.",
    "forgotten": "The pin is forgotten. What the seller says next is remembered.",
    "created": "The agent is made.",
    "policy": "The new policy is in force.",
    "unchanged": "Nothing was different, so nothing changed.",
    "frozen": "Frozen. No new spend passes until you unfreeze the policy.",
    "unfrozen": "Unfrozen. Spends are decided again.",
    "paused": "Paused. No new spend passes until you resume the agent.",
    "resumed": "Resumed. Spends are decided again.",
    "many_paused": "Paused, all that fit. No new spend of theirs passes until they are resumed.",
    "many_resumed": "Resumed, all that fit. Their spends are decided again.",
    "agent_moved": "Moved. Its next spend is decided under this budget.",
    "team_stopped": "Stopped. No new spend below this budget passes until an admin resumes it.",
    "team_resumed": "Resumed. Spends below this budget are decided again.",
    "moved": "Every agent with this metadata is under this budget now.",
    "budget_created": "The budget is made. Put agents under it, and it holds for them.",
    "budget_changed": "The budget is changed. It holds for every spend from now on.",
    "budget_deleted": "The budget is deleted.",
    "terminated": "Terminated, for good. You can still withdraw what the wallet holds.",
    "funded": "The test money is in the wallet.",
    "minted": "The test money is minted and will be credited in a moment.",
    "withdrawn": "The withdrawal is reserved and will be paid now.",
    "enabled": "The webhook is enabled.",
    "disabled": "The webhook is disabled. What waits for it is kept.",
    "deleted": "The webhook is deleted.",
    "tested": "A test event is on its way.",
    "redelivered": "The event is on its way again.",
    "ended": "The session is ended. That browser has to sign in again.",
    "others_ended": "All other sessions are ended.",
    "revoked": "The key is revoked. It stops working everywhere within a second.",
}
