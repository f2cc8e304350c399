"""The policy of an agent, as callers send it."""

from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from bursar.config import Mode
from bursar.errors import Fault
from bursar.form.kind import Schema, json_name
from bursar.form.kinds import ID, Cap, Choice, Entries, Entry, Flag, Whole
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.policy.limits import MOST_LIMITS, WINDOWS, Limit
from bursar.policy.model import Payees, Policy, PolicyChange

_OF_BUDGET = Record(
    "BudgetLimit",
    (
        Field("id", ID, "Of a limit that stands already; a new one gets its own."),
        Field("window", Choice(WINDOWS), "The UTC calendar window.", required=True),
        Field("amount", Cap(), "How much may be spent in it.", nullable=True),
        Field("count", Whole(0, 1_000_000_000), "How many spends.", nullable=True),
    ),
)
_OF_AGENT = Record(
    "Limit",
    (
        *_OF_BUDGET.fields,
        Field("recipient", Entry(), "Only spends to this entry count.", nullable=True),
    ),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Up to 20 limits, to those that the engine judges by. A budget's have no recipient."""

    record: Record = _OF_AGENT

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, list):
            faults.append(
                Fault(path, f"{path} must be an array of limits, not {json_name(value)}.")
            )
            return None
        items = cast("list[Any]", value)
        if len(items) > MOST_LIMITS:
            faults.append(Fault(path, f"{path} may hold at most {MOST_LIMITS} limits."))
            return None
        limits = [self._limit(item, f"{path}[{i}]", faults) for i, item in enumerate(items)]
        return tuple(limit for limit in limits if limit is not None)

    def _limit(self, item: Any, path: str, faults: list[Fault]) -> Limit | None:
        before = len(faults)
        given = self.record.parse(item, path, faults)
        if len(faults) > before:
            return None
        amount, count = given.get("amount"), given.get("count")
        if amount is None and count is None:
            faults.append(Fault(path, f"{path} needs an amount, a count, or both."))
        limit_id = given.get("id")
        if limit_id is not None and not is_id("lim", limit_id):
            faults.append(Fault(f"{path}.id", f"{path}.id is no limit's id."))
        return Limit(limit_id or "", given["window"], amount, count, given.get("recipient"))

    def schema(self) -> Schema:
        items = self.record.schema()
        # One example of the whole: put together from each field's own, a limit names the id of
        # another that does not exist.
        for field in items["properties"].values():
            for schema in (field, *field.get("oneOf", ())):
                schema.pop("examples", None)
        return {
            "type": "array",
            "maxItems": MOST_LIMITS,
            "items": items,
            "examples": [[{"window": "week", "amount": "50.00"}]],
        }


BUDGET_LIMITS: Final = Limits(_OF_BUDGET)

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
        "limits",
        Limits(),
        "Up to 20 limits beside the daily cap: an `amount`, a `count` of spends or both, in a UTC"
        " `window` (`hour`, `day`, `week` from Monday, `month`, `lifetime`), for everybody or for"
        " one `recipient` entry as of the allowlist. Sending one with its `id` keeps what it has"
        " counted.",
    ),
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
    "limits": "limits",
    "dailyNetworkLamports": "network_lamports_daily",
    "frozen": "frozen",
}


def new_policy(body: dict[str, Any], mode: Mode) -> Policy:
    """Version 1, from a validated NEW_POLICY."""
    usual: dict[str, Any] = {"payees": USUAL_PAYEES[mode]}
    return Policy(**usual | _given(body))


def policy_change(body: dict[str, Any]) -> PolicyChange:
    """From a validated POLICY_CHANGE. New limits have no ids yet: `lifecycle.change_agent` names
    them, once it knows which stand."""
    return PolicyChange(**_given(body))


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {
        attribute: tuple(body[name]) if name.endswith("list") else body[name]
        for name, attribute in _ATTRIBUTES.items()
        if name in body
    }
