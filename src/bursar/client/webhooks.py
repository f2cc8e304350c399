"""Webhooks: where events are sent. `bursar.webhooks.verify` is for the receiver."""

from collections.abc import Iterable
from typing import Any

from bursar.client.endpoint import (
    UNSET,
    Carrier,
    Request,
    Resource,
    Unset,
    given,
    listing,
    operation,
)
from bursar.client.model import CreatedWebhook, Delivery, Webhook, WebhookStatus


class Webhooks(Resource[Carrier]):
    @operation("POST /v1/webhooks", CreatedWebhook)
    def create(
        self, *, url: str, events: Iterable[str], idempotency_key: str | None = None
    ) -> Request:
        """Register a webhook, for some types of events or `["*"]`. `secret` is shown this once."""
        return Request(body={"url": url, "events": _types(events)}, idempotency_key=idempotency_key)

    @listing("GET /v1/webhooks", Webhook)
    def list(self, *, limit: int | None = None, after: str | None = None) -> Request:
        """Webhooks, newest first."""
        return Request(query={"limit": limit, "after": after})

    @operation("GET /v1/webhooks/:id", Webhook)
    def get(self, webhook_id: str) -> Request:
        """One webhook."""
        return Request(path={"id": webhook_id})

    @operation("PATCH /v1/webhooks/:id", Webhook)
    def update(
        self,
        webhook_id: str,
        *,
        url: str | Unset = UNSET,
        events: Iterable[str] | Unset = UNSET,
        status: WebhookStatus | Unset = UNSET,
    ) -> Request:
        """Change what is given; `status="enabled"` also after it was disabled for failing."""
        types: Any = events if isinstance(events, Unset) else _types(events)
        return Request(path={"id": webhook_id}, body=given(url=url, events=types, status=status))

    @operation("DELETE /v1/webhooks/:id", type(None))
    def delete(self, webhook_id: str) -> Request:
        """Remove it. What waits for it is dropped."""
        return Request(path={"id": webhook_id})

    @operation("POST /v1/webhooks/:id/rotate-secret", CreatedWebhook)
    def rotate_secret(self, webhook_id: str, *, idempotency_key: str | None = None) -> Request:
        """Give it a new secret, shown this once. The old one signs along for 24 hours."""
        return Request(path={"id": webhook_id}, idempotency_key=idempotency_key)

    @operation("POST /v1/webhooks/:id/test", Delivery)
    def test(self, webhook_id: str, *, idempotency_key: str | None = None) -> Request:
        """Send it a `webhook.test` event; `deliveries` shows what came of it."""
        return Request(path={"id": webhook_id}, idempotency_key=idempotency_key)

    @listing("GET /v1/webhooks/:id/deliveries", Delivery)
    def deliveries(
        self, webhook_id: str, *, limit: int | None = None, after: str | None = None
    ) -> Request:
        """What was sent, with every attempt, newest first."""
        return Request(path={"id": webhook_id}, query={"limit": limit, "after": after})


def _types(events: Iterable[str]) -> tuple[str, ...]:
    if isinstance(events, str):
        raise TypeError("Give a list of event types, not one string.")
    return tuple(events)
