"""How a policy shows itself."""

from datetime import datetime
from typing import Any

import msgspec

from bursar.clock import iso
from bursar.ids import made_at
from bursar.money import format_cents, format_cents_or_none
from bursar.policy.limits import Limit, Window
from bursar.policy.model import Payees, Policy


class LimitView(msgspec.Struct, rename="camel", kw_only=True):
    """So much, or so many spends, in a UTC calendar window. One with a `recipient` counts from when
    it was set; the others have counted all along."""

    id: str
    window: Window
    amount: str | None
    count: int | None
    recipient: str | None
    counts_from: str | None


class PolicyView(msgspec.Struct, rename="camel", kw_only=True):
    """The policy in force. Amounts have two decimal places."""

    id: str
    daily_cap: str
    allowlist: list[str]
    blocklist: list[str]
    payees: Payees
    limits: list[LimitView]
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


def show_limit(limit: Limit) -> LimitView:
    return LimitView(
        id=limit.id,
        window=limit.window,
        amount=format_cents_or_none(limit.amount_micros),
        count=limit.count,
        recipient=limit.recipient,
        # Its id was made when it was set.
        counts_from=None if limit.recipient is None else iso(made_at(limit.id)),
    )


def _shown(policy: Policy) -> dict[str, Any]:
    return {
        "daily_cap": format_cents(policy.cap_micros_daily),
        "allowlist": list(policy.allowlist),
        "blocklist": list(policy.blocklist),
        "payees": policy.payees,
        "limits": [show_limit(limit) for limit in policy.limits],
        "per_transaction_cap": format_cents_or_none(policy.cap_micros_per_transaction),
        "approval_threshold": format_cents_or_none(policy.approval_threshold_micros),
        "daily_network_lamports": policy.network_lamports_daily,
        "frozen": policy.frozen,
        "version": policy.version,
    }
