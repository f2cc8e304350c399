"""Queries on spends and on what they use of a day's cap."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, NamedTuple

import msgspec

from bursar.access.model import IdempotencyKey
from bursar.chain.port import Paid
from bursar.db import Row, Tx, numbers, words
from bursar.policy.engine import Decision, RejectCode
from bursar.spend.model import SpendRow, SpendStatus

_COLUMNS = (
    "id, realm_id, agent_id, amount_micros, recipient, pay_to, status, reject_code, memo,"
    " metadata, policy_version, decision, network, created_by, created_at, expires_at, decided_by,"
    " decided_at, decision_reason, signature, block_time, fee_lamports, rent_lamports,"
    " settled_at, updated_at, decision_number, network_lamports"
)
_QUALIFIED = ", ".join(f"spend.{name.strip()}" for name in _COLUMNS.split(","))
# The constraint that keeps an idempotency key from being used twice.
KEY_CONSTRAINT: Final = "idempotency_pkey"
_decode_decision = msgspec.json.Decoder(Decision).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


class Decided(NamedTuple):
    """A spend that was decided, with all that is written about it."""

    spend: SpendRow
    # The wallet's counters after it; `number` is that of its transfer, if it has one.
    number: int
    credits_posted: int
    debits_posted: int
    debits_pending: int
    event_id: str
    event_type: str
    # What the event tells, which is also the answer.
    data: str
    key: IdempotencyKey | None


class Touched(NamedTuple):
    """A wallet as a batch of decisions leaves it."""

    agent_id: str
    debits_pending: int
    transfers: int
    decisions: int
    # What the batch added to the use of the day, and the cap that it was decided under.
    added_micros: int
    cap_micros: int
    # The same of what payments may cost in SOL.
    added_lamports: int
    network_cap_lamports: int


class TotalDelta(NamedTuple):
    """What a batch adds to one row of the totals of its day."""

    realm_id: int
    agent_id: str
    recipient: str
    shard: int
    spends: int
    rejected: int


async def write_decided(
    tx: Tx,
    at: datetime,
    expires_at: datetime,
    decided: Sequence[Decided],
    touched: Sequence[Touched],
    totals: Sequence[TotalDelta],
) -> None:
    """Everything a batch decided, in one statement: each further one would cost as much time as
    five spends. Those that wait for approval expire at `expires_at`.

    Raises UniqueViolationError when an idempotency key was used before.
    """
    spends = [d.spend for d in decided]
    keys = [d.key for d in decided]
    await tx.execute(
        _WRITE_DECIDED,
        at,
        words(s.id for s in spends),
        numbers(s.realm_id for s in spends),
        words(s.agent_id for s in spends),
        numbers(s.amount_micros for s in spends),
        words(s.recipient for s in spends),
        words(s.pay_to or "" for s in spends),
        words(s.status for s in spends),
        words(s.reject_code or "" for s in spends),
        [s.memo for s in spends],
        [_encode(s.metadata).decode() if s.metadata else "{}" for s in spends],
        numbers(s.policy_version for s in spends),
        [_encode(s.decision).decode() for s in spends],
        words(s.network for s in spends),
        words(s.created_by for s in spends),
        expires_at,
        numbers(s.decision_number for s in spends),
        numbers(d.number for d in decided),
        numbers(d.credits_posted for d in decided),
        numbers(d.debits_posted for d in decided),
        numbers(d.debits_pending for d in decided),
        words(d.event_id for d in decided),
        words(d.event_type for d in decided),
        [d.data for d in decided],
        words("" if key is None else key.route for key in keys),
        words("" if key is None else key.key for key in keys),
        words("" if key is None else key.fingerprint.hex() for key in keys),
        words(t.agent_id for t in touched),
        numbers(t.debits_pending for t in touched),
        numbers(t.transfers for t in touched),
        numbers(t.decisions for t in touched),
        numbers(t.added_micros for t in touched),
        numbers(t.cap_micros for t in touched),
        numbers(t.realm_id for t in totals),
        words(t.agent_id for t in totals),
        words(t.recipient for t in totals),
        numbers(t.shard for t in totals),
        numbers(t.spends for t in totals),
        numbers(t.rejected for t in totals),
        numbers(s.network_lamports for s in spends),
        numbers(t.added_lamports for t in touched),
        numbers(t.network_cap_lamports for t in touched),
    )


# The order of the totals is the caller's; the rest is under the wallets' locks.
_WRITE_DECIDED: Final = """
WITH decided AS (
  SELECT * FROM unnest(
    $2::text::text[], $3::text::int[], $4::text::text[], $5::text::bigint[], $6::text::text[],
    $7::text::text[], $8::text::text[], $9::text::text[], $10::text[], $11::text[],
    $12::text::int[], $13::text[], $14::text::text[], $15::text::text[], $17::text::bigint[],
    $18::text::bigint[], $19::text::bigint[], $20::text::bigint[], $21::text::bigint[],
    $22::text::text[], $23::text::text[], $24::text[], $25::text::text[], $26::text::text[],
    $27::text::text[], $40::text::bigint[])
  AS d (id, realm_id, agent_id, amount_micros, recipient, pay_to, status, reject_code, memo,
        metadata, policy_version, decision, network, created_by, decision_number, number,
        credits_posted, debits_posted, debits_pending, event_id, event_type, data, route,
        key, fingerprint, network_lamports)
), touched AS (
  SELECT * FROM unnest(
    $28::text::text[], $29::text::bigint[], $30::text::bigint[], $31::text::bigint[],
    $32::text::bigint[], $33::text::bigint[], $41::text::bigint[], $42::text::bigint[])
  AS t (agent_id, debits_pending, transfers, decisions, added_micros, cap_micros, added_lamports,
        network_cap_lamports)
), spends AS (
  INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to, status, reject_code,
                     memo, metadata, policy_version, decision, network, created_by, created_at,
                     expires_at, updated_at, decision_number, network_lamports)
  SELECT id, realm_id, agent_id, amount_micros, recipient, nullif(pay_to, ''), status,
         nullif(reject_code, ''), memo, metadata, policy_version, decision, network, created_by,
         $1, CASE WHEN status = 'pending' THEN $16::timestamptz END, $1, decision_number,
         network_lamports
    FROM decided
), transfers AS (
  INSERT INTO transfer (agent_id, number, kind, payment_id, amount_micros, credits_posted_after,
                        debits_posted_after, debits_pending_after, created_at)
  SELECT agent_id, number, 'reserve', id, amount_micros, credits_posted, debits_posted,
         debits_pending, $1
    FROM decided WHERE status <> 'rejected'
), events AS (
  INSERT INTO event (id, realm_id, type, agent_id, data, created_at)
  SELECT event_id, realm_id, event_type, agent_id, data, $1 FROM decided
), answers AS (
  INSERT INTO idempotency (realm_id, route, agent_id, key, fingerprint, status, event_id)
  SELECT realm_id, route, agent_id, key, decode(fingerprint, 'hex'), 201, event_id FROM decided
   WHERE key <> ''
), wallets AS (
  UPDATE wallet w SET debits_pending = t.debits_pending, transfers = t.transfers,
                      decisions = t.decisions
    FROM touched t WHERE w.agent_id = t.agent_id
), used AS (
  INSERT INTO usage AS u (agent_id, window_kind, window_start, spent_micros, cap_micros,
                          network_lamports, network_cap_lamports)
  SELECT agent_id, 'day', ($1 AT TIME ZONE 'UTC')::date, added_micros, cap_micros, added_lamports,
         network_cap_lamports FROM touched WHERE added_micros > 0
  ON CONFLICT (agent_id, window_kind, window_start) DO UPDATE
  SET spent_micros = u.spent_micros + excluded.spent_micros, cap_micros = excluded.cap_micros,
      network_lamports = u.network_lamports + excluded.network_lamports,
      network_cap_lamports = excluded.network_cap_lamports
)
INSERT INTO spend_total AS t (realm_id, agent_id, day, recipient, shard, spend_count,
                              rejected_count, settled_micros)
SELECT d.realm_id, d.agent_id, ($1 AT TIME ZONE 'UTC')::date, d.recipient, d.shard, d.spends,
       d.rejected, 0
  FROM unnest($34::text::int[], $35::text::text[], $36::text::text[], $37::text::smallint[],
              $38::text::bigint[], $39::text::bigint[])
    AS d (realm_id, agent_id, recipient, shard, spends, rejected)
ON CONFLICT (realm_id, agent_id, day, recipient, shard) DO UPDATE
SET spend_count = t.spend_count + excluded.spend_count,
    rejected_count = t.rejected_count + excluded.rejected_count
"""


async def get_spend(tx: Tx, realm_id: int, spend_id: str) -> SpendRow | None:
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS} FROM spend WHERE id = $2 AND realm_id = $1", realm_id, spend_id
    )
    return None if row is None else spend_of(row)


async def list_spends(
    tx: Tx, filters: "SpendFilter", before: tuple[datetime, str] | None, limit: int
) -> list[SpendRow]:
    """Newest first."""
    where, arguments = _where(filters, before)
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM spend WHERE {where} ORDER BY created_at DESC, id DESC"
        f" LIMIT {int(limit)}",
        *arguments,
    )
    return [spend_of(row) for row in rows]


async def pending_of_agent(tx: Tx, agent_id: str) -> list[SpendRow]:
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM spend WHERE agent_id = $1 AND status = 'pending' ORDER BY id",
        agent_id,
    )
    return [spend_of(row) for row in rows]


class Expired(msgspec.Struct, frozen=True):
    """Pending spends of one wallet whose time is over."""

    agent_id: str
    realm_id: int
    set_aside: bool
    spend_ids: list[str]


async def expired(tx: Tx, limit: int) -> list[Expired]:
    """The oldest, by wallet."""
    rows = await tx.fetch(
        "SELECT e.agent_id, e.realm_id, array_agg(e.id) AS spend_ids, e.set_aside"
        " FROM (SELECT s.agent_id, s.realm_id, s.id, q.agent_id IS NOT NULL AS set_aside"
        " FROM spend s LEFT JOIN quarantine q ON q.agent_id = s.agent_id AND q.duty = 'expire'"
        " WHERE s.status = 'pending' AND s.expires_at <= moment()"
        " AND (q.next_try_at IS NULL OR q.next_try_at <= clock_timestamp())"
        " ORDER BY s.expires_at LIMIT $1) e"
        " GROUP BY e.agent_id, e.realm_id, e.set_aside ORDER BY e.agent_id",
        limit,
    )
    return [Expired(**dict(row.items())) for row in rows]


async def move_spends(
    tx: Tx,
    spend_ids: Sequence[str],
    *,
    expected: SpendStatus,
    status: SpendStatus,
    reject_code: RejectCode | None,
    decided_by: str | None,
    decision_reason: str | None,
    at: datetime,
) -> list[SpendRow]:
    """Moves those that are still in the expected state; whoever is missing was not.

    With `decided_by` None nobody decides: what is known of an earlier decision stays.
    """
    rows = await tx.fetch(
        "UPDATE spend SET status = $3, reject_code = $4, decided_by = coalesce($5, decided_by),"
        " decided_at = CASE WHEN $5 IS NULL THEN decided_at ELSE $7 END,"
        " decision_reason = CASE WHEN $5 IS NULL THEN decision_reason ELSE $6 END,"
        " updated_at = $7 WHERE id = ANY($1) AND status = $2"
        f" RETURNING {_COLUMNS}",
        spend_ids,
        expected,
        status,
        reject_code,
        decided_by,
        decision_reason,
        at,
    )
    return [spend_of(row) for row in rows]


async def settle_spends(tx: Tx, paid: Sequence[Paid], at: datetime) -> list[tuple[SpendRow, int]]:
    """Those that were approved until now, each with what it held of the network budget. What it
    cost, with the attempts that failed before, takes the place of that."""
    ids, signatures, times, fees, rents = zip(*paid, strict=True)
    rows = await tx.fetch(
        "UPDATE spend SET status = 'settled', signature = l.signature, block_time = l.block_time,"
        " fee_lamports = l.fee, rent_lamports = l.rent, settled_at = $6, updated_at = $6,"
        " network_lamports = l.fee + l.rent + coalesce(p.cost_lamports, 0)"
        " FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])"
        " AS l (spend_id, signature, block_time, fee, rent)"
        " JOIN spend b ON b.id = l.spend_id LEFT JOIN payment p ON p.id = l.spend_id"
        " WHERE spend.id = l.spend_id AND spend.status = 'approved'"
        f" RETURNING {_QUALIFIED}, b.network_lamports AS held_lamports",
        ids,
        signatures,
        times,
        fees,
        rents,
        at,
    )
    return [(spend_of(row), row["held_lamports"]) for row in rows]


async def finished(tx: Tx, spend_ids: Sequence[str]) -> list[SpendRow]:
    """Those that reached a terminal state."""
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM spend WHERE id = ANY($1) AND status IN ('settled', 'rejected')",
        spend_ids,
    )
    return [spend_of(row) for row in rows]


async def release_usage(tx: Tx, deltas: Mapping[tuple[str, date], int]) -> None:
    """Gives amounts back to the days they were counted on."""
    keys = sorted(deltas)
    await tx.execute(
        "UPDATE usage u SET spent_micros = u.spent_micros - d.micros"
        " FROM unnest($1::text[], $2::date[], $3::bigint[]) AS d (agent_id, day, micros)"
        " WHERE u.agent_id = d.agent_id AND u.window_kind = 'day' AND u.window_start = d.day",
        [agent_id for agent_id, _ in keys],
        [day for _, day in keys],
        [deltas[key] for key in keys],
    )


async def used_on(tx: Tx, agent_id: str, day: date) -> int:
    spent = await tx.fetchval(
        "SELECT spent_micros FROM usage"
        " WHERE agent_id = $1 AND window_kind = 'day' AND window_start = $2",
        agent_id,
        day,
    )
    return spent or 0


class SpendFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list, the statistics or an export is narrowed to."""

    realm_id: int
    agent_id: str | None = None
    status: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    settled_from: datetime | None = None
    settled_to: datetime | None = None
    recipient: str | None = None


def _where(filters: SpendFilter, before: tuple[datetime, str] | None) -> tuple[str, list[Any]]:
    conditions = [
        ("realm_id = {}", filters.realm_id),
        ("agent_id = {}", filters.agent_id),
        ("status = {}", filters.status),
        ("created_at >= {}", filters.created_from),
        ("created_at < {}", filters.created_to),
        ("settled_at >= {}", filters.settled_from),
        ("settled_at < {}", filters.settled_to),
        ("recipient = {}", filters.recipient),
    ]
    given = [(text, value) for text, value in conditions if value is not None]
    where = [text.format(f"${number}") for number, (text, _) in enumerate(given, 1)]
    arguments: list[Any] = [value for _, value in given]
    if before is not None:
        where.append(
            f"(created_at, id) < (${len(arguments) + 1}::timestamptz, ${len(arguments) + 2}::text)"
        )
        arguments += before
    return " AND ".join(where), arguments


def spend_of(row: Row) -> SpendRow:
    code = row["reject_code"]
    return SpendRow(
        id=row["id"],
        realm_id=row["realm_id"],
        agent_id=row["agent_id"],
        amount_micros=row["amount_micros"],
        recipient=row["recipient"],
        pay_to=row["pay_to"],
        status=row["status"],
        reject_code=None if code is None else RejectCode(code),
        memo=row["memo"],
        metadata=_decode_metadata(row["metadata"]),
        policy_version=row["policy_version"],
        decision=_decode_decision(row["decision"]),
        network=row["network"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        decided_by=row["decided_by"],
        decided_at=row["decided_at"],
        decision_reason=row["decision_reason"],
        signature=row["signature"],
        block_time=row["block_time"],
        fee_lamports=row["fee_lamports"],
        rent_lamports=row["rent_lamports"],
        settled_at=row["settled_at"],
        updated_at=row["updated_at"],
        decision_number=row["decision_number"],
        network_lamports=row["network_lamports"],
    )
