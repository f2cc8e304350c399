"""Every event type, from one list that drives validation, documentation and OpenAPI."""

from enum import StrEnum


class EventType(StrEnum):
    doc: str

    def __new__(cls, value: str, doc: str) -> "EventType":
        member = str.__new__(cls, value)
        member._value_ = value
        member.doc = doc
        return member

    TRANSACTION_SETTLED = "transaction.settled", "A spend was settled on the chain."
    TRANSACTION_REJECTED = "transaction.rejected", "A spend was refused, or ended refused."
    WALLET_LOW_BALANCE = "wallet.low_balance", "The balance fell below 10% of the daily cap."
    WALLET_DEPLETED = "wallet.depleted", "The balance reached zero."
    AGENT_POLICY_UPDATED = "agent.policy_updated", "The agent's policy has a new version."
    AGENT_PAUSED = "agent.paused", "The agent was paused."
    AGENT_TERMINATED = "agent.terminated", "The agent was terminated, for good."
    TRANSACTION_PENDING = "transaction.pending", "A spend waits for approval."
    TRANSACTION_APPROVED = "transaction.approved", "A spend was approved and will be settled."
    WALLET_FUNDED = "wallet.funded", "A deposit was credited."
    WITHDRAWAL_SETTLED = "withdrawal.settled", "A withdrawal was settled on the chain."
    WITHDRAWAL_FAILED = "withdrawal.failed", "A withdrawal failed; its funds are available again."
