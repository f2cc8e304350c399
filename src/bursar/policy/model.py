"""A spending policy: what an agent may pay, to whom, and how much a day."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import msgspec

from bursar.hostnames import is_address

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


AgentStatus = Literal["active", "paused", "terminated"]
