"""Every endpoint, one row each. Routing, scopes, limits, validation and OpenAPI all read it."""

from typing import Final

from bursar.api import (
    agents,
    audit_log,
    events,
    keys,
    recipients,
    spends,
    transactions,
    wallets,
    webhooks,
)
from bursar.api.call import Route

ROUTES: Final[tuple[Route, ...]] = (
    *agents.endpoints.rows,
    *spends.endpoints.rows,
    *transactions.endpoints.rows,
    *wallets.endpoints.rows,
    *recipients.endpoints.rows,
    *webhooks.endpoints.rows,
    *events.endpoints.rows,
    *keys.endpoints.rows,
    *audit_log.endpoints.rows,
)
