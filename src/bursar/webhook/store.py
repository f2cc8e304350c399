"""Queries on webhooks, their secrets and their deliveries."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import msgspec

from bursar.custody.model import SealedSecret
from bursar.db import Row, Tx
from bursar.event.model import EventRow
from bursar.ids import past_ids_end
from bursar.spend import feed
from bursar.sql import DAYS_AGO, Listing, Query, columns, made, made_or_none, sweeping
from bursar.webhook.model import (
    Attempt,
    DeliveryRow,
    DeliveryStatus,
    DisabledReason,
    WebhookRow,
    WebhookStatus,
)

_decode_attempts = msgspec.json.Decoder(list[Attempt]).decode


# Webhooks ----------------------------------------------------------------------------------------

_LOCK_REALM = Query("""
    SELECT
      FROM realm
     WHERE id = :realm_id
       FOR NO KEY UPDATE
""")
_COUNT = Query("SELECT count(*) FROM webhook WHERE realm_id = :realm_id")
_INSERT = Query(f"""
    INSERT INTO webhook (id, realm_id, url, events, created_at)
    VALUES (:webhook_id, :realm_id, :url, :events, moment())
    RETURNING {columns(WebhookRow)}
""")
_GET = f"""
    SELECT {columns(WebhookRow)}
      FROM webhook
     WHERE id = :webhook_id
       AND realm_id = :realm_id
"""
_READ, _LOCK = Query(_GET), Query(f"{_GET} FOR NO KEY UPDATE")
_LIST = Listing(f"""
    SELECT {columns(WebhookRow)}
      FROM webhook
     WHERE realm_id = :realm_id
""")
_UPDATE = Query(f"""
    UPDATE webhook
       SET url = :url,
           events = :events,
           status = :status,
           disabled_reason = :disabled_reason,
           failing_since = NULL
     WHERE id = :webhook_id
    RETURNING {columns(WebhookRow)}
""")
_DELETE = Query("DELETE FROM webhook WHERE id = :webhook_id")


async def count_webhooks(tx: Tx, realm_id: int) -> int:
    """Locks the realm first, so that two requests at once cannot exceed the limit together."""
    await _LOCK_REALM.run(tx, realm_id=realm_id)
    return await _COUNT.value(tx, realm_id=realm_id)


async def insert_webhook(
    tx: Tx, webhook_id: str, realm_id: int, url: str, events: list[str]
) -> WebhookRow:
    row = await _INSERT.one(tx, webhook_id=webhook_id, realm_id=realm_id, url=url, events=events)
    return WebhookRow(**row)


async def get_webhook(
    tx: Tx, realm_id: int, webhook_id: str, *, for_update: bool = False
) -> WebhookRow | None:
    query = _LOCK if for_update else _READ
    row = await query.row(tx, realm_id=realm_id, webhook_id=webhook_id)
    return made_or_none(WebhookRow, row)


async def list_webhooks(
    tx: Tx, realm_id: int, before: tuple[datetime, str] | None, limit: int
) -> list[WebhookRow]:
    rows = await _LIST.rows(tx, before, limit, realm_id=realm_id)
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
    """A changed webhook starts with a clean record: earlier failures are forgotten."""
    row = await _UPDATE.one(
        tx,
        webhook_id=webhook_id,
        url=url,
        events=events,
        status=status,
        disabled_reason=disabled_reason,
    )
    return WebhookRow(**row)


async def delete_webhook(tx: Tx, webhook_id: str) -> None:
    """Its secrets go with it. Its deliveries are never claimed again, and `sweep_deliveries`
    removes them later."""
    await _DELETE.run(tx, webhook_id=webhook_id)


# Secrets -----------------------------------------------------------------------------------------

_NEWEST_SECRET = Query("""
    SELECT coalesce(max(number), 0)
      FROM webhook_secret
     WHERE webhook_id = :webhook_id
""")
_END_SECRET = Query("""
    UPDATE webhook_secret
       SET signs_until = moment() + make_interval(secs => :overlap_seconds)
     WHERE webhook_id = :webhook_id
       AND signs_until IS NULL
""")
_DELETE_OLD_SECRETS = Query("""
    DELETE FROM webhook_secret
     WHERE webhook_id = :webhook_id
       AND (signs_until <= clock_timestamp()
            OR number <= (SELECT max(number)
                            FROM webhook_secret
                           WHERE webhook_id = :webhook_id) - :kept)
""")
_INSERT_SECRET = Query("""
    INSERT INTO webhook_secret (owner, webhook_id, number, master_version, sealed)
    VALUES (:owner, :webhook_id, :number, :master_version, :sealed)
""")
_IN_FORCE: Final = "(s.signs_until IS NULL OR s.signs_until > clock_timestamp())"
_SECRETS_IN_FORCE = Query(f"""
    SELECT s.webhook_id, {columns(SealedSecret, "s")}
      FROM webhook_secret s
     WHERE s.webhook_id = ANY(:webhook_ids::text[]) AND {_IN_FORCE}
     ORDER BY s.webhook_id, s.number DESC
""")


async def newest_secret_number(tx: Tx, webhook_id: str) -> int:
    return await _NEWEST_SECRET.value(tx, webhook_id=webhook_id)


async def retire_secrets(tx: Tx, webhook_id: str, overlap_seconds: int, kept: int) -> None:
    """The current secret keeps signing beside the new one for `overlap_seconds`. Secrets whose time
    is over are deleted, and so are the oldest if more than `kept` remain."""
    await _END_SECRET.run(tx, webhook_id=webhook_id, overlap_seconds=overlap_seconds)
    await _DELETE_OLD_SECRETS.run(tx, webhook_id=webhook_id, kept=kept)


async def insert_secret(tx: Tx, webhook_id: str, number: int, secret: SealedSecret) -> None:
    await _INSERT_SECRET.run(
        tx,
        owner=secret.owner,
        webhook_id=webhook_id,
        number=number,
        master_version=secret.master_version,
        sealed=secret.sealed,
    )


async def secrets_in_force(tx: Tx, webhook_ids: Sequence[str]) -> dict[str, list[SealedSecret]]:
    """By webhook, the newest first."""
    found: dict[str, list[SealedSecret]] = {}
    for webhook_id, *secret in await _SECRETS_IN_FORCE.rows(tx, webhook_ids=webhook_ids):
        found.setdefault(webhook_id, []).append(SealedSecret(*secret))
    return found


# Deliveries --------------------------------------------------------------------------------------

_DELIVERY = f"""
    SELECT {columns(DeliveryRow, "d", but=["event_type"])},
           coalesce(e.type, 'transaction.' || s.verdict) AS event_type
      FROM delivery d
      LEFT JOIN event e ON e.id = d.event_id
      LEFT JOIN spend s ON s.id = 'txn_' || substr(d.event_id, 5)
"""
_GET_DELIVERIES = Query(f"""
    {_DELIVERY}
     WHERE d.id = ANY(:delivery_ids::text[])
     ORDER BY d.id
""")
_LIST_DELIVERIES = Listing(
    f"""
    {_DELIVERY}
     WHERE d.webhook_id = :webhook_id
       AND (:with_keys OR coalesce(e.type, '') NOT LIKE 'key.%')
    """,
    "d.created_at",
    "d.id",
)
_SWEEP = sweeping(
    "delivery",
    "id",
    "webhook_id",
    "status = 'pending' AND NOT EXISTS (SELECT FROM webhook w WHERE w.id = webhook_id)",
)
# By the ids, as events are: an index on the time would also be written by each attempt.
_DELETE_OLD = sweeping("delivery", "id", "id", f"id < :past AND created_at < {DAYS_AGO}")
_BACKLOG = Query("""
    SELECT count(*),
           coalesce(extract(epoch FROM clock_timestamp() - min(d.created_at)), 0)::float8
      FROM delivery d
      JOIN webhook w ON w.id = d.webhook_id AND w.status = 'enabled'
     WHERE d.status = 'pending'
""")


async def get_deliveries(tx: Tx, delivery_ids: Sequence[str]) -> list[DeliveryRow]:
    rows = await _GET_DELIVERIES.rows(tx, delivery_ids=delivery_ids)
    return [_delivery(row) for row in rows]


async def list_deliveries(
    tx: Tx, webhook_id: str, with_keys: bool, before: tuple[datetime, str] | None, limit: int
) -> list[DeliveryRow]:
    """`with_keys`: with those of events about keys."""
    rows = await _LIST_DELIVERIES.rows(
        tx, before, limit, webhook_id=webhook_id, with_keys=with_keys
    )
    return [_delivery(row) for row in rows]


def _delivery(row: Row) -> DeliveryRow:
    return made(DeliveryRow, row, attempts=_decode_attempts(row["attempts"]))


async def sweep_deliveries(tx: Tx, older_than_days: int, limit: int) -> int:
    """Removes pending deliveries to webhooks that were deleted, and those whose events can no
    longer be read; returns how many."""
    swept = await _SWEEP.count(tx, limit=limit)
    past = past_ids_end("dlv", older_than_days)
    return swept + await _DELETE_OLD.count(tx, past=past, days=older_than_days, limit=limit)


async def backlog(tx: Tx) -> tuple[int, float]:
    """(deliveries that wait or are under way, age of the oldest in seconds)."""
    count, oldest = await _BACKLOG.one(tx)
    return count, oldest


# The worker's side -------------------------------------------------------------------------------


class Claim(msgspec.Struct, frozen=True):
    """A delivery that belongs to this worker until the lease ends."""

    id: str
    lease: datetime
    attempt_count: int
    webhook_id: str
    url: str
    # Whether the last attempt to this webhook failed.
    failing: bool
    # Those in force, the newest first.
    secrets: list[SealedSecret]
    event: EventRow


class Result(msgspec.Struct, frozen=True):
    """The outcome of a claim. A delivery that stays pending is due again after `wait_seconds`."""

    claim: Claim
    status: DeliveryStatus
    wait_seconds: float
    attempt: Attempt
    # Whether the receiver answered 410: it is gone for good.
    gone: bool


# A webhook and the URL that was tried. The answer of an old URL says nothing about a new one, which
# may have been set while the attempt was under way.
Tried = tuple[str, str]

# The claim's own columns come first, then its secrets; those of its event follow.
_CLAIM_COLUMNS = len(Claim.__annotations__) - 2
# What is under way is counted by an index that a claim enters and a result leaves. A bitmap scan,
# which the planner likes as long as it knows nothing of the table, never marks the entries that are
# dead: each round would read again what all rounds since the last vacuum claimed. The setting is
# handed on, as nothing, so that it comes first.
_EXCHANGE = Query(f"""
    SELECT {columns(Claim, but=["secrets", "event"])},
           ARRAY(SELECT ROW({columns(SealedSecret, "s")})
                   FROM webhook_secret s
                  WHERE s.webhook_id = claimed.webhook_id AND {_IN_FORCE}
                  ORDER BY s.number DESC) AS secrets,
           event_id, {columns(EventRow, but=["id"])}
      FROM set_config('enable_bitmapscan', 'off', true) AS bitmaps
     CROSS JOIN LATERAL exchange_deliveries(
                          :ids, :leases, :statuses, :waits, :attempts, :most, :most_failing,
                          :per_webhook, :lease_seconds + 0 * length(bitmaps)) AS claimed
""")
_RELEASE = Query("""
    UPDATE delivery d
       SET leased_until = NULL
      FROM unnest(:ids::text[], :leases::timestamptz[]) AS c (id, lease)
     WHERE d.id = c.id
       AND d.leased_until = c.lease
""")
# What nobody can tell any more would be claimed again and again, before what is due after it.
_GIVE_UP = Query("""
    UPDATE delivery
       SET status = 'failed', next_attempt_at = NULL, leased_until = NULL
     WHERE id = ANY(:ids::text[]) AND status = 'pending'
""")
_ENABLED = """
    SELECT w.id
      FROM webhook w
      JOIN unnest(:ids::text[], :urls::text[]) AS t (id, url) ON w.id = t.id AND w.url = t.url
     WHERE w.status = 'enabled'
"""
# Rows are locked in id order, so that two workers cannot deadlock.
_IN_ORDER = "ORDER BY w.id FOR NO KEY UPDATE OF w"
_NOTE_FAILURES = Query(f"""
    UPDATE webhook
       SET failing_since = coalesce(failing_since, moment()),
           status = CASE WHEN failing_since IS NULL THEN status ELSE 'disabled' END,
           disabled_reason = CASE WHEN failing_since IS NULL THEN disabled_reason ELSE 'failing' END
     WHERE id IN (
           {_ENABLED}
             AND (w.failing_since IS NULL
                  OR w.failing_since <= clock_timestamp() - make_interval(secs => :disable_seconds))
           {_IN_ORDER})
    RETURNING id, status
""")
_DISABLE_GONE = Query(f"""
    UPDATE webhook
       SET status = 'disabled',
           disabled_reason = 'gone'
     WHERE id IN ({_ENABLED} {_IN_ORDER})
    RETURNING id
""")


async def exchange(
    tx: Tx,
    results: Sequence[Result],
    *,
    most: int,
    most_failing: int,
    per_webhook: int,
    lease_seconds: float,
) -> list[Claim]:
    """Records these results and claims what is due, in one round trip and one transaction. The
    function in `migrations/0001_initial.sql` explains how room is shared fairly."""
    rows = await _EXCHANGE.rows(
        tx,
        ids=[r.claim.id for r in results],
        leases=[r.claim.lease for r in results],
        statuses=[r.status for r in results],
        waits=[r.wait_seconds for r in results],
        attempts=[msgspec.json.encode([r.attempt]).decode() for r in results],
        most=most,
        most_failing=most_failing,
        per_webhook=per_webhook,
        lease_seconds=lease_seconds,
    )
    told = await feed.told_by_spends(tx, [row["event_id"] for row in rows if row["type"] is None])
    signing = {
        row["webhook_id"]: [SealedSecret(*secret) for secret in row["secrets"]] for row in rows
    }
    # A webhook that was made while the statement waited for its turn: the claim sees it, what
    # surrounds the claim does not.
    new = [webhook_id for webhook_id, found in signing.items() if not found]
    if new:
        signing |= await secrets_in_force(tx, new)
    claims: list[Claim] = []
    untold: list[str] = []
    for row in rows:
        event = (
            told.get(row["event_id"])
            if row["type"] is None
            else EventRow(*row[_CLAIM_COLUMNS + 1 :])
        )
        if event is not None:
            secrets = signing[row["webhook_id"]]
            claims.append(Claim(*row[:_CLAIM_COLUMNS], secrets=secrets, event=event))
        else:  # too old to be told: sent again just before its time was over
            untold.append(row["id"])
    if untold:
        await _GIVE_UP.run(tx, ids=untold)
    return claims


async def release(tx: Tx, claims: Sequence[Claim]) -> None:
    """Gives back deliveries that were not finished, for other workers to take at once."""
    await _RELEASE.run(tx, ids=[c.id for c in claims], leases=[c.lease for c in claims])


async def note_failures(tx: Tx, tried: Collection[Tried], disable_seconds: int) -> list[str]:
    """Marks webhooks whose attempts have just failed, and disables those that have been failing
    for too long; returns the disabled ones."""
    rows = await _NOTE_FAILURES.rows(tx, **_of(tried), disable_seconds=disable_seconds)
    return [row["id"] for row in rows if row["status"] == "disabled"]


async def disable_gone(tx: Tx, tried: Collection[Tried]) -> list[str]:
    """Disables webhooks whose receivers said they are gone for good; returns those it disabled."""
    return [row["id"] for row in await _DISABLE_GONE.rows(tx, **_of(tried))]


def _of(tried: Collection[Tried]) -> dict[str, list[str]]:
    return {"ids": [id_ for id_, _ in tried], "urls": [url for _, url in tried]}
