"""How a policy shows itself."""

from datetime import datetime
from typing import Any

import msgspec

from bursar.clock import iso
from bursar.money import format_cents, format_cents_or_none
from bursar.policy.model import Payees, Policy


class PolicyView(msgspec.Struct, rename="camel", kw_only=True):
    """The policy in force. Amounts have two decimal places."""

    id: str
    daily_cap: str
    allowlist: list[str]
    blocklist: list[str]
    payees: Payees
    per_transaction_cap: str | None
    approval_threshold: str | None
    daily_network_lamports: int | None
    frozen: bool
    version: int


class PolicyVersion(PolicyView, rename="camel", kw_only=True):
    """One version of a policy, and who made it."""

    changed_by: str
    changed_at: str


def show_policy(policy_id: str, policy: Policy) -> PolicyView:
    return PolicyView(id=policy_id, **_shown(policy))


def show_version(
    policy_id: str, policy: Policy, changed_by: str, changed_at: datetime
) -> PolicyVersion:
    return PolicyVersion(
        id=policy_id, changed_by=changed_by, changed_at=iso(changed_at), **_shown(policy)
    )


def _shown(policy: Policy) -> dict[str, Any]:
    return {
        "daily_cap": format_cents(policy.cap_micros_daily),
        "allowlist": list(policy.allowlist),
        "blocklist": list(policy.blocklist),
        "payees": policy.payees,
        "per_transaction_cap": format_cents_or_none(policy.cap_micros_per_transaction),
        "approval_threshold": format_cents_or_none(policy.approval_threshold_micros),
        "daily_network_lamports": policy.network_lamports_daily,
        "frozen": policy.frozen,
        "version": policy.version,
    }
