"""Purchases from HTTP sellers, and the pins that say where an origin is paid."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from bursar.client.codec import Amount, When, amount_text, when_text
from bursar.client.endpoint import Carrier, Request, Resource, listing, operation, present
from bursar.client.model import Pin, Purchase, PurchaseStatus

# A purchase may wait for its turn half of this, and the service asks the seller twice: a quarter
# each, unless set otherwise.
_SELLER_SECONDS: Final = 120


class Purchases(Resource[Carrier]):
    @operation("POST /v1/purchases", Purchase)
    def create(
        self,
        url: str,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        max_amount: Amount | None = None,
        payment_required: Mapping[str, Any] | None = None,
        agent_id: str | None = None,
        memo: str | None = None,
        metadata: Mapping[str, str] | None = None,
        wait: int | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Buy what a URL sells. **A refusal is an answer, not an exception**: read `status`.

        `response` is what the seller answered. With `payment_required`, the `status`, `headers` and
        `body` of a 402 that you got yourself, the seller is not asked, and `header` is what to send
        it. With `wait` (at most 30 seconds) the answer comes when the chain has spoken. A key of
        scope `agent` may leave out `agent_id`.
        """
        return Request(
            body=present(
                agentId=agent_id,
                url=url,
                method=method,
                headers=headers,
                body=body,
                maxAmount=None if max_amount is None else amount_text(max_amount),
                paymentRequired=payment_required,
                memo=memo,
                metadata=metadata,
            ),
            wait=wait,
            patience=_SELLER_SECONDS,
            idempotency_key=idempotency_key,
        )

    @operation("POST /v1/purchases/:id/retry", Purchase)
    def retry(
        self, purchase_id: str, *, wait: int | None = None, idempotency_key: str | None = None
    ) -> Request:
        """Send the seller the same request with the same payment again, where its answer was lost.
        Pays nothing more."""
        return Request(
            path={"id": purchase_id},
            wait=wait,
            patience=_SELLER_SECONDS,
            idempotency_key=idempotency_key,
        )

    @operation("POST /v1/purchases/:id/continue", Purchase)
    def continue_(
        self,
        purchase_id: str,
        *,
        payment_required: Mapping[str, Any] | None = None,
        wait: int | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Go on after a person approved. If the seller now wants another price or payee, nothing is
        bought. `payment_required`: the seller's new 402, where you brought the first one."""
        return Request(
            path={"id": purchase_id},
            body=present(paymentRequired=payment_required),
            wait=wait,
            patience=_SELLER_SECONDS,
            idempotency_key=idempotency_key,
        )

    @listing("GET /v1/purchases", Purchase)
    def list(
        self,
        *,
        agent_id: str | None = None,
        status: PurchaseStatus | Literal["all"] | None = None,
        host: str | None = None,
        from_: When | None = None,
        to: When | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Request:
        """Purchases, newest first, without what was sent and answered; `from_` included, `to`
        not."""
        return Request(
            query={
                "agentId": agent_id,
                "status": status,
                "host": host,
                "from": None if from_ is None else when_text(from_),
                "to": None if to is None else when_text(to),
                "limit": limit,
                "after": after,
            }
        )

    @operation("GET /v1/purchases/:id", Purchase)
    def get(self, purchase_id: str) -> Request:
        """One purchase, as it stands."""
        return Request(path={"id": purchase_id})


class Pins(Resource[Carrier]):
    @listing("GET /v1/pins", Pin)
    def list(self, *, limit: int | None = None, after: str | None = None) -> Request:
        """Every origin that was bought from without an entry in the directory."""
        return Request(query={"limit": limit, "after": after})

    @operation("POST /v1/pins/accept", Pin)
    def accept(self, origin: str, *, address: str, idempotency_key: str | None = None) -> Request:
        """Take the address that an origin offers now as the one it is paid at."""
        body = {"origin": origin, "address": address}
        return Request(body=body, idempotency_key=idempotency_key)

    @operation("POST /v1/pins/forget", type(None))
    def forget(self, origin: str, *, idempotency_key: str | None = None) -> Request:
        """Drop a pin. What the origin says at the next purchase is pinned anew."""
        return Request(body={"origin": origin}, idempotency_key=idempotency_key)
