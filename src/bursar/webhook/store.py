"""Queries on webhooks, their secrets and their deliveries."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from bursar.custody.model import SealedSecret
from bursar.db import Row, Tx
from bursar.errors import present
from bursar.event.model import EventRow
from bursar.webhook.model import (
    Attempt,
    DeliveryRow,
    DeliveryStatus,
    DisabledReason,
    WebhookRow,
    WebhookStatus,
)

_COLUMNS: Final = "id, realm_id, url, events, status, disabled_reason, failing_since, created_at"
_DELIVERY: Final = (
    "SELECT d.id, d.webhook_id, d.event_id, e.type AS event_type, d.status, d.attempts,"
    " d.next_attempt_at, d.created_at FROM delivery d JOIN event e ON e.id = d.event_id"
)
_decode_attempts = msgspec.json.Decoder(list[Attempt]).decode


# Webhooks ----------------------------------------------------------------------------------------


async def count_webhooks(tx: Tx, realm_id: int) -> int:
    """Locks the realm, so that two requests at once cannot both be the last that fits."""
    await tx.execute("SELECT FROM realm WHERE id = $1 FOR NO KEY UPDATE", realm_id)
    return await tx.fetchval("SELECT count(*) FROM webhook WHERE realm_id = $1", realm_id)


async def insert_webhook(
    tx: Tx, webhook_id: str, realm_id: int, url: str, events: list[str]
) -> WebhookRow:
    row = await tx.fetchrow(
        "INSERT INTO webhook (id, realm_id, url, events, created_at)"
        f" VALUES ($1, $2, $3, $4, moment()) RETURNING {_COLUMNS}",
        webhook_id,
        realm_id,
        url,
        events,
    )
    row = present(row, "the statement returns a row")
    return WebhookRow(**row)


async def get_webhook(
    tx: Tx, realm_id: int, webhook_id: str, *, for_update: bool = False
) -> WebhookRow | None:
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS} FROM webhook WHERE id = $2 AND realm_id = $1"
        + (" FOR NO KEY UPDATE" if for_update else ""),
        realm_id,
        webhook_id,
    )
    return None if row is None else WebhookRow(**row)


async def list_webhooks(
    tx: Tx, realm_id: int, before: tuple[datetime, str] | None, limit: int
) -> list[WebhookRow]:
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM webhook WHERE realm_id = $1"
        " AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3::text))"
        " ORDER BY created_at DESC, id DESC LIMIT $4",
        realm_id,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [WebhookRow(**row) for row in rows]


async def update_webhook(
    tx: Tx,
    webhook_id: str,
    *,
    url: str,
    events: list[str],
    status: WebhookStatus,
    disabled_reason: DisabledReason | None,
) -> WebhookRow:
    """A changed webhook starts with a clean record."""
    row = await tx.fetchrow(
        "UPDATE webhook SET url = $2, events = $3, status = $4, disabled_reason = $5,"
        f" failing_since = NULL WHERE id = $1 RETURNING {_COLUMNS}",
        webhook_id,
        url,
        events,
        status,
        disabled_reason,
    )
    row = present(row, "the statement returns a row")
    return WebhookRow(**row)


async def delete_webhook(tx: Tx, webhook_id: str) -> None:
    """With its secrets. From now on nothing of it is claimed; `sweep_deliveries` clears up."""
    await tx.execute("DELETE FROM webhook WHERE id = $1", webhook_id)


# Secrets -----------------------------------------------------------------------------------------


async def newest_secret_number(tx: Tx, webhook_id: str) -> int:
    return await tx.fetchval(
        "SELECT coalesce(max(number), 0) FROM webhook_secret WHERE webhook_id = $1", webhook_id
    )


async def retire_secrets(tx: Tx, webhook_id: str, overlap_seconds: int, kept: int) -> None:
    """The one in force signs along for a while; those whose time is over go, and the oldest."""
    await tx.execute(
        "UPDATE webhook_secret SET signs_until = moment() + make_interval(secs => $2)"
        " WHERE webhook_id = $1 AND signs_until IS NULL",
        webhook_id,
        overlap_seconds,
    )
    await tx.execute(
        "DELETE FROM webhook_secret s WHERE webhook_id = $1 AND (signs_until <= clock_timestamp()"
        " OR number <= (SELECT max(number) FROM webhook_secret WHERE webhook_id = $1) - $2)",
        webhook_id,
        kept,
    )


async def insert_secret(tx: Tx, webhook_id: str, number: int, secret: SealedSecret) -> None:
    await tx.execute(
        "INSERT INTO webhook_secret (owner, webhook_id, number, master_version, sealed)"
        " VALUES ($1, $2, $3, $4, $5)",
        secret.owner,
        webhook_id,
        number,
        secret.master_version,
        secret.sealed,
    )


async def secrets_in_force(tx: Tx, webhook_ids: Sequence[str]) -> dict[str, list[SealedSecret]]:
    """By webhook, the newest first."""
    rows = await tx.fetch(
        "SELECT webhook_id, owner, master_version, sealed FROM webhook_secret"
        " WHERE webhook_id = ANY($1::text[])"
        " AND (signs_until IS NULL OR signs_until > clock_timestamp())"
        " ORDER BY webhook_id, number DESC",
        webhook_ids,
    )
    found: dict[str, list[SealedSecret]] = {}
    for row in rows:
        found.setdefault(row["webhook_id"], []).append(
            SealedSecret(row["owner"], row["master_version"], row["sealed"])
        )
    return found


# Deliveries --------------------------------------------------------------------------------------


async def get_deliveries(tx: Tx, delivery_ids: Sequence[str]) -> list[DeliveryRow]:
    rows = await tx.fetch(f"{_DELIVERY} WHERE d.id = ANY($1::text[]) ORDER BY d.id", delivery_ids)
    return [_delivery(row) for row in rows]


async def list_deliveries(
    tx: Tx, webhook_id: str, before: tuple[datetime, str] | None, limit: int
) -> list[DeliveryRow]:
    rows = await tx.fetch(
        f"{_DELIVERY} WHERE d.webhook_id = $1"
        " AND ($2::timestamptz IS NULL OR (d.created_at, d.id) < ($2, $3::text))"
        " ORDER BY d.created_at DESC, d.id DESC LIMIT $4",
        webhook_id,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [_delivery(row) for row in rows]


async def sweep_deliveries(tx: Tx, limit: int) -> int:
    """Drops what waits for webhooks that are gone."""
    status = await tx.execute(
        "DELETE FROM delivery WHERE id IN (SELECT d.id FROM delivery d WHERE d.status = 'pending'"
        " AND NOT EXISTS (SELECT FROM webhook w WHERE w.id = d.webhook_id) LIMIT $1)",
        limit,
    )
    return int(status.rpartition(" ")[2])


async def backlog(tx: Tx) -> tuple[int, float]:
    """(deliveries that wait or are under way, age of the oldest in seconds)."""
    row = await tx.fetchrow(
        "SELECT count(*) AS count, coalesce(extract(epoch FROM"
        " clock_timestamp() - min(d.created_at)), 0)::float8 AS oldest"
        " FROM delivery d JOIN webhook w ON w.id = d.webhook_id AND w.status = 'enabled'"
        " WHERE d.status = 'pending'"
    )
    row = present(row, "the statement returns a row")
    return row["count"], row["oldest"]


# The worker's side -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """A delivery that is this worker's until the lease ends."""

    id: str
    lease: datetime
    attempt_count: int
    webhook_id: str
    url: str
    # Whether the webhook's last attempt failed.
    failing: bool
    event: EventRow


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a claim. `wait_seconds` counts for those that stay pending."""

    claim: Claim
    status: DeliveryStatus
    wait_seconds: float
    attempt: Attempt
    # The receiver answered that it is gone for good.
    gone: bool


async def exchange(
    tx: Tx,
    results: Sequence[Result],
    *,
    most: int,
    most_failing: int,
    per_webhook: int,
    lease_seconds: float,
) -> list[Claim]:
    """Records these results and claims what is due: one round trip, one transaction of its own.
    `migrations/schema.sql` has the query, and `0010_heartbeat.sql` says how it is fair."""
    rows = await tx.fetch(
        "SELECT * FROM exchange_deliveries($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        [r.claim.id for r in results],
        [r.claim.lease for r in results],
        [r.status for r in results],
        [r.wait_seconds for r in results],
        [msgspec.json.encode([r.attempt]).decode() for r in results],
        most,
        most_failing,
        per_webhook,
        lease_seconds,
    )
    return [
        Claim(
            id=row["id"],
            lease=row["lease"],
            attempt_count=row["attempt_count"],
            webhook_id=row["webhook_id"],
            url=row["url"],
            failing=row["failing"],
            event=EventRow(
                id=row["event_id"],
                type=row["type"],
                agent_id=row["agent_id"],
                data=row["data"],
                created_at=row["created_at"],
                mode=row["mode"],
            ),
        )
        for row in rows
    ]


async def release(tx: Tx, claims: Sequence[Claim]) -> None:
    """Gives back what was not finished, for others to take at once."""
    await tx.execute(
        "UPDATE delivery d SET leased_until = NULL"
        " FROM unnest($1::text[], $2::timestamptz[]) AS c (id, lease)"
        " WHERE d.id = c.id AND d.leased_until = c.lease",
        [c.id for c in claims],
        [c.lease for c in claims],
    )


# A webhook and the URL that was tried: what an old URL answers says nothing about a new one, which
# may have come while the attempt was under way.
Target = tuple[str, str]
# Rows are taken in id order, so that two workers cannot deadlock.
_ENABLED_TARGETS: Final = (
    "SELECT w.id FROM webhook w JOIN unnest($1::text[], $2::text[]) AS t (id, url)"
    " ON w.id = t.id AND w.url = t.url WHERE w.status = 'enabled'"
)
_IN_ORDER: Final = " ORDER BY w.id FOR NO KEY UPDATE OF w"


async def note_failures(tx: Tx, targets: Collection[Target], disable_seconds: int) -> list[str]:
    """Of those that have just failed: returns the webhooks that failed for too long and are
    disabled now."""
    rows = await tx.fetch(
        "UPDATE webhook SET failing_since = coalesce(failing_since, moment()),"
        " status = CASE WHEN failing_since IS NULL THEN status ELSE 'disabled' END,"
        " disabled_reason = CASE WHEN failing_since IS NULL THEN disabled_reason"
        f" ELSE 'failing' END WHERE id IN ({_ENABLED_TARGETS} AND (w.failing_since IS NULL"
        f" OR w.failing_since <= clock_timestamp() - make_interval(secs => $3)){_IN_ORDER})"
        " RETURNING id, status",
        [webhook_id for webhook_id, _ in targets],
        [url for _, url in targets],
        disable_seconds,
    )
    return [row["id"] for row in rows if row["status"] == "disabled"]


async def disable_gone(tx: Tx, targets: Collection[Target]) -> list[str]:
    """Of those that said they are gone for good: returns the webhooks that are disabled now."""
    rows = await tx.fetch(
        "UPDATE webhook SET status = 'disabled', disabled_reason = 'gone'"
        f" WHERE id IN ({_ENABLED_TARGETS}{_IN_ORDER}) RETURNING id",
        [webhook_id for webhook_id, _ in targets],
        [url for _, url in targets],
    )
    return [row["id"] for row in rows]


def _delivery(row: Row) -> DeliveryRow:
    return DeliveryRow(
        id=row["id"],
        webhook_id=row["webhook_id"],
        event_id=row["event_id"],
        event_type=row["event_type"],
        status=row["status"],
        attempts=_decode_attempts(row["attempts"]),
        next_attempt_at=row["next_attempt_at"],
        created_at=row["created_at"],
    )
