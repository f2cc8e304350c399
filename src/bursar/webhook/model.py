"""Webhooks, their deliveries and the attempts at each."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

WebhookStatus = Literal["enabled", "disabled"]
# Why a webhook is disabled: an operator asked for it, the receiver answered 410, or every attempt
# failed for days.
DisabledReason = Literal["requested", "gone", "failing"]
DeliveryStatus = Literal["pending", "delivered", "failed"]


@dataclass(frozen=True, slots=True)
class WebhookRow:
    id: str
    realm_id: int
    url: str
    events: list[str]
    status: WebhookStatus
    disabled_reason: DisabledReason | None
    failing_since: datetime | None
    created_at: datetime


class Attempt(msgspec.Struct, rename="camel", kw_only=True):
    """One try to deliver. `status` is null when there was no answer; then `error` says why."""

    at: str
    status: int | None
    latency_ms: int
    error: str | None
    # The beginning of the receiver's answer.
    response: str | None


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    webhook_id: str
    event_id: str
    event_type: str
    status: DeliveryStatus
    attempts: list[Attempt]
    next_attempt_at: datetime | None
    created_at: datetime
