"""A spending policy: what an agent may pay, to whom, and how much a day."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from bursar.hostnames import is_address
from bursar.policy.limits import Limit

AgentStatus = Literal["active", "paused", "terminated"]
# What tells where a host is paid that the directory does not have, in purchases: nothing, what the
# host said when it was first bought from, or what it says now.
Payees = Literal["directory", "pinned", "host"]
# One version of an agent's policy: agent, number, and the history of the database it belongs to.
PolicyKey = tuple[str, int, str]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings allow every agent and every account."""

    pending_max: int
    # Per UTC day: for an agent whose policy does not say otherwise, and for a whole account.
    agent_network_lamports: int
    account_network_lamports: int
    # What a payment costs at most, without the rent of a token account.
    payment_lamports: int


class EntryList:
    """Canonical entries, ready to be matched: hosts and addresses, `*.host`, or `*`."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._any = "*" in entries
        self._exact = frozenset(entries)
        self._below = frozenset(entry[2:] for entry in entries if entry.startswith("*."))
        self.hosts = tuple(e for e in entries if not (e.startswith("*") or is_address(e)))
        self.names_hosts = bool(self.hosts or self._below)

    def matches_any(self, *names: str | None) -> bool:
        return any(name is not None and self.matches(name) for name in names)

    def matches(self, recipient: str) -> bool:
        """`recipient` in canonical form. One look-up a label, however long the list is."""
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


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """What changes of a policy; UNSET leaves as it is."""

    cap_micros_daily: int | UnsetType = UNSET
    cap_micros_per_transaction: int | UnsetType | None = UNSET
    approval_threshold_micros: int | UnsetType | None = UNSET
    allowlist: tuple[str, ...] | UnsetType = UNSET
    blocklist: tuple[str, ...] | UnsetType = UNSET
    payees: Payees | UnsetType = UNSET
    frozen: bool | UnsetType = UNSET
    network_lamports_daily: int | UnsetType | None = UNSET
    limits: tuple[Limit, ...] | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One version. Never changes once written, so it can be cached as long as its history lasts."""

    version: int = 1
    cap_micros_daily: int
    cap_micros_per_transaction: int | None = None
    approval_threshold_micros: int | None = None
    allowlist: tuple[str, ...]
    blocklist: tuple[str, ...] = ()
    payees: Payees = "directory"
    frozen: bool = False
    # What its payments may cost in SOL per day; None: what the settings allow.
    network_lamports_daily: int | None = None
    limits: tuple[Limit, ...] = ()

    def limits_for(self, recipient: str) -> tuple[Limit, ...]:
        """Those for everybody, and those for this recipient, in canonical form."""
        if not self.limits:
            return ()
        return tuple(
            limit
            for limit in self.limits
            if limit.recipient is None or self._entries[limit.recipient].matches(recipient)
        )

    def network_budget(self, bounds: Bounds) -> int:
        own = self.network_lamports_daily
        return bounds.agent_network_lamports if own is None else own

    @property
    def bytes_in_memory(self) -> int:
        """An estimate, on the high side, with the lists ready to be matched."""
        entries = sum(200 + 2 * len(e) for e in (*self.allowlist, *self.blocklist))
        return 1_000 + entries + 1_000 * len(self.limits)

    @cached_property
    def allows(self) -> EntryList:
        return EntryList(self.allowlist)

    @cached_property
    def _entries(self) -> dict[str, EntryList]:
        named = [limit.recipient for limit in self.limits if limit.recipient is not None]
        return {entry: EntryList((entry,)) for entry in named}

    @cached_property
    def blocks(self) -> EntryList:
        return EntryList(self.blocklist)

    def changed(self, change: PolicyChange) -> "Policy":
        """The next version if the change makes any difference, else this policy itself."""
        given = {k: v for k, v in msgspec.structs.asdict(change).items() if v is not UNSET}
        changed = replace(self, **given)
        return self if changed == self else replace(changed, version=self.version + 1)
