"""A spending policy: what an agent may pay, to whom, and how much a day."""

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from bursar.clock import iso
from bursar.form.kinds import Cap, Entries, Flag, Whole
from bursar.form.record import Field, Record
from bursar.hostnames import is_address
from bursar.money import format_cents, format_cents_or_none

# One version of an agent's policy: agent, number, and the history of the database it belongs to.
PolicyKey = tuple[str, int, str]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings allow every agent and every account."""

    pending_max: int
    # A UTC day, an agent whose policy does not say otherwise; and all agents of an account.
    agent_network_lamports: int
    account_network_lamports: int
    # What a payment costs at most, without the rent of a token account.
    payment_lamports: int


class EntryList:
    """Canonical entries, ready to match: exact hosts and addresses, `*.host`, or `*`."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._any = "*" in entries
        self._exact = frozenset(entries)
        self._below = frozenset(entry[2:] for entry in entries if entry.startswith("*."))
        # Only names have dots, addresses have none.
        self.hosts = tuple(e for e in entries if "." in e and not e.startswith("*."))
        self.names_hosts = bool(self.hosts or self._below)

    def matches_any(self, *names: str | None) -> bool:
        return any(name is not None and self.matches(name) for name in names)

    def matches(self, recipient: str) -> bool:
        """`recipient` in canonical form. Costs a look-up a label, however long the list is."""
        if self._any or recipient in self._exact:
            return True
        if not self._below or is_address(recipient):
            return False
        _, dot, parent = recipient.partition(".")
        while dot:
            if parent in self._below:
                return True
            _, dot, parent = parent.partition(".")
        return False


@dataclass(frozen=True)
class Policy:
    """One version. Never changes once written, so it can be cached as long as its history lasts."""

    version: int
    cap_micros_daily: int
    cap_micros_per_transaction: int | None
    approval_threshold_micros: int | None
    allowlist: tuple[str, ...]
    blocklist: tuple[str, ...]
    frozen: bool
    # What its payments may cost in SOL a day; None: what the settings allow.
    network_lamports_daily: int | None = None

    def network_budget(self, bounds: Bounds) -> int:
        own = self.network_lamports_daily
        return bounds.agent_network_lamports if own is None else own

    @property
    def bytes_in_memory(self) -> int:
        """About what it takes with its lists ready to match, rather more than less."""
        return 1_000 + sum(200 + 2 * len(e) for e in (*self.allowlist, *self.blocklist))

    @cached_property
    def allows(self) -> EntryList:
        return EntryList(self.allowlist)

    @cached_property
    def blocks(self) -> EntryList:
        return EntryList(self.blocklist)

    def changed(self, body: dict[str, Any]) -> "Policy":
        """This policy with a request's fields applied; the next version if anything differs."""
        changes = {_ATTRIBUTES[name]: value for name, value in body.items() if name in _ATTRIBUTES}
        for name in ("allowlist", "blocklist"):
            if name in changes:
                changes[name] = tuple(changes[name])
        changed = replace(self, **changes)
        return self if changed == self else replace(changed, version=self.version + 1)


_ATTRIBUTES = {
    "dailyCap": "cap_micros_daily",
    "perTransactionCap": "cap_micros_per_transaction",
    "approvalThreshold": "approval_threshold_micros",
    "allowlist": "allowlist",
    "blocklist": "blocklist",
    "dailyNetworkLamports": "network_lamports_daily",
    "frozen": "frozen",
}


def first_policy(body: dict[str, Any]) -> Policy:
    """Version 1 from the `policy` of a request."""
    return Policy(
        version=1,
        cap_micros_daily=body["dailyCap"],
        cap_micros_per_transaction=body.get("perTransactionCap"),
        approval_threshold_micros=body.get("approvalThreshold"),
        allowlist=tuple(body["allowlist"]),
        blocklist=tuple(body.get("blocklist", ())),
        frozen=False,
        network_lamports_daily=body.get("dailyNetworkLamports"),
    )


# What the API shows and takes ---------------------------------------------------------------------


class PolicyView(msgspec.Struct, rename="camel", kw_only=True):
    """The policy in force. Amounts have two decimal places."""

    id: str
    daily_cap: str
    allowlist: list[str]
    blocklist: list[str]
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
        "per_transaction_cap": format_cents_or_none(policy.cap_micros_per_transaction),
        "approval_threshold": format_cents_or_none(policy.approval_threshold_micros),
        "daily_network_lamports": policy.network_lamports_daily,
        "frozen": policy.frozen,
        "version": policy.version,
    }


_DAILY_CAP = "What the agent may spend per UTC day; 0 allows nothing."
_ALLOWLIST = (
    "Who may be paid: `api.example.com` exactly that host, `*.example.com` any host below it, a"
    " base58 address exactly that address, `*` anyone. An empty list allows nothing."
)
_OPTIONAL = (
    Field(
        "perTransactionCap", Cap(), "The most a single spend may be; null: no limit.", nullable=True
    ),
    Field(
        "approvalThreshold",
        Cap(),
        "Spends above this wait for a person's approval; null: none do.",
        nullable=True,
    ),
    Field(
        "dailyNetworkLamports",
        Whole(0, 1_000_000_000_000),
        "What the agent's payments may cost per UTC day, in lamports: network fees, and token"
        " accounts opened for payees; null: what the service allows by default.",
        nullable=True,
    ),
    Field("blocklist", Entries(), "Never paid, whatever the allowlist says; the same entries."),
)

NEW_POLICY = Record(
    "NewPolicy",
    (
        Field("dailyCap", Cap(), _DAILY_CAP, required=True),
        Field("allowlist", Entries(), _ALLOWLIST, required=True),
        *_OPTIONAL,
    ),
)
POLICY_CHANGE = Record(
    "PolicyChange",
    (
        Field("dailyCap", Cap(), _DAILY_CAP),
        Field("allowlist", Entries(), _ALLOWLIST),
        *_OPTIONAL,
        Field("frozen", Flag(), "True stops all new spends until it is false again."),
        Field(
            "version",
            Whole(1, 2_147_483_647),
            "The version you last saw: if it is no longer the current one, nothing changes (409).",
        ),
    ),
)
