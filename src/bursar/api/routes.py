"""Every endpoint. Routing, scopes, limits, validation and OpenAPI all read this list."""

from typing import Final

from bursar.api import (
    agents,
    audit_log,
    backtests,
    budgets,
    drafts,
    events,
    keys,
    pins,
    purchases,
    recipients,
    spends,
    stop,
    transactions,
    wallets,
    webhooks,
)
from bursar.api.call import Route

ROUTES: Final[tuple[Route, ...]] = (
    *agents.endpoints.routes,
    *drafts.endpoints.routes,
    *spends.endpoints.routes,
    *transactions.endpoints.routes,
    *budgets.endpoints.routes,
    *backtests.endpoints.routes,
    *purchases.endpoints.routes,
    *pins.endpoints.routes,
    *wallets.endpoints.routes,
    *recipients.endpoints.routes,
    *webhooks.endpoints.routes,
    *events.endpoints.routes,
    *stop.endpoints.routes,
    *keys.endpoints.routes,
    *audit_log.endpoints.routes,
)
