"""What changes from one policy to another, for the preview and for the history."""

from dataclasses import dataclass
from typing import Any, Final

from bursar.money import format_cents_or_none

_CAPS: Final = {
    "dailyCap": "Daily cap",
    "perTransactionCap": "Cap of a single spend",
    "approvalThreshold": "A person approves above",
}
_LISTS: Final = {"allowlist": "Allowlist", "blocklist": "Blocklist"}
_NETWORK: Final = "dailyNetworkLamports"
_PAYEES: Final = "payees"
# Fields that the API shows just as it takes them.
_PLAIN: Final = (*_LISTS, _NETWORK, _PAYEES)


@dataclass(frozen=True, slots=True)
class Change:
    """One field: an amount before and after, or entries that came and went."""

    label: str
    before: str | None = None
    after: str | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    is_list: bool = False


def proposed(policy: dict[str, Any], parsed: dict[str, Any]) -> dict[str, Any]:
    """The policy as the API would show it with these validated fields in it."""
    caps = {name: format_cents_or_none(parsed[name]) for name in _CAPS if name in parsed}
    return {**policy, **caps, **{name: parsed[name] for name in _PLAIN if name in parsed}}


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """Between two policies as the API shows them."""
    found = [
        Change(label, before[name], after[name])
        for name, label in _CAPS.items()
        if before[name] != after[name]
    ]
    for name, label in _LISTS.items():
        was, will = before[name], after[name]
        if was != will:
            added = tuple(entry for entry in will if entry not in set(was))
            removed = tuple(entry for entry in was if entry not in set(will))
            found.append(Change(label, added=added, removed=removed, is_list=True))
    if before[_PAYEES] != after[_PAYEES]:
        found.append(Change("Who says where a seller is paid", before[_PAYEES], after[_PAYEES]))
    if before[_NETWORK] != after[_NETWORK]:
        was, will = _lamports(before[_NETWORK]), _lamports(after[_NETWORK])
        found.append(Change("Network cost a day", was, will))
    if before["frozen"] != after["frozen"]:
        found.append(Change("Frozen", _yes(before["frozen"]), _yes(after["frozen"])))
    return found


def _lamports(value: int | None) -> str:
    return "the service's default" if value is None else f"{value:,} lamports"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
