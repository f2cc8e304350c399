"""An agent: its name and state, with the policy in force and the wallet it spends from."""

from dataclasses import dataclass
from datetime import datetime

from bursar.policy.model import AgentStatus, Policy
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
    wallet: WalletRow
    created_at: datetime
    updated_at: datetime
    terminated_at: datetime | None
