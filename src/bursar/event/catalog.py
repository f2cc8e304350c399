"""Every event type, from one list that drives validation, documentation and OpenAPI."""

from enum import StrEnum
from typing import Final


class EventType(StrEnum):
    doc: str
    # The view that `data` holds, by its name: the subject as the API shows it.
    view: str

    def __new__(cls, value: str, doc: str, view: str) -> "EventType":
        member = str.__new__(cls, value)
        member._value_ = value
        member.doc = doc
        member.view = view
        return member

    TRANSACTION_SETTLED = "transaction.settled", "A spend was settled on the chain.", "Transaction"
    TRANSACTION_REJECTED = (
        "transaction.rejected",
        "A spend was refused, or ended refused.",
        "Transaction",
    )
    WALLET_LOW_BALANCE = (
        "wallet.low_balance",
        "The balance fell below 10% of the daily cap.",
        "Wallet",
    )
    WALLET_DEPLETED = "wallet.depleted", "The balance reached zero.", "Wallet"
    AGENT_POLICY_UPDATED = (
        "agent.policy_updated",
        "The agent's policy has a new version.",
        "AgentPolicyUpdated",
    )
    AGENT_THAWED = (
        "agent.thawed",
        "A freeze by the service itself proved wrong and was undone.",
        "Agent",
    )
    AGENT_PAUSED = "agent.paused", "The agent was paused.", "Agent"
    AGENT_TERMINATED = "agent.terminated", "The agent was terminated, for good.", "Agent"
    ACCOUNT_STOPPED = (
        "account.stopped",
        "Every agent of the account was stopped, or what is not signed is held as well.",
        "Stopped",
    )
    ACCOUNT_RESUMED = "account.resumed", "The agents of the account may spend again.", "Resumed"
    TRANSACTION_PENDING = "transaction.pending", "A spend waits for approval.", "Transaction"
    TRANSACTION_APPROVED = (
        "transaction.approved",
        "A spend was approved and will be settled.",
        "Transaction",
    )
    WALLET_FUNDED = "wallet.funded", "A deposit was credited.", "Wallet"
    WITHDRAWAL_SETTLED = (
        "withdrawal.settled",
        "A withdrawal was settled on the chain.",
        "Withdrawal",
    )
    WITHDRAWAL_FAILED = (
        "withdrawal.failed",
        "A withdrawal failed; its funds are available again.",
        "Withdrawal",
    )
    PURCHASE_PAID = "purchase.paid", "A purchase was paid, final on the chain.", "Purchase"
    PURCHASE_UNPAID = (
        "purchase.unpaid",
        "What was signed for a purchase is proven dead; its amount is available again.",
        "Purchase",
    )
    PURCHASE_FAILED = "purchase.failed", "A purchase ended and nothing was signed.", "Purchase"
    WEBHOOK_TEST = "webhook.test", "Somebody asked for it, to test a webhook.", "Webhook"


EVERYTHING: Final = "*"
# What a webhook can ask for. The test event is only sent to the webhook that is tested.
SUBSCRIBABLE: Final = tuple(type_ for type_ in EventType if type_ is not EventType.WEBHOOK_TEST)


def wants(events: list[str], type_: str) -> bool:
    """Whether a webhook with these `events` is sent this type."""
    return type_ in events or (EVERYTHING in events and type_ in SUBSCRIBABLE)
