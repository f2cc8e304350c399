"""Every page and every form of the console, with the API route that it stands for."""

from dataclasses import replace
from typing import Final

from bursar.console import (
    agent_choice,
    agents,
    audit_log,
    backtests,
    budgets,
    connect,
    keys,
    money_moves,
    purchases,
    recipients,
    search,
    sessions,
    stops,
    transactions,
    webhooks,
)
from bursar.console.overview import overview
from bursar.console.visit import ROOT, Handler, Mark, Screen, newest_event


def _page(path: str, handler: Handler, stands_for: str) -> Screen:
    return Screen(method="GET", path=ROOT + path, handler=handler, stands_for=stands_for)


def _live(path: str, handler: Handler, stands_for: str, mark: Mark = newest_event) -> Screen:
    """A page that refreshes itself while it is open."""
    return replace(_page(path, handler, stands_for), mark=mark)


def _form(path: str, handler: Handler, stands_for: str, again: Handler) -> Screen:
    return Screen(
        method="POST", path=ROOT + path, handler=handler, stands_for=stands_for, again=again
    )


def _with_key(path: str, handler: Handler, stands_for: str, again: Handler) -> Screen:
    """A form that sends money out, reveals a secret or revokes a key, so the key must be typed
    again."""
    return replace(_form(path, handler, stands_for, again), asks_key=True)


# The API has no route for sessions and none to search by. Every key may list its own sessions and
# find what it may see; it counts towards the limit as this list does.
_ANY_LIST: Final = "GET /v1/agents"


SCREENS: Final[tuple[Screen, ...]] = (
    _live("", overview, "GET /v1/transactions/stats"),
    _page("/search", search.search, _ANY_LIST),
    _live("/agents", agents.list_agents, "GET /v1/agents"),
    _page("/agents/new", agents.new_agent, "POST /v1/agents"),
    _form("/agents/new", agents.create_agent, "POST /v1/agents", agents.new_agent),
    _form("/agents/many", agents.act_on_many, agents.PATCH_MANY, agents.list_agents),
    _page("/agents/names", agent_choice.names, "GET /v1/agents"),
    _live("/agents/:id", agents.agent, "GET /v1/agents/:id"),
    # Terminating needs another scope than a change; the API route that it calls checks that.
    _form("/agents/:id", agents.act, agents.PATCH, agents.agent),
    _form("/agents/:id/fund", agents.fund, "POST /v1/test/wallets/:agentId/fund", agents.agent),
    _form("/agents/:id/withdraw/review", agents.review_withdrawal, agents.WITHDRAW, agents.agent),
    _with_key("/agents/:id/withdraw", agents.withdraw, agents.WITHDRAW, agents.not_withdrawn),
    _page("/agents/:id/connect", connect.connect, connect.CREATE_KEY),
    _with_key("/agents/:id/connect", connect.make_key, connect.CREATE_KEY, connect.connect),
    _page("/agents/:id/budget", budgets.choose, agents.PATCH),
    _form("/agents/:id/budget", budgets.move_agent, agents.PATCH, budgets.choose),
    _page("/agents/:id/policy", agents.edit_policy, agents.PATCH),
    _form("/agents/:id/policy", agents.change_policy, agents.PATCH, agents.edit_policy),
    _form("/agents/:id/preview", agents.preview_policy, agents.PATCH, agents.edit_policy),
    _form("/agents/:id/try", backtests.begin, backtests.CREATE, agents.edit_policy),
    _live("/backtests/:id", backtests.backtest, backtests.GET, backtests.mark),
    _page("/backtests/:id/changes.csv", backtests.export, backtests.EXPORT),
    _live("/budgets", budgets.list_budgets, budgets.LIST),
    _page("/budgets/new", budgets.new_budget, budgets.CREATE),
    _form("/budgets/new", budgets.create, budgets.CREATE, budgets.new_budget),
    _live("/budgets/:id", budgets.budget, budgets.GET),
    _form("/budgets/:id", budgets.act, budgets.PATCH, budgets.budget),
    _page("/budgets/:id/edit", budgets.edit, budgets.PATCH),
    _form("/budgets/:id/edit", budgets.change, budgets.PATCH, budgets.edit),
    _form("/budgets/:id/agents", budgets.move_agents, budgets.MOVE, budgets.budget),
    _live("/approvals", transactions.approvals, "GET /v1/transactions"),
    _live("/transactions", transactions.list_spends, "GET /v1/transactions"),
    _page("/transactions.csv", transactions.export, "GET /v1/transactions/export"),
    _page("/deposits.csv", money_moves.deposits, money_moves.DEPOSITS),
    _page("/withdrawals.csv", money_moves.withdrawals, money_moves.WITHDRAWALS),
    _live("/transactions/:id", transactions.spend, "GET /v1/transactions/:id"),
    _form(
        "/transactions/:id/approve",
        transactions.approve,
        "POST /v1/transactions/:id/approve",
        transactions.undecided,
    ),
    _form(
        "/transactions/:id/deny",
        transactions.deny,
        "POST /v1/transactions/:id/deny",
        transactions.undecided,
    ),
    _form(
        "/transactions/:id/cancel",
        transactions.cancel,
        "POST /v1/transactions/:id/cancel",
        transactions.undecided,
    ),
    _live("/purchases", purchases.list_purchases, "GET /v1/purchases"),
    _live("/purchases/:id", purchases.purchase, "GET /v1/purchases/:id"),
    _form("/purchases/:id/retry", purchases.retry, purchases.RETRY, purchases.purchase),
    _form("/purchases/:id/continue", purchases.go_on, purchases.CONTINUE, purchases.purchase),
    _page("/pins", purchases.pins, "GET /v1/pins"),
    # It says where money goes from now on.
    _with_key("/pins/accept", purchases.accept, purchases.ACCEPT, purchases.pins),
    _form("/pins/forget", purchases.forget, purchases.FORGET, purchases.pins),
    _live("/recipients", recipients.list_recipients, recipients.LIST),
    _with_key("/recipients", recipients.put, recipients.PUT, recipients.list_recipients),
    _with_key(
        "/recipients/remove", recipients.remove, recipients.DELETE, recipients.list_recipients
    ),
    _page("/audit-log", audit_log.list_lines, audit_log.LIST),
    _page("/audit-log.csv", audit_log.export, audit_log.EXPORT),
    _form("/stop", stops.stop, stops.STOP, overview),
    _form("/resume", stops.resume, stops.RESUME, overview),
    _live("/webhooks", webhooks.list_webhooks, "GET /v1/webhooks"),
    _form("/webhooks", webhooks.create, "POST /v1/webhooks", webhooks.list_webhooks),
    _live("/webhooks/:id", webhooks.webhook, "GET /v1/webhooks/:id", webhooks.deliveries_mark),
    _form("/webhooks/:id", webhooks.act, "PATCH /v1/webhooks/:id", webhooks.webhook),
    _form(
        "/webhooks/:id/rotate",
        webhooks.rotate,
        "POST /v1/webhooks/:id/rotate-secret",
        webhooks.webhook,
    ),
    _form(
        "/webhooks/:id/redeliver/:event",
        webhooks.redeliver,
        "POST /v1/events/:id/redeliver",
        webhooks.webhook,
    ),
    _page("/keys", keys.list_keys, "GET /v1/keys"),
    _with_key("/keys", keys.create, "POST /v1/keys", keys.list_keys),
    _with_key("/keys/:id/revoke", keys.revoke, "DELETE /v1/keys/:id", keys.list_keys),
    _page("/sessions", sessions.list_sessions, _ANY_LIST),
    _form("/sessions", sessions.end_others, _ANY_LIST, sessions.list_sessions),
    _form("/sessions/:id/end", sessions.end, _ANY_LIST, sessions.list_sessions),
)
