"""What the clients were told. Written from answers alone, so that the service cannot argue."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Told:
    """One spend, as its first answer told it."""

    spend_id: str
    agent_id: str
    micros: int
    recipient: str
    status: str
    policy_version: int
    created_at: str


@dataclass(frozen=True, slots=True)
class Rules:
    """One version of a policy, as its answer told it."""

    cap_micros: int
    most_micros: int | None
    allowlist: frozenset[str]
    frozen: bool


@dataclass
class Journal:
    # By idempotency key: one key, one spend.
    spends: dict[str, Told] = field(default_factory=dict)
    # Pending spends that were decided: what the answer said they are now.
    decided: dict[str, str] = field(default_factory=dict)
    withdrawals: dict[str, str] = field(default_factory=dict)
    # By agent and version.
    rules: dict[tuple[str, int], Rules] = field(default_factory=dict)
    # Signatures of deposits that were made at the chain's own faucet, by agent.
    deposits: dict[str, str] = field(default_factory=dict)
    operations: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    # What must never happen, by kind, in words.
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def accuse(self, kind: str, words: str) -> None:
        self.wrong.append((kind, words))
