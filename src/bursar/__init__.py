"""Bursar: wallets that autonomous software agents cannot overspend.

    from bursar import Bursar

    client = Bursar()  # BURSAR_API_KEY, BURSAR_BASE_URL
    paid = client.spend.authorise(agent_id="ag_…", amount="12.50", recipient="api.example.com")

The exceptions that calls raise are here too, as are the clients, loaded when first asked for: the
service imports this package as well, and needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bursar.client.client import AsyncBursar, Bursar
    from bursar.client.errors import (
        AgentTerminated,
        ConnectionFailed,
        Forbidden,
        IdempotencyInProgress,
        IdempotencyKeyReused,
        InsufficientFunds,
        InternalError,
        InvalidJson,
        InvalidState,
        LimitReached,
        MethodNotAllowed,
        NotFound,
        NotSent,
        PayloadTooLarge,
        PolicyVersionConflict,
        PurchaseError,
        PurchaseFailed,
        PurchasePending,
        PurchaseRefused,
        PurchaseUnanswered,
        RateLimitExceeded,
        RequestFailed,
        ServiceError,
        TimedOut,
        Unauthorized,
        Unavailable,
        UnexpectedAnswer,
        UnsupportedMediaType,
        ValidationError,
    )
    from bursar.client.fetch import Bought
    from bursar.errors import BursarError, ConfigError

__version__ = "0.1.0"

__all__ = [
    "AgentTerminated",
    "AsyncBursar",
    "Bought",
    "Bursar",
    "BursarError",
    "ConfigError",
    "ConnectionFailed",
    "Forbidden",
    "IdempotencyInProgress",
    "IdempotencyKeyReused",
    "InsufficientFunds",
    "InternalError",
    "InvalidJson",
    "InvalidState",
    "LimitReached",
    "MethodNotAllowed",
    "NotFound",
    "NotSent",
    "PayloadTooLarge",
    "PolicyVersionConflict",
    "PurchaseError",
    "PurchaseFailed",
    "PurchasePending",
    "PurchaseRefused",
    "PurchaseUnanswered",
    "RateLimitExceeded",
    "RequestFailed",
    "ServiceError",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnsupportedMediaType",
    "ValidationError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in ("bursar.client.client", "bursar.client.errors", "bursar.client.fetch"):
            found = getattr(import_module(module), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
