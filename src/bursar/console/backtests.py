"""What a policy would have decided of the last 30 days, before it is in force."""

from datetime import date
from typing import Any, Final

from bursar.console import store
from bursar.console.agents import PATCH, policy_of
from bursar.console.policies import changes
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit
from bursar.errors import present
from bursar.money import parse_micros

CREATE: Final = "POST /v1/backtests"
GET: Final = "GET /v1/backtests/:id"
EXPORT: Final = "GET /v1/backtests/:id/export"
# Differing spends that the page lists; the CSV has all of them.
_LISTED: Final = 100
_DECISIONS: Final = ("approved", "pending", "rejected")
# What the policy editor sends, and so what it can be filled in with again.
_PLAIN: Final = (
    "dailyCap", "perTransactionCap", "approvalThreshold", "dailyNetworkLamports", "payees",
)  # fmt: skip
_LISTS: Final = ("allowlist", "blocklist")


async def begin(visit: Visit) -> Reply:
    """Tries what the editor holds on the agent's past. Changes nothing."""
    made = await visit.ask(CREATE, body={"agentId": visit.params["id"], "policy": policy_of(visit)})
    # The version that the editor began with goes along, so that nobody overwrites a change that
    # they have not seen.
    version = visit.text("version")
    seen = f"?version={version}" if _is_whole(version) else ""
    return Sent(f"{ROOT}/backtests/{made['id']}{seen}")


async def backtest(visit: Visit) -> Reply:
    found = await _found(visit)
    agent = None
    if found["agentId"] is not None:
        agent = await visit.ask("GET /v1/agents/:id", params={"id": found["agentId"]})
    shown = found["changed"][:_LISTED]
    async with visit.services.db.connection() as tx:
        agents = await store.standings(
            tx,
            visit.caller.realm_id,
            visit.services.clock.now().date(),
            [change["agentId"] for change in shown],
        )
    return Drawn(
        "backtest.html",
        {
            "found": found,
            "moved": _moved(found) if found["status"] == "done" else None,
            "days": _days(found["byDay"]),
            "changed": shown,
            "agents": agents,
            "agent": agent,
            "tried": _tried(agent, found["policy"]),
            "fields": _fields(visit, agent, found["policy"]),
        },
    )


async def mark(visit: Visit) -> str:
    """Progress makes no event."""
    found = await _found(visit)
    return f"{found['status']}-{found['progress']}"


async def export(visit: Visit) -> Reply:
    return await visit.stream(EXPORT, params={"id": visit.params["id"]})


async def _found(visit: Visit) -> dict[str, Any]:
    return await visit.ask(GET, params={"id": visit.params["id"]})


def _moved(found: dict[str, Any]) -> dict[str, int]:
    """How many more of each decision there would have been, and how many more micros would have
    been let through."""
    was, would = found["current"], found["draft"]
    moved = {name: would[name] - was[name] for name in _DECISIONS}
    return {**moved, "micros": _micros(would) - _micros(was)}


def _days(days: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest first."""
    return [{**day, "date": date.fromisoformat(day["day"])} for day in reversed(days)]


def _micros(totals: dict[str, Any]) -> int:
    return present(parse_micros(totals["amount"]), "the service's own amount")


def _tried(agent: dict[str, Any] | None, policy: dict[str, Any] | None) -> list[Any]:
    """What is different from the policy in force, where there is one."""
    if agent is None or policy is None:
        return []
    return changes(agent["policy"], {**agent["policy"], **policy})


def _fields(
    visit: Visit, agent: dict[str, Any] | None, policy: dict[str, Any] | None
) -> dict[str, str]:
    """What the editor's form would send to put it in force; empty where that cannot be done from
    here: it was asked for in another way, or the key may not."""
    if agent is None or policy is None or policy.keys() != {*_PLAIN, *_LISTS}:
        return {}
    if agent["status"] == "terminated" or not visit.may_send(PATCH, {"policy": policy}):
        return {}
    seen = visit.query.get("version", "")
    version = seen if _is_whole(seen) else agent["policy"]["version"]
    lists = {name: "\n".join(policy[name]) for name in _LISTS}
    plain = {name: "" if policy[name] is None else str(policy[name]) for name in _PLAIN}
    return {"version": str(version), **plain, **lists}


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
