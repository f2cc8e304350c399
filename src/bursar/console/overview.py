"""The first page: today's money, what needs a person, and whether the machinery runs."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from bursar.clock import iso
from bursar.console import budget_tree, budgets, charts, store
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit
from bursar.cost import store as cost_store
from bursar.cost.model import Runway

_HOURS: Final = 24
_DAYS: Final = 30
_RECIPIENT_DAYS: Final = 7
_LISTED: Final = 5
_LATEST: Final = 10
# A payment takes seconds. If the oldest waits this long, the page says so.
_SLOW: Final = timedelta(minutes=2)
# If the fee payer's SOL lasts fewer days than this, the page warns; more than a year is not
# counted.
_FEW_DAYS: Final = 3
_MANY_DAYS: Final = 365


@dataclass(frozen=True, slots=True)
class Health:
    """`good`, `look` or `bad`, and a sentence."""

    state: str
    says: str


async def overview(visit: Visit) -> Reply:
    caller = visit.caller
    if caller.agent_id is not None:
        # An agent key sees only its own agent, so it is sent to that page.
        return Sent(f"{ROOT}/agents/{caller.agent_id}")
    now = visit.services.clock.now()
    today = now.date()
    # Both at once: summing up all agents takes about as long as everything else.
    fleet, rest, roots = await asyncio.gather(
        _fleet(visit, today), _rest(visit, now), budgets.forest(visit)
    )
    near = budget_tree.nearest(roots)
    day = next((bucket for bucket in rest.days if bucket.start == today), None)
    midnight = datetime(today.year, today.month, today.day, tzinfo=UTC) + timedelta(days=1)
    return Drawn(
        "overview.html",
        {
            "fleet": fleet,
            "most_agents": store.MOST_AGENTS,
            "budgets": len(list(budget_tree.walk(roots))),
            "near": near[:_LISTED],
            "more_near": max(len(near) - _LISTED, 0),
            "may_stop": visit.may(budgets.PATCH),
            "hours": charts.by_hour(rest.hours, now, _HOURS),
            "days": charts.by_day(rest.days, today, _DAYS),
            "today": day,
            "resets_at": iso(midnight),
            "pending": rest.pending,
            "waiting": rest.waiting,
            "latest": rest.latest,
            "agents": rest.agents,
            "recipients": _ranked(rest.recipients),
            "recipient_days": _RECIPIENT_DAYS,
            "settlement": _settlement(rest.approved, rest.in_doubt, fleet.frozen_wallets, now),
            "webhooks": _webhooks(list(rest.hooks.values())),
            "network": _network(
                rest.network_lamports, visit.services.config.account_network_lamports, rest.runway
            ),
        },
    )


@dataclass(frozen=True, slots=True)
class _Rest:
    """What the page shows besides the sums over all agents."""

    hours: list[store.Bucket]
    days: list[store.Bucket]
    pending: store.Waiting
    approved: store.Waiting
    in_doubt: int
    network_lamports: int
    runway: Runway | None
    hooks: dict[str, store.Hook]
    recipients: list[dict[str, str]]
    latest: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    agents: dict[str, store.Standing]


async def _fleet(visit: Visit, today: date) -> store.Fleet:
    async with visit.services.db.connection() as tx:
        return await store.fleet(tx, visit.caller.realm_id, today, _LISTED)


async def _rest(visit: Visit, now: datetime) -> _Rest:
    realm_id, today = visit.caller.realm_id, now.date()
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=_HOURS - 1)
    statistics = await visit.ask(
        "GET /v1/transactions/stats",
        query={"from": (today - timedelta(days=_RECIPIENT_DAYS - 1)).isoformat()},
    )
    latest = await visit.ask("GET /v1/transactions", query={"limit": _LATEST})
    waiting = await visit.ask("GET /v1/transactions", query={"status": "pending", "limit": _LISTED})
    shown = [spend["agentId"] for spend in (*latest["data"], *waiting["data"])]
    async with visit.services.db.connection() as tx:
        return _Rest(
            hours=await store.spend_by_hour(tx, realm_id, since),
            days=await store.spend_by_day(tx, realm_id, None, today - timedelta(days=_DAYS - 1)),
            pending=await store.waiting_spends(tx, realm_id, "pending"),
            approved=await store.waiting_spends(tx, realm_id, "approved"),
            in_doubt=await store.payments_in_doubt(tx, realm_id, visit.caller.mode),
            network_lamports=await cost_store.cost_today(tx, realm_id),
            runway=await cost_store.runway(tx, visit.caller.mode),
            hooks=await store.hooks(tx, realm_id),
            recipients=statistics["topRecipients"][:_LISTED],
            latest=latest["data"],
            waiting=waiting["data"],
            agents=await store.standings(tx, realm_id, today, shown),
        )


def _ranked(totals: list[dict[str, str]]) -> list[tuple[str, str, int]]:
    """(recipient, total, share of the largest in percent)."""
    cents = [int(total["totalUsdc"].replace(".", "")) for total in totals]
    return [
        (total["hostname"], total["totalUsdc"], part * 100 // max(max(cents), 1))
        for total, part in zip(totals, cents, strict=True)
    ]


def _settlement(approved: store.Waiting, in_doubt: int, frozen: int, now: datetime) -> Health:
    if frozen:
        return Health(
            "bad",
            f"{frozen} wallet{'s hold' if frozen > 1 else ' holds'} less on the chain than the"
            " books say. Nothing more is signed for it. Run bursar audit.",
        )
    if in_doubt:
        return Health(
            "bad", f"{in_doubt} in doubt: it is not known yet whether they were paid. They wait."
        )
    if approved.oldest is None:
        return Health("good", "Nothing waits to be paid.")
    count = f"{store.MOST_COUNTED:,}+" if approved.count >= store.MOST_COUNTED else approved.count
    age = now - approved.oldest
    if age > _SLOW:
        return Health("look", f"{count} on their way, the oldest for {_words(age)}.")
    return Health("good", f"{count} on their way.")


def _network(lamports: int, budget: int, runway: Runway | None) -> Health:
    spent = f"{lamports:,} of {budget:,} lamports used today."
    if runway is None:
        return Health("good" if lamports < budget else "bad", spent)
    left = f" The fee payer has SOL for {runway.payments:,} payments"
    if runway.days < _MANY_DAYS:
        left += f", {int(runway.days)} days at the pace of this week"
    if lamports >= budget or runway.payments == 0:
        return Health("bad", f"{spent}{left}.")
    return Health("look" if runway.days < _FEW_DAYS else "good", f"{spent}{left}.")


def _webhooks(hooks: list[store.Hook]) -> Health:
    if not hooks:
        return Health("good", "No webhook is registered.")
    failing = sum(hook.failing_since is not None and hook.status == "enabled" for hook in hooks)
    stopped = sum(hook.disabled_reason in ("gone", "failing") for hook in hooks)
    waiting = sum(hook.waiting for hook in hooks if hook.status == "enabled")
    if stopped or failing:
        parts = [f"{stopped} disabled after failures"] if stopped else []
        parts += [f"{failing} failing"] if failing else []
        return Health("bad" if stopped else "look", f"{' and '.join(parts)} of {len(hooks)}.")
    if waiting:
        return Health("good", f"{waiting:,} deliver{'ies' if waiting > 1 else 'y'} on the way.")
    return Health("good", f"All {len(hooks)} deliver." if len(hooks) > 1 else "It delivers.")


def _words(age: timedelta) -> str:
    minutes = int(age.total_seconds()) // 60
    if minutes < 120:
        return f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 2880 else f"{minutes // 1440} days"
