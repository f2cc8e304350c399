"""A backtest as it was asked for, and a draft that is followed."""

from datetime import datetime
from typing import Final, Literal

import msgspec

from bursar.policy.limits import Limit
from bursar.policy.model import PolicyChange

BacktestStatus = Literal["queued", "running", "done", "failed"]

# Agents that a backtest may change the policies of.
MOST_AGENTS: Final = 1_000
# The longest time that one looks at.
MOST_DAYS: Final = 366
# Of an account, waiting or running.
MOST_OPEN: Final = 10
# Changes that the answer shows, and those that are kept for the CSV.
SHOWN_CHANGES: Final = 1_000
MOST_CHANGES: Final = 100_000
# How long a backtest can be read.
KEPT_DAYS: Final = 30

# Drafts of an account that are followed, and differences that each shows.
MOST_DRAFTS: Final = 100
SHOWN_DIFFERENCES: Final = 100


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a backtest tries, and on whom: one agent, all below a budget, or those with labels."""

    agent_id: str | None = None
    budget_id: str | None = None
    metadata: dict[str, str] | None = None
    # Those that this named when it was asked.
    agent_ids: tuple[str, ...] = ()
    policy: PolicyChange | None = None
    # Of the budget.
    limits: tuple[Limit, ...] | None = None


class BacktestRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    realm_id: int
    asked: Asked
    starts_at: datetime
    ends_at: datetime
    created_by: str
    created_at: datetime
    status: BacktestStatus
    percent: int
    problem: str | None
    # JSON of `view.ResultView`.
    result: bytes | None
    finished_at: datetime | None


class DraftRow(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    realm_id: int
    id: str
    base_version: int
    change: PolicyChange
    created_by: str
    since: datetime
    followed_until: datetime
    decided: int
    differing: int
    # JSON, the newest first.
    differences: bytes
