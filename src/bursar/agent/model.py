"""An agent: its name and state, with the policy in force and the wallet it spends from."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from bursar.clock import iso, iso_or_none
from bursar.policy.model import Policy, PolicyView, show_policy
from bursar.wallet.model import WalletRow, WalletSummary, show_summary

AgentStatus = Literal["active", "paused", "terminated"]


@dataclass(frozen=True, slots=True)
class AgentRow:
    id: str
    realm_id: int
    name: str
    status: AgentStatus
    metadata: dict[str, str]
    policy_id: str
    policy: Policy
    wallet: WalletRow
    created_at: datetime
    updated_at: datetime
    terminated_at: datetime | None


class Agent(msgspec.Struct, rename="camel", kw_only=True):
    """An autonomous agent with its own wallet and spending policy."""

    id: str
    name: str
    status: AgentStatus
    wallet: WalletSummary
    policy: PolicyView
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    terminated_at: str | None


class AgentPolicyUpdated(Agent, rename="camel", kw_only=True):
    """The agent with its new policy, and the policy it had before."""

    previous_policy: PolicyView


def show_agent(row: AgentRow) -> Agent:
    return Agent(
        id=row.id,
        name=row.name,
        status=row.status,
        wallet=show_summary(row.wallet),
        policy=show_policy(row.policy_id, row.policy),
        metadata=row.metadata,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        terminated_at=iso_or_none(row.terminated_at),
    )
