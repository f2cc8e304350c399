"""An agent: its name and state, with the policy in force and the wallet it spends from."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from bursar.policy.model import AgentStatus, Policy, PolicyChange
from bursar.wallet.model import WalletRow


@dataclass(frozen=True, slots=True)
class AgentRow:
    id: str
    realm_id: int
    name: str
    status: AgentStatus
    metadata: dict[str, str]
    policy_id: str
    policy: Policy
    # The budget that it is under, if it is under one.
    budget_id: str | None
    wallet: WalletRow
    created_at: datetime
    updated_at: datetime
    terminated_at: datetime | None


class Which(msgspec.Struct, frozen=True, kw_only=True):
    """Which agents a change of many concerns. None: whatever it is."""

    status: str | None
    budget_id: str | None
    metadata: dict[str, str]

    def matches(self, agent: AgentRow) -> bool:
        return (
            agent.status in (("active", "paused") if self.status is None else (self.status,))
            and self.budget_id in (None, agent.budget_id)
            and self.metadata.items() <= agent.metadata.items()
        )


class NewAgent(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request to create an agent."""

    name: str
    metadata: dict[str, str]
    policy: Policy
    budget_id: str | None


class AgentChange(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request to change an agent; UNSET leaves as it is."""

    name: str | UnsetType = UNSET
    status: Literal["active", "paused"] | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    budget_id: str | UnsetType | None = UNSET
    policy: PolicyChange = PolicyChange()
    # The version of the policy that the caller saw last; UNSET changes whichever is in force.
    seen_version: int | UnsetType = UNSET
