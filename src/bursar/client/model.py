"""What the service answers, as frozen dataclasses: amounts are `Decimal`, times aware `datetime`.

Fields that a newer service adds are ignored, so an older client goes on working.
"""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from bursar.client.record import record

Mode = Literal["test", "live"]
Scope = Literal["admin", "agent", "approver", "read"]
AgentStatus = Literal["active", "paused", "terminated"]
WalletStatus = Literal["provisioned", "funded", "depleted"]
TransactionStatus = Literal["pending", "approved", "settled", "rejected"]
WithdrawalStatus = Literal["pending", "settled", "failed"]
DepositStatus = Literal["pending", "credited"]
WebhookStatus = Literal["enabled", "disabled"]
DeliveryStatus = Literal["pending", "delivered", "failed"]
Unsigned = Literal["pay", "cancel"]
Outcome = Literal["pass", "fail", "not_evaluated"]
Payees = Literal["directory", "pinned", "host"]
Window = Literal["hour", "day", "week", "month", "lifetime"]
PurchaseStatus = Literal[
    "open", "free", "failed", "rejected", "pending", "presented", "paid", "unpaid"
]
Protocol = Literal["x402", "mpp"]
Encoding = Literal["text", "base64"]


# Agents -------------------------------------------------------------------------------------------


@record
class Limit:
    """So much, or so many spends, in a UTC calendar window. One with a `recipient` counts from when
    it was set."""

    id: str
    window: Window
    amount: Decimal | None
    count: int | None
    recipient: str | None
    counts_from: datetime | None


@record
class Policy:
    """The policy in force."""

    id: str
    daily_cap: Decimal
    allowlist: tuple[str, ...]
    blocklist: tuple[str, ...]
    payees: Payees
    limits: tuple[Limit, ...]
    per_transaction_cap: Decimal | None
    approval_threshold: Decimal | None
    daily_network_lamports: int | None
    frozen: bool
    version: int


@record
class PolicyVersion(Policy):
    """One version of a policy, and who made it."""

    changed_by: str
    changed_at: datetime


@record
class WalletSummary:
    """The wallet as it shows inside its agent."""

    address: str
    balance: Decimal
    status: WalletStatus


@record
class Agent:
    """An autonomous agent with its own wallet and spending policy."""

    id: str
    name: str
    status: AgentStatus
    wallet: WalletSummary
    policy: Policy
    metadata: Mapping[str, str]
    budget_id: str | None
    created_at: datetime
    updated_at: datetime
    terminated_at: datetime | None


@record
class BulkChange:
    """How many agents matched, and how many of them the change made different."""

    matched: int
    changed: int


@record
class LimitUse:
    """A limit over an agent, of its policy or of a budget, and what was used of it."""

    limit_id: str
    budget_id: str | None
    window: Window
    recipient: str | None
    amount: Decimal | None
    count: int | None
    used_amount: Decimal
    used_count: int
    resets_at: datetime | None


@record
class SpentTodayBy:
    """What was spent today: paid, approved and on its way, waiting for a person."""

    settled: Decimal
    on_its_way: Decimal
    waiting: Decimal


@record
class Budget:
    """What an agent asks before it spends. `max_amount_now` is the most that passes in one spend,
    `max_without_approval` the most that passes without a person."""

    daily_cap: Decimal
    spent_today: Decimal
    spent_today_by: SpentTodayBy
    remaining_today: Decimal
    reserved: Decimal
    available: Decimal
    max_amount_now: Decimal
    max_without_approval: Decimal
    approval_threshold: Decimal | None
    allowlist: tuple[str, ...]
    resets_at: datetime
    status: AgentStatus
    frozen: bool
    account_stopped: bool
    budget_frozen: bool
    policy_version: int
    daily_network_lamports: int
    network_lamports_today: int
    limits: tuple[LimitUse, ...]


@record
class WindowUse:
    """What was spent in a window that is running, and how often."""

    amount: Decimal
    count: int


@record
class SharedBudget:
    """A ceiling that agents share, with what they used of each window that is running."""

    id: str
    name: str
    parent_id: str | None
    limits: tuple[Limit, ...]
    frozen: bool
    use: Mapping[str, WindowUse]
    agent_count: int
    created_by: str
    created_at: datetime
    updated_at: datetime


# Spends -------------------------------------------------------------------------------------------


@record
class Check:
    """One rule of the policy: what it allows, and what it saw, both as text."""

    rule: str
    outcome: Outcome
    limit: str | None
    observed: str | None
    # Of which limit, and of which budget, it speaks, if of any.
    limit_id: str | None = None
    budget_id: str | None = None


@record
class Decision:
    """Why the spend was decided so: what would pass instead, and when."""

    checks: tuple[Check, ...]
    remaining_today: Decimal
    max_amount_now: Decimal
    max_without_approval: Decimal
    retry_at: datetime | None


@record
class Transaction:
    """A spend. Read `status`: a refusal is an answer, not an error."""

    id: str
    agent_id: str
    amount: Decimal
    currency: str
    recipient: str
    status: TransactionStatus
    signature: str | None
    block_time: int | None
    reject_code: str | None
    created_at: datetime
    settled_at: datetime | None
    pay_to: str | None
    memo: str | None
    metadata: Mapping[str, str]
    policy_version: int
    created_by: str
    decided_by: str | None
    decided_at: datetime | None
    decision_reason: str | None
    expires_at: datetime | None
    network: str
    fee_lamports: int | None
    rent_lamports: int | None
    updated_at: datetime
    purchase_id: str | None
    decision: Decision


@record
class Preview:
    """What authorise would answer now. Nothing is stored or reserved."""

    status: TransactionStatus
    reject_code: str | None
    policy_version: int
    pay_to: str | None
    decision: Decision


@record
class RecipientTotal:
    """A recipient and what was settled to it."""

    hostname: str
    total_usdc: Decimal


@record
class Statistics:
    """Totals of the transactions in the filter; `total_spent` counts the settled ones."""

    total_spent: Decimal
    transaction_count: int
    rejected_count: int
    top_recipients: tuple[RecipientTotal, ...]


# Purchases ----------------------------------------------------------------------------------------


@record
class PaymentHeader:
    """The header that pays. Until it dies it is as good as money: send it to the seller alone."""

    name: str
    value: str = field(repr=False)


@record
class SellerResponse:
    """What the seller answered last. `body` is text, or base64 where it is none."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: str = field(repr=False)
    encoding: Encoding
    truncated: bool


@record
class Purchase:
    """Something bought from an HTTP seller. Read `status`: a refusal is an answer, not an error."""

    id: str
    agent_id: str
    url: str
    method: str
    host: str
    status: PurchaseStatus
    reject_code: str | None
    failure_code: str | None
    problem: str | None
    decision: Decision | None
    protocol: Protocol | None
    amount: Decimal | None
    pay_to: str | None
    transaction_id: str | None
    transaction: Transaction | None
    header: PaymentHeader | None
    response: SellerResponse | None
    memo: str | None
    metadata: Mapping[str, str]
    created_by: str
    created_at: datetime
    updated_at: datetime


@record
class Pin:
    """Where an origin is paid, as it said when it was first bought from. `offered` is another
    address that it named since; nothing is bought there until it is accepted."""

    origin: str
    address: str
    offered: str | None
    offered_at: datetime | None
    created_by: str
    created_at: datetime
    updated_at: datetime


# Wallets ------------------------------------------------------------------------------------------


@record
class Wallet:
    """An agent's wallet. `available` is `balance` minus `reserved`."""

    agent_id: str
    address: str
    balance: Decimal
    reserved: Decimal
    available: Decimal
    mint: str
    status: WalletStatus
    last_funded_at: datetime | None


@record
class Balance:
    """The wallet's amounts at one moment."""

    agent_id: str
    balance: Decimal
    reserved: Decimal
    available: Decimal
    currency: str
    as_of: datetime


@record
class Withdrawal:
    """Money on its way out of a wallet, or gone, or failed and available again."""

    id: str
    agent_id: str
    amount: Decimal
    currency: str
    destination: str
    status: WithdrawalStatus
    signature: str | None
    block_time: int | None
    failure_code: str | None
    memo: str | None
    metadata: Mapping[str, str]
    network: str
    created_by: str
    created_at: datetime
    settled_at: datetime | None
    fee_lamports: int | None
    rent_lamports: int | None


@record
class Deposit:
    """Money that came into a wallet. `sender` is None when it was minted."""

    id: str
    agent_id: str
    amount: Decimal
    currency: str
    sender: str | None
    signature: str
    block_time: int | None
    status: DepositStatus
    created_at: datetime
    credited_at: datetime | None


# The directory ------------------------------------------------------------------------------------


@record
class Recipient:
    """A directory entry: spends to `hostname` are paid to `address`."""

    hostname: str
    address: str
    created_by: str
    created_at: datetime
    updated_by: str
    updated_at: datetime


# Webhooks and events ------------------------------------------------------------------------------


@record
class Webhook:
    """Where events are sent, and which."""

    id: str
    url: str
    events: tuple[str, ...]
    status: WebhookStatus
    disabled_reason: str | None
    created_at: datetime


@record
class CreatedWebhook(Webhook):
    """A webhook with its new secret, which is never shown again (None in a replay)."""

    secret: str | None = field(repr=False)


@record
class Attempt:
    """One try to deliver. `status` is None when there was no answer; then `error` says why."""

    at: datetime
    status: int | None
    latency_ms: int
    error: str | None
    response: str | None


@record
class Delivery:
    """One event on its way to one webhook, with every attempt so far."""

    id: str
    webhook_id: str
    event_id: str
    event_type: str
    status: DeliveryStatus
    attempts: tuple[Attempt, ...]
    next_attempt_at: datetime | None
    created_at: datetime


@record
class Redelivery:
    """The new deliveries of an event, one for each webhook it is sent to again."""

    event_id: str
    deliveries: tuple[Delivery, ...]


@record
class Event:
    """Something that happened. `data` is its subject, as JSON, as the API showed it then."""

    id: str
    type: str
    created_at: datetime
    mode: Mode
    data: Mapping[str, Any]


# Keys ---------------------------------------------------------------------------------------------


@record
class Key:
    """An API key. The key itself is shown once, when it is made."""

    id: str
    name: str
    scope: Scope
    agent_id: str | None
    mode: Mode
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@record
class CreatedKey(Key):
    """A new API key, with the secret that is never shown again (None in a replay)."""

    key: str | None = field(repr=False)


@record
class CategoryLimit:
    """How many requests of one category a key may make in any 60 seconds."""

    category: str
    requests_per_minute: int


@record
class LogLine:
    """Who did what. `before` and `after` are its subject, as JSON, as the API showed it then."""

    id: str
    created_at: datetime
    actor: str
    request_id: str
    action: str
    subject: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@record
class Stopped:
    """Every agent of the account is stopped: since when, by which key, and why."""

    stopped_at: datetime
    stopped_by: str
    reason: str
    also_unsigned: bool


@record
class Resumed(Stopped):
    """The stop that is over. `cancelled`: how many of the spends that it held are not paid."""

    resumed_at: datetime
    resumed_by: str
    unsigned: Unsigned
    cancelled: int


@record
class Me(Key):
    """The calling key, its rate limits, and whether its account is stopped."""

    account: str
    limits: tuple[CategoryLimit, ...]
    stop: Stopped | None
