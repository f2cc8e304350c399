"""How a webhook and its deliveries show themselves."""

import msgspec

from bursar.clock import iso, iso_or_none
from bursar.webhook.model import (
    Attempt,
    DeliveryRow,
    DeliveryStatus,
    DisabledReason,
    WebhookRow,
    WebhookStatus,
)


class Webhook(msgspec.Struct, rename="camel", kw_only=True):
    """Where events are sent, and which."""

    id: str
    url: str
    events: list[str]
    status: WebhookStatus
    disabled_reason: DisabledReason | None
    created_at: str


class CreatedWebhook(Webhook, rename="camel", kw_only=True):
    """A webhook with its new secret, which is never shown again (null in a replay)."""

    secret: str | None

    def __repr__(self) -> str:
        return f"CreatedWebhook(id={self.id!r}, …)"


class WebhookChanged(Webhook, rename="camel", kw_only=True):
    """A webhook that was registered, changed or deleted, who did it, and where it led before, if
    elsewhere. It holds no secret."""

    changed_by: str
    previous_url: str | None


class Delivery(msgspec.Struct, rename="camel", kw_only=True):
    """One event on its way to one webhook, with every attempt so far."""

    id: str
    webhook_id: str
    event_id: str
    event_type: str
    status: DeliveryStatus
    attempts: list[Attempt]
    next_attempt_at: str | None
    created_at: str


class Redelivery(msgspec.Struct, rename="camel", kw_only=True):
    """The new deliveries of an event, one for each webhook it is sent to again."""

    event_id: str
    deliveries: list[Delivery]


def show_webhook(row: WebhookRow) -> Webhook:
    return Webhook(
        id=row.id,
        url=row.url,
        events=row.events,
        status=row.status,
        disabled_reason=row.disabled_reason,
        created_at=iso(row.created_at),
    )


def show_created(row: WebhookRow, secret: str | None) -> CreatedWebhook:
    return CreatedWebhook(**msgspec.structs.asdict(show_webhook(row)), secret=secret)


def show_delivery(row: DeliveryRow) -> Delivery:
    return Delivery(
        id=row.id,
        webhook_id=row.webhook_id,
        event_id=row.event_id,
        event_type=row.event_type,
        status=row.status,
        attempts=row.attempts,
        next_attempt_at=iso_or_none(row.next_attempt_at),
        created_at=iso(row.created_at),
    )
