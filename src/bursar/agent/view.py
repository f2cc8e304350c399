"""How an agent shows itself."""

import msgspec

from bursar.agent.model import AgentRow
from bursar.clock import iso, iso_or_none
from bursar.policy.model import AgentStatus
from bursar.policy.view import PolicyView, show_policy
from bursar.wallet.view import WalletSummary, show_summary


class Agent(msgspec.Struct, rename="camel", kw_only=True):
    """An autonomous agent with its own wallet and spending policy."""

    id: str
    name: str
    status: AgentStatus
    wallet: WalletSummary
    policy: PolicyView
    metadata: dict[str, str]
    budget_id: str | None
    created_at: str
    updated_at: str
    terminated_at: str | None


class BulkChange(msgspec.Struct, rename="camel", kw_only=True):
    """How many agents matched, and how many of them the change made different."""

    matched: int
    changed: int


class AgentPolicyUpdated(Agent, rename="camel", kw_only=True):
    """The agent with its new policy, the policy it had before, and who changed it: a key, or
    `system`."""

    previous_policy: PolicyView
    changed_by: str


class AgentResumed(Agent, rename="camel", kw_only=True):
    """The agent, which may spend again, and the key that let it."""

    changed_by: str


def show_agent(row: AgentRow) -> Agent:
    return Agent(
        id=row.id,
        name=row.name,
        status=row.status,
        wallet=show_summary(row.wallet),
        policy=show_policy(row.policy_id, row.policy),
        metadata=row.metadata,
        budget_id=row.budget_id,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        terminated_at=iso_or_none(row.terminated_at),
    )
