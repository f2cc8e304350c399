"""How a webhook and its deliveries show themselves."""

from urllib.parse import urlsplit

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


class WebhookSummary(msgspec.Struct, rename="camel", kw_only=True):
    """A webhook as events tell of it: of its URL only scheme, host and port. Other receivers read
    them, and what stands behind the origin is often a secret itself."""

    id: str
    origin: str
    events: list[str]
    status: WebhookStatus
    disabled_reason: DisabledReason | None
    created_at: str


class WebhookChanged(WebhookSummary, rename="camel", kw_only=True):
    """A webhook that was registered, changed or deleted, and who did it. `urlChanged` says whether
    its URL is another one, `previousOrigin` where it led before, if to another origin."""

    changed_by: str
    url_changed: bool
    previous_origin: str | None


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


def show_summary(row: WebhookRow) -> WebhookSummary:
    return WebhookSummary(
        id=row.id,
        origin=_origin(row.url),
        events=row.events,
        status=row.status,
        disabled_reason=row.disabled_reason,
        created_at=iso(row.created_at),
    )


def show_changed(row: WebhookRow, previous_url: str, changed_by: str) -> WebhookChanged:
    summary, previous = show_summary(row), _origin(previous_url)
    return WebhookChanged(
        **msgspec.structs.asdict(summary),
        changed_by=changed_by,
        url_changed=row.url != previous_url,
        previous_origin=None if previous == summary.origin else previous,
    )


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"


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
