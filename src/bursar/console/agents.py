"""Agents: the list, one of them, its policy, its wallet, and how to stop it."""

import functools
import itertools
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

import segno
from markupsafe import Markup

from bursar.api.policies import USUAL_PAYEES
from bursar.chain.networks import network_name
from bursar.console import budget_tree, charts, store
from bursar.console.draw import amount
from bursar.console.policies import changes, proposed
from bursar.console.visit import ROOT, Drawn, Reply, Sent, Visit, typed
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, present
from bursar.form.cursor import decode_cursor, encode_cursor
from bursar.money import parse_micros

_PAGE: Final = 25
_DAYS: Final = 30
_SPARK: Final = 14
_LATEST: Final = 15
_BOUGHT: Final = 5
_MOVES: Final = 5
_VERSIONS: Final = 10
PATCH: Final = "PATCH /v1/agents/:id"
DELETE: Final = "DELETE /v1/agents/:id"
PATCH_MANY: Final = "PATCH /v1/agents"
WITHDRAW: Final = "POST /v1/wallets/:agentId/withdraw"
# The fields of a withdrawal that its review passes on.
_WITHDRAWAL: Final = ("amount", "destination", "memo", "allowOffCurve")
# Withdrawals among which the review looks for the same address.
_LOOKED_BACK: Final = 100
FILTERS: Final = ("q", "status", "budgetId", "metadata")

# What each button sends. The key's scope decides which buttons are shown.
ACTIONS: Final[dict[str, dict[str, Any]]] = {
    "freeze": {"policy": {"frozen": True}},
    "unfreeze": {"policy": {"frozen": False}},
    "pause": {"status": "paused"},
    "resume": {"status": "active"},
}
_DONE: Final = {
    "freeze": "frozen",
    "unfreeze": "unfrozen",
    "pause": "paused",
    "resume": "resumed",
}
# What can be done to all agents that a filter finds.
_FOR_MANY: Final = ("pause", "resume")


async def list_agents(visit: Visit) -> Reply:
    # The form for many of them carries the filter, too, and is shown again with it.
    asked = {name: visit.query.get(name, "").strip() or visit.text(name) for name in FILTERS}
    given = {name: value for name, value in asked.items() if value}
    problem: ApiError | None = None
    agents: list[Any] = []
    older: str | None = None
    try:
        agents, older = await _found(visit, asked)
    except ValidationFailed as fault:
        problem = fault
    today = visit.services.clock.now().date()
    realm_id, ids = visit.caller.realm_id, [agent["id"] for agent in agents]
    under = {asked["budgetId"], *(agent["budgetId"] for agent in agents)} - {"", None}
    async with visit.services.db.connection() as tx:
        standings = await store.standings(tx, realm_id, today, ids)
        settled = await store.settled_by_day(tx, realm_id, ids, today - timedelta(days=_SPARK - 1))
        # An agent's key learns nothing of a budget but what decisions tell.
        named = visit.may("GET /v1/budgets")
        budgets = await store.budget_names(tx, realm_id, list(under)) if named else {}
    visit.problem = visit.problem or problem
    return Drawn(
        "agents.html",
        {
            "agents": agents,
            "standings": standings,
            "budgets": budgets,
            "sparks": {id_: charts.spark(settled.get(id_, {}), today, _SPARK) for id_ in ids},
            "spark_days": _SPARK,
            "asked": asked,
            "narrowed": bool(given),
            "newest": f"?{urlencode(given)}",
            "older": None if older is None else f"?{urlencode({**given, 'after': older})}",
            "first": "after" not in visit.query,
            "for_many": _for_many(visit, asked) if agents and problem is None else [],
        },
        400 if problem else 200,
    )


def _for_many(visit: Visit, asked: dict[str, str]) -> list[str]:
    """The buttons for all that the filter finds. The API knows no search by words."""
    if asked["q"] or not (asked["budgetId"] or asked["metadata"]):
        return []
    hidden = {"active": "resume", "paused": "pause", "": ""}.get(asked["status"])
    return [
        doing
        for doing in _FOR_MANY
        if hidden not in (None, doing) and visit.may_send(PATCH_MANY, ACTIONS[doing])
    ]


async def act_on_many(visit: Visit) -> Reply:
    """Pauses or resumes every agent that the list's filter finds, and shows the list again."""
    doing = visit.text("doing")
    if doing not in _FOR_MANY:
        raise ApiError(ErrorCode.VALIDATION_ERROR, "There is no such button.")
    asked = {name: visit.text(name) for name in FILTERS if name != "q" and visit.text(name)}
    query: dict[str, str | int] = {
        f"metadata[{name}]": value for name, value in pairs(asked.get("metadata", "")).items()
    }
    query |= {name: value for name, value in asked.items() if name != "metadata"}
    await visit.ask(PATCH_MANY, query=query, body=ACTIONS[doing])
    asked.pop("status", None)
    said = "many_paused" if doing == "pause" else "many_resumed"
    return Sent(f"{ROOT}/agents?{urlencode({**asked, 'said': said})}")


async def _found(visit: Visit, asked: dict[str, str]) -> tuple[list[Any], str | None]:
    metadata = pairs(asked["metadata"])
    status = asked["status"] or "all"
    after = visit.query.get("after")
    if not asked["q"] or visit.caller.agent_id is not None:
        query: dict[str, str | int] = {"status": status, "limit": _PAGE}
        query |= {f"metadata[{name}]": value for name, value in metadata.items()}
        if asked["budgetId"]:
            query["budgetId"] = asked["budgetId"]
        if after:
            query["after"] = after
        page = await visit.ask("GET /v1/agents", query=query)
        return page["data"], page["nextCursor"]
    # A search takes the list's filters, so they are validated as the list's are.
    visit.prepare("GET /v1/agents", query={"status": status})
    bound = {"search": [visit.caller.realm_id, asked]}
    async with visit.services.db.connection() as tx:
        ids, place = await store.search_agents(
            tx,
            visit.caller.realm_id,
            words=asked["q"],
            status=None if status == "all" else status,
            budget_id=asked["budgetId"] or None,
            metadata=metadata,
            before=decode_cursor(after, bound) if after else None,
            limit=_PAGE,
        )
    agents = [await visit.ask("GET /v1/agents/:id", params={"id": id_}) for id_ in ids]
    return agents, None if place is None else encode_cursor(place, bound)


def pairs(text: str) -> dict[str, str]:
    """`team=search, tier=gold` to pairs."""
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ValidationFailed([Fault("metadata", "Write pairs as team=search, tier=gold.")])
        pairs[name.strip()] = value.strip()
    return pairs


# One agent ----------------------------------------------------------------------------------------


async def agent(visit: Visit) -> Reply:
    of = {"id": visit.params["id"]}
    wallet_of = {"agentId": visit.params["id"]}
    shown = await visit.ask("GET /v1/agents/:id", params=of)
    today = visit.services.clock.now().date()
    async with visit.services.db.connection() as tx:
        days = await store.spend_by_day(
            tx, visit.caller.realm_id, shown["id"], today - timedelta(days=_DAYS - 1)
        )
    versions = await visit.ask(
        "GET /v1/agents/:id/policies", params=of, query={"limit": _VERSIONS + 1}
    )
    wallet = await visit.ask("GET /v1/wallets/:agentId", params=wallet_of)
    budget = await visit.ask("GET /v1/agents/:id/budget", params=of)
    moves = {"limit": _MOVES}
    return Drawn(
        "agent.html",
        {
            "agent": shown,
            "budget": budget,
            "limits": budget_tree.gauges_over(budget["limits"]),
            "wallet": wallet,
            "network": network_name(visit.services.config, visit.caller.mode),
            "qr": _qr(wallet["address"]),
            "under": await _under(visit, shown),
            "history": _history(versions["data"]),
            "days": charts.by_day(days, today, _DAYS),
            "spends": await visit.ask(
                "GET /v1/transactions", query={"agentId": shown["id"], "limit": _LATEST}
            ),
            "purchases": await visit.ask(
                "GET /v1/purchases", query={"agentId": shown["id"], "limit": _BOUGHT}
            ),
            "withdrawals": await visit.ask(
                "GET /v1/wallets/:agentId/withdrawals", params=wallet_of, query=moves
            ),
            "deposits": await visit.ask(
                "GET /v1/wallets/:agentId/deposits", params=wallet_of, query=moves
            ),
            "may_do": _allowed(visit, shown),
            "fundable": visit.caller.mode == "test" and visit.services.test_funds is not None,
            "typed": typed(visit, amount="", destination="", memo="", allowOffCurve=""),
            "doing": visit.text("doing"),
        },
    )


async def _under(visit: Visit, shown: dict[str, Any]) -> dict[str, Any] | None:
    """The budget that the agent is under, if it is and the key may see it."""
    if shown["budgetId"] is None or not visit.may("GET /v1/budgets/:id"):
        return None
    return await visit.ask("GET /v1/budgets/:id", params={"id": shown["budgetId"]})


def _allowed(visit: Visit, shown: dict[str, Any]) -> set[str]:
    """The buttons that make sense for this agent and that this key may use."""
    frozen, status = shown["policy"]["frozen"], shown["status"]
    if status == "terminated":
        return {"withdraw"} if visit.may("POST /v1/wallets/:agentId/withdraw") else set()
    sensible = {
        "unfreeze" if frozen else "freeze",
        "resume" if status == "paused" else "pause",
    }
    allowed = {name for name in sensible if visit.may_send(PATCH, ACTIONS[name])}
    if visit.may(DELETE):
        allowed.add("terminate")
    if visit.may_send(PATCH, {"policy": {"dailyCap": "0"}}):
        allowed.add("edit")
    if visit.may("POST /v1/wallets/:agentId/withdraw"):
        allowed.add("withdraw")
    if visit.may("POST /v1/test/wallets/:agentId/fund"):
        allowed.add("fund")
    if visit.may("POST /v1/keys"):
        allowed.add("connect")
    return allowed


def _history(versions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each version with its changes from the one before. The oldest one fetched is only compared
    with."""
    made = [
        {**version, "changes": changes(before, version)}
        for version, before in itertools.pairwise(versions)
    ]
    if versions and len(versions) <= _VERSIONS:
        made.append({**versions[-1], "changes": []})
    return made


@functools.lru_cache(maxsize=256)
def _qr(address: str) -> Markup:
    """Black on white in both colour schemes, because cameras need it."""
    code = segno.make(address, error="m", micro=False)
    drawn = code.svg_inline(
        border=3, omitsize=True, dark="#000", light="#fff", svgclass="qr", lineclass=None
    )
    return Markup(drawn)  # noqa: S704 - drawn from modules, holds no text


async def act(visit: Visit) -> Reply:
    """Freeze, unfreeze, pause, resume or terminate."""
    doing, of = visit.text("doing"), {"id": visit.params["id"]}
    if doing == "terminate":
        await visit.ask(DELETE, params=of)
        return Sent(_to(visit, "terminated"))
    if doing not in ACTIONS:
        raise ApiError(ErrorCode.VALIDATION_ERROR, "There is no such button.")
    await visit.ask(PATCH, params=of, body=ACTIONS[doing])
    return Sent(_to(visit, _DONE[doing]))


async def fund(visit: Visit) -> Reply:
    deposit = await visit.ask(
        "POST /v1/test/wallets/:agentId/fund",
        params={"agentId": visit.params["id"]},
        body={"amount": visit.text("amount")},
    )
    return Sent(_to(visit, "funded" if deposit["status"] == "credited" else "minted"))


async def review_withdrawal(visit: Visit) -> Reply:
    """Shows what would be paid out, and where to. Changes nothing."""
    of = {"agentId": visit.params["id"]}
    call = await visit.prepared(WITHDRAW, params=of, body=_withdrawal(visit))
    return await _reviewed(visit, call.body["amount"], call.body["destination"])


async def withdraw(visit: Visit) -> Reply:
    await visit.ask(WITHDRAW, params={"agentId": visit.params["id"]}, body=_withdrawal(visit))
    return Sent(_to(visit, "withdrawn"))


async def not_withdrawn(visit: Visit) -> Reply:
    """The review again if the key was wrong, else the form, to change it."""
    if present(visit.problem, "the form failed").param != "key":
        return await agent(visit)
    try:
        return await review_withdrawal(visit)
    except ValidationFailed:
        return await agent(visit)


async def _reviewed(visit: Visit, amount_micros: int, destination: str) -> Reply:
    of = {"agentId": visit.params["id"]}
    wallet = await visit.ask("GET /v1/wallets/:agentId", params=of)
    before = await visit.ask(
        "GET /v1/wallets/:agentId/withdrawals", params=of, query={"limit": _LOOKED_BACK}
    )
    available = present(parse_micros(wallet["available"]), "the API shows amounts")
    left = available - amount_micros
    if left < 0:
        most = amount(wallet["available"])
        problem = f"amount is more than the {most} USDC that are available."
        raise ValidationFailed([Fault("amount", problem)])
    return Drawn(
        "withdraw.html",
        {
            "agent": await visit.ask("GET /v1/agents/:id", params={"id": visit.params["id"]}),
            "wallet": wallet,
            "amount_micros": amount_micros,
            "left_micros": left,
            "destination": destination,
            "earlier": [
                one
                for one in before["data"]
                if one["destination"] == destination and one["status"] == "settled"
            ],
            # None where these are all of them.
            "looked_back": None if before["nextCursor"] is None else _LOOKED_BACK,
            "fields": {name: visit.text(name) for name in _WITHDRAWAL},
        },
    )


def _withdrawal(visit: Visit) -> dict[str, Any]:
    body: dict[str, Any] = {
        "amount": visit.text("amount"),
        "destination": visit.text("destination"),
        "memo": visit.text("memo") or None,
    }
    if visit.text("allowOffCurve"):
        body["allowOffCurve"] = True
    return body


# New agents and policies --------------------------------------------------------------------------


async def new_agent(visit: Visit) -> Reply:
    fields = typed(
        visit, name="", metadata="", dailyCap="", perTransactionCap="", approvalThreshold="",
        dailyNetworkLamports="", allowlist="", blocklist="",
        payees=USUAL_PAYEES[visit.caller.mode],
    )  # fmt: skip
    return Drawn("new_agent.html", {"typed": fields})


async def create_agent(visit: Visit) -> Reply:
    policy = policy_of(visit)
    policy["dailyCap"] = policy["dailyCap"] or ""
    made = await visit.ask(
        "POST /v1/agents",
        body={
            "name": visit.text("name"),
            "policy": policy,
            "metadata": pairs(visit.text("metadata")),
        },
    )
    return Sent(f"{ROOT}/agents/{made['id']}/connect?said=created")


async def edit_policy(visit: Visit) -> Reply:
    shown = await visit.ask("GET /v1/agents/:id", params={"id": visit.params["id"]})
    policy = shown["policy"]
    lamports = policy["dailyNetworkLamports"]
    # Refused before the form is shown, not after it was filled in.
    visit.prepare(
        PATCH, params={"id": shown["id"]}, body={"policy": {"dailyCap": policy["dailyCap"]}}
    )
    # Also when the form is shown again: the editor must decide about the policy as it is now.
    fields = typed(
        visit,
        dailyCap=policy["dailyCap"],
        perTransactionCap=policy["perTransactionCap"] or "",
        approvalThreshold=policy["approvalThreshold"] or "",
        dailyNetworkLamports="" if lamports is None else str(lamports),
        allowlist="\n".join(policy["allowlist"]),
        blocklist="\n".join(policy["blocklist"]),
        payees=policy["payees"],
    )
    return Drawn("policy.html", {"agent": shown, "typed": fields, "version": policy["version"]})


async def preview_policy(visit: Visit) -> Reply:
    """Shows the proposed policy beside the current one. Changes nothing."""
    of = {"id": visit.params["id"]}
    shown = await visit.ask("GET /v1/agents/:id", params=of)
    body = {"policy": {**policy_of(visit), "version": _version(visit)}}
    parsed = (await visit.prepared(PATCH, params=of, body=body)).body["policy"]
    after = proposed(shown["policy"], parsed)
    return Drawn(
        "policy_preview.html",
        {
            "agent": shown,
            "changes": changes(shown["policy"], after),
            "stale": parsed["version"] != shown["policy"]["version"],
            "budget": await visit.ask("GET /v1/agents/:id/budget", params=of),
            "after": after,
            "version": parsed["version"],
        },
    )


async def change_policy(visit: Visit) -> Reply:
    if visit.text("back"):
        # Goes back from the preview to the editor and keeps what was typed.
        visit.problem = ApiError(ErrorCode.VALIDATION_ERROR, "")
        reply = await edit_policy(visit)
        visit.problem = None
        return reply
    version = _version(visit)
    changed = await visit.ask(
        PATCH,
        params={"id": visit.params["id"]},
        body={"policy": {**policy_of(visit), "version": version}},
    )
    same = changed["policy"]["version"] == version
    return Sent(_to(visit, "unchanged" if same else "policy"))


def policy_of(visit: Visit) -> dict[str, Any]:
    """The form's fields as the API takes them; an empty cap means no cap."""
    network = visit.text("dailyNetworkLamports")
    return {
        "dailyCap": visit.text("dailyCap"),
        "perTransactionCap": visit.text("perTransactionCap") or None,
        "approvalThreshold": visit.text("approvalThreshold") or None,
        "dailyNetworkLamports": _whole(visit, "dailyNetworkLamports") if network else None,
        "allowlist": visit.lines("allowlist"),
        "blocklist": visit.lines("blocklist"),
        "payees": visit.text("payees"),
    }


def _version(visit: Visit) -> int | str:
    return _whole(visit, "version")


def _whole(visit: Visit, name: str) -> int | str:
    """Leaves text that is not a number as it is, for the API to refuse."""
    text = visit.text(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text


def _to(visit: Visit, said: str) -> str:
    return f"{ROOT}/agents/{visit.params['id']}?said={said}"
