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
    AGENT_RESUMED = "agent.resumed", "A paused agent may spend again.", "AgentResumed"
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
    RECIPIENT_SET = (
        "recipient.set",
        "The directory has an address for a host, or another one than before.",
        "RecipientSet",
    )
    RECIPIENT_DELETED = (
        "recipient.deleted",
        "A host was taken out of the directory.",
        "RecipientDeleted",
    )
    PIN_ACCEPTED = (
        "pin.accepted",
        "An admin accepted the address that a seller names since.",
        "PinAccepted",
    )
    PIN_FORGOTTEN = (
        "pin.forgotten",
        "An admin had it forgotten where a seller is paid.",
        "PinForgotten",
    )
    KEY_CREATED = "key.created", "A key was made.", "KeyChanged"
    KEY_REVOKED = "key.revoked", "A key was revoked.", "KeyChanged"
    WEBHOOK_CREATED = (
        "webhook.created",
        "A webhook was registered. It does not get this event itself.",
        "WebhookChanged",
    )
    WEBHOOK_CHANGED = (
        "webhook.changed",
        "A webhook has another address, other events or another state, by a person's hand.",
        "WebhookChanged",
    )
    WEBHOOK_SECRET_ROTATED = (
        "webhook.secret_rotated",
        "A webhook has a new secret.",
        "WebhookChanged",
    )
    WEBHOOK_DELETED = "webhook.deleted", "A webhook was deleted.", "WebhookChanged"
    WEBHOOK_TEST = "webhook.test", "Somebody asked for it, to test a webhook.", "WebhookSummary"


# Only an admin key reads about keys; a webhook that hears of them was registered by one.
ABOUT_KEYS: Final = (EventType.KEY_CREATED, EventType.KEY_REVOKED)
EVERYTHING: Final = "*"
# What a webhook can ask for. The test event is only sent to the webhook that is tested.
SUBSCRIBABLE: Final = tuple(type_ for type_ in EventType if type_ is not EventType.WEBHOOK_TEST)


def wants(events: list[str], type_: str) -> bool:
    """Whether a webhook with these `events` is sent this type."""
    return type_ in events or (EVERYTHING in events and type_ in SUBSCRIBABLE)
