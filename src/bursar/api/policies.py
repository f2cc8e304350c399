"""The policy of an agent, as callers send it."""

from typing import Any, Final, get_args

from bursar.config import Mode
from bursar.form.kinds import Cap, Choice, Entries, Flag, Whole
from bursar.form.record import Field, Record
from bursar.policy.model import Payees, Policy, PolicyChange

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
    Field(
        "payees",
        Choice(get_args(Payees)),
        "What tells where a host is paid that the directory does not have, in purchases:"
        " `directory` nothing does (the default in live mode), `pinned` what the host said when it"
        " was first bought from (the default in test mode), `host` whatever it says now.",
    ),
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

USUAL_PAYEES: Final[dict[Mode, Payees]] = {"test": "pinned", "live": "directory"}

_ATTRIBUTES = {
    "dailyCap": "cap_micros_daily",
    "perTransactionCap": "cap_micros_per_transaction",
    "approvalThreshold": "approval_threshold_micros",
    "allowlist": "allowlist",
    "blocklist": "blocklist",
    "payees": "payees",
    "dailyNetworkLamports": "network_lamports_daily",
    "frozen": "frozen",
}


def new_policy(body: dict[str, Any], mode: Mode) -> Policy:
    """Version 1, from a validated NEW_POLICY."""
    usual: dict[str, Any] = {"payees": USUAL_PAYEES[mode]}
    return Policy(**usual | _given(body))


def policy_change(body: dict[str, Any]) -> PolicyChange:
    """From a validated POLICY_CHANGE."""
    return PolicyChange(**_given(body))


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {
        attribute: tuple(body[name]) if name.endswith("list") else body[name]
        for name, attribute in _ATTRIBUTES.items()
        if name in body
    }
