"""Pays for the public Python client of x402 through Bursar. One line of an agent changes:

    client = x402Client()
    client.register("solana:*", BursarScheme(AsyncBursar()))  # was: ExactSvmScheme(signer)

The agent holds no wallet key any more, its policy judges every payment, and what it pays is in the
books. `x402` itself is not needed here, only by the agent.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from bursar.client.client import AsyncBursar, Bursar
from bursar.client.codec import Amount
from bursar.client.fetch import problem_of
from bursar.client.model import Purchase
from bursar.errors import BursarError

# USDC, by network: what the client's own spend controls count in dollars.
_USDC: Final = {
    "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
    "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1": "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",
}
_REQUIRED: Final = "PAYMENT-REQUIRED"


@dataclass(frozen=True, slots=True)
class _Made:
    """A payment, and the very terms that it was made for."""

    terms: object
    payload: dict[str, Any] = field(repr=False)


# Requests that run at once have a context each, so none finds the URL or the payment of another.
_asked: ContextVar[tuple[object, str] | None] = ContextVar("bursar_x402_asked", default=None)
_made: ContextVar[_Made | None] = ContextVar("bursar_x402_made", default=None)


class BursarScheme:
    """The scheme `exact` on Solana, for `x402Client.register` and `x402ClientSync.register`.

    Takes an AsyncBursar with the former, so that nothing blocks, and a Bursar with the latter. A
    payment that Bursar does not make raises PurchaseRefused, PurchasePending or PurchaseFailed,
    which the HTTP clients of `x402` wrap in their PaymentError.
    """

    scheme: Final = "exact"

    def __init__(
        self,
        client: Bursar | AsyncBursar,
        *,
        agent_id: str | None = None,
        max_amount: Amount | None = None,
    ) -> None:
        self._client = client
        self._agent_id = agent_id
        self._max_amount = max_amount
        # Where `x402` looks for what to call before it asks for a payment.
        self.scheme_hooks = self

    def on_payment_required(self, context: Any) -> None:
        """For `x402HTTPClient(client).on_payment_required(...)`: takes the URL from the request
        itself. Without it, the URL is the one that the seller names in its 402."""
        _asked.set((context.payment_required, context.request_url))

    def before_payment_creation(self, context: Any) -> Coroutine[Any, Any, None] | None:
        """Has Bursar make the payment. Here and not below, because only here it may be awaited."""
        terms, client = context.selected_requirements, self._client
        request: dict[str, Any] = {
            "url": _url(context.payment_required),
            "payment_required": _offer(context.payment_required, terms),
            "agent_id": self._agent_id,
            "max_amount": self._max_amount,
        }
        if isinstance(client, Bursar):
            _keep(terms, client.purchases.create(**request))
            return None
        return self._bought(client, terms, request)

    def create_payment_payload(self, requirements: Any) -> dict[str, Any]:
        made = _made.get()
        _made.set(None)
        if made is None or made.terms is not requirements:
            raise BursarError("x402 asked for a payment without announcing it first.")
        return made.payload

    @staticmethod
    def find_default_asset(asset: str, network: str) -> dict[str, Any] | None:
        """What the client's own spend controls ask: whether it is dollars."""
        if _USDC.get(network) != asset:
            return None
        return {"asset": asset, "decimals": 6, "symbol": "USDC"}

    async def _bought(self, client: AsyncBursar, terms: object, request: dict[str, Any]) -> None:
        _keep(terms, await client.purchases.create(**request))


def _keep(terms: object, purchase: Purchase) -> None:
    problem = problem_of(purchase)
    if problem is not None:
        raise problem
    if purchase.header is None:
        raise BursarError(f"{purchase.id} is {purchase.status}, and there is nothing to send.")
    sent = json.loads(b64decode(purchase.header.value))
    _made.set(_Made(terms, sent["payload"]))


def _url(required: Any) -> str:
    asked = _asked.get()
    if asked is not None and asked[0] is required:
        return asked[1]
    if required.resource is None or not required.resource.url:
        raise BursarError(
            "The seller does not say what is sold. Register the scheme's on_payment_required with"
            " x402HTTPClient, which knows the URL."
        )
    return required.resource.url


def _offer(required: Any, terms: Any) -> dict[str, Any]:
    """The 402 with nothing but the terms that the client chose, so that no others are paid."""
    shown = required.model_dump(mode="json", by_alias=True, exclude_none=True)
    shown["accepts"] = [terms.model_dump(mode="json", by_alias=True, exclude_none=True)]
    header = b64encode(json.dumps(shown).encode()).decode()
    return {"status": 402, "headers": {_REQUIRED: header}, "body": ""}
