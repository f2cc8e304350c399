"""Queries on spends and on what they use of a day's cap."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Final, NamedTuple

import msgspec

from bursar.access.model import IdempotencyKey
from bursar.chain.port import Paid
from bursar.db import Row, Tx, numbers, words
from bursar.policy.engine import Decision, RejectCode
from bursar.spend.model import SpendRow, SpendStatus
from bursar.sql import Listing, Query, columns, made

# The constraint that keeps an idempotency key from being used twice.
KEY_CONSTRAINT: Final = "idempotency_pkey"
_decode_decision = msgspec.json.Decoder(Decision).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode

_GET = Query(f"""
    SELECT {columns(SpendRow)}
      FROM spend
     WHERE id = :spend_id AND realm_id = :realm_id
""")
# A filter for each field of `SpendFilter`.
_LIST = Listing(f"""
    SELECT {columns(SpendRow)}
      FROM spend
     WHERE realm_id = :realm_id
       AND agent_id = :agent_id
       AND status = :status
       AND created_at >= :created_from
       AND created_at < :created_to
       AND settled_at >= :settled_from
       AND settled_at < :settled_to
       AND recipient = :recipient
""")
_PENDING = Query(f"""
    SELECT {columns(SpendRow)}
      FROM spend
     WHERE agent_id = :agent_id AND status = 'pending'
     ORDER BY id
""")
_EXPIRED = Query("""
    SELECT e.agent_id, e.realm_id, e.set_aside, array_agg(e.id) AS spend_ids
      FROM (SELECT s.agent_id, s.realm_id, s.id, q.agent_id IS NOT NULL AS set_aside
              FROM spend s
              LEFT JOIN quarantine q ON q.agent_id = s.agent_id AND q.duty = 'expire'
             WHERE s.status = 'pending' AND s.expires_at <= moment()
               AND (q.next_try_at IS NULL OR q.next_try_at <= clock_timestamp())
             ORDER BY s.expires_at
             LIMIT :limit) e
     GROUP BY e.agent_id, e.realm_id, e.set_aside
     ORDER BY e.agent_id
""")
_MOVE = Query(f"""
    UPDATE spend
       SET status = :status, reject_code = :reject_code,
           decided_by = coalesce(:decided_by, decided_by),
           decided_at = CASE WHEN :decided_by IS NULL THEN decided_at ELSE :at END,
           decision_reason
             = CASE WHEN :decided_by IS NULL THEN decision_reason ELSE :decision_reason END,
           updated_at = :at
     WHERE id = ANY(:spend_ids) AND status = :expected
    RETURNING {columns(SpendRow)}
""")
_SETTLE = Query(f"""
    UPDATE spend
       SET status = 'settled', signature = l.signature, block_time = l.block_time,
           fee_lamports = l.fee, rent_lamports = l.rent, settled_at = :at, updated_at = :at,
           network_lamports = l.fee + l.rent + coalesce(p.cost_lamports, 0)
      FROM unnest(:spend_ids::text[], :signatures::text[], :block_times::bigint[],
                  :fees::bigint[], :rents::bigint[])
           AS l (spend_id, signature, block_time, fee, rent)
      JOIN spend before ON before.id = l.spend_id
      LEFT JOIN payment p ON p.id = l.spend_id
     WHERE spend.id = l.spend_id AND spend.status = 'approved'
    RETURNING {columns(SpendRow, "spend")}, before.network_lamports AS reserved_lamports
""")
_FINISHED = Query(f"""
    SELECT {columns(SpendRow)}
      FROM spend
     WHERE id = ANY(:spend_ids) AND status IN ('settled', 'rejected')
""")
_RELEASE_USAGE = Query("""
    UPDATE usage u
       SET spent_micros = u.spent_micros - d.micros
      FROM unnest(:agent_ids::text[], :days::date[], :micros::bigint[]) AS d (agent_id, day, micros)
     WHERE u.agent_id = d.agent_id AND u.window_kind = 'day' AND u.window_start = d.day
""")
_USED = Query("""
    SELECT spent_micros
      FROM usage
     WHERE agent_id = :agent_id AND window_kind = 'day' AND window_start = :day
""")


def _table(name: str, **casts: str) -> str:
    """Arrays as a table: the column `id` of `spends` is the parameter `:spends_id`."""
    arrays = ", ".join(f":{name}_{column}::{cast}" for column, cast in casts.items())
    return f"unnest({arrays}) AS {name} ({', '.join(casts)})"


# As `numbers` and `words` write them.
_INTS, _BIGINTS, _SMALLINTS, _WORDS = (
    f"text::{kind}[]" for kind in ("int", "bigint", "smallint", "text")
)
_DECIDED = _table(
    "decided",
    id=_WORDS,
    realm_id=_INTS,
    agent_id=_WORDS,
    amount_micros=_BIGINTS,
    recipient=_WORDS,
    pay_to=_WORDS,
    status=_WORDS,
    reject_code=_WORDS,
    memo="text[]",
    metadata="text[]",
    policy_version=_INTS,
    decision="text[]",
    network=_WORDS,
    created_by=_WORDS,
    decision_number=_BIGINTS,
    network_lamports=_BIGINTS,
    transfer_number=_BIGINTS,
    credits_posted=_BIGINTS,
    debits_posted=_BIGINTS,
    debits_pending=_BIGINTS,
    event_id=_WORDS,
    event_type=_WORDS,
    data="text[]",
    route=_WORDS,
    key=_WORDS,
    fingerprint=_WORDS,
)
_TOUCHED = _table(
    "touched",
    agent_id=_WORDS,
    debits_pending=_BIGINTS,
    transfers=_BIGINTS,
    decisions=_BIGINTS,
    added_micros=_BIGINTS,
    cap_micros=_BIGINTS,
    added_lamports=_BIGINTS,
    network_cap_lamports=_BIGINTS,
)
_TOTALS = _table(
    "totals",
    realm_id=_INTS,
    agent_id=_WORDS,
    recipient=_WORDS,
    shard=_SMALLINTS,
    spends=_BIGINTS,
    rejected=_BIGINTS,
)
# Everything but the totals is under the wallets' locks; the order of the totals is the caller's.
_WRITE_DECIDED = Query(f"""
    WITH decided AS (
      SELECT * FROM {_DECIDED}
    ), touched AS (
      SELECT * FROM {_TOUCHED}
    ), spends AS (
      INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to,
                         status, reject_code, memo, metadata, policy_version, decision,
                         network, created_by, created_at, updated_at,
                         expires_at,
                         decision_number, network_lamports)
      SELECT id, realm_id, agent_id, amount_micros, recipient, nullif(pay_to, ''),
             status, nullif(reject_code, ''), memo, metadata, policy_version, decision,
             network, created_by, :at, :at,
             CASE WHEN status = 'pending' THEN :expires_at::timestamptz END,
             decision_number, network_lamports
        FROM decided
    ), transfers AS (
      INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros,
                            credits_posted_after, debits_posted_after, debits_pending_after,
                            created_at)
      SELECT agent_id, transfer_number, 'reserve', id, amount_micros,
             credits_posted, debits_posted, debits_pending,
             :at
        FROM decided
       WHERE status <> 'rejected'
    ), events AS (
      INSERT INTO event (id, realm_id, type, agent_id, data, created_at)
      SELECT event_id, realm_id, event_type, agent_id, data, :at
        FROM decided
    ), answers AS (
      INSERT INTO idempotency (realm_id, route, agent_id, key, fingerprint, status, event_id)
      SELECT realm_id, route, agent_id, key, decode(fingerprint, 'hex'), 201, event_id
        FROM decided
       WHERE key <> ''
    ), wallets AS (
      UPDATE wallet w
         SET debits_pending = t.debits_pending, transfers = t.transfers, decisions = t.decisions
        FROM touched t
       WHERE w.agent_id = t.agent_id
    ), used AS (
      INSERT INTO usage AS u (agent_id, window_kind, window_start,
                              spent_micros, cap_micros, network_lamports, network_cap_lamports)
      SELECT agent_id, 'day', (:at AT TIME ZONE 'UTC')::date,
             added_micros, cap_micros, added_lamports, network_cap_lamports
        FROM touched
       WHERE added_micros > 0
          ON CONFLICT (agent_id, window_kind, window_start) DO UPDATE
         SET spent_micros = u.spent_micros + excluded.spent_micros,
             cap_micros = excluded.cap_micros,
             network_lamports = u.network_lamports + excluded.network_lamports,
             network_cap_lamports = excluded.network_cap_lamports
    )
    INSERT INTO spend_total AS t (realm_id, agent_id, day, recipient, shard,
                                  spend_count, rejected_count, settled_micros)
    SELECT realm_id, agent_id, (:at AT TIME ZONE 'UTC')::date, recipient, shard,
           spends, rejected, 0
      FROM {_TOTALS}
        ON CONFLICT (realm_id, agent_id, day, recipient, shard) DO UPDATE
       SET spend_count = t.spend_count + excluded.spend_count,
           rejected_count = t.rejected_count + excluded.rejected_count
""")


class Decided(NamedTuple):
    """A spend that was decided, with everything that is written about it."""

    spend: SpendRow
    # The wallet's counters after it; the number is that of its transfer, if it has one.
    transfer_number: int
    credits_posted: int
    debits_posted: int
    debits_pending: int
    event_id: str
    event_type: str
    # What the event carries, which is also the answer.
    data: str
    key: IdempotencyKey | None


class Touched(NamedTuple):
    """A wallet as a batch of decisions leaves it."""

    agent_id: str
    debits_pending: int
    transfers: int
    decisions: int
    # What the batch added to the use of the day, and the cap under which it was decided.
    added_micros: int
    cap_micros: int
    # The same for what payments may cost in SOL.
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


class Expired(msgspec.Struct, frozen=True):
    """Pending spends of one wallet whose time is over."""

    agent_id: str
    realm_id: int
    set_aside: bool
    spend_ids: list[str]


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


async def write_decided(
    tx: Tx,
    at: datetime,
    expires_at: datetime,
    decided: Sequence[Decided],
    touched: Sequence[Touched],
    totals: Sequence[TotalDelta],
) -> None:
    """Everything that a batch decided, in one statement: each further one would cost as much time
    as five spends. Spends that wait for approval expire at `expires_at`.

    Raises UniqueViolationError when an idempotency key was used before.
    """
    spends = [d.spend for d in decided]
    keys = [d.key for d in decided]
    await _WRITE_DECIDED.run(
        tx,
        at=at,
        expires_at=expires_at,
        decided_id=words(s.id for s in spends),
        decided_realm_id=numbers(s.realm_id for s in spends),
        decided_agent_id=words(s.agent_id for s in spends),
        decided_amount_micros=numbers(s.amount_micros for s in spends),
        decided_recipient=words(s.recipient for s in spends),
        decided_pay_to=words(s.pay_to or "" for s in spends),
        decided_status=words(s.status for s in spends),
        decided_reject_code=words(s.reject_code or "" for s in spends),
        decided_memo=[s.memo for s in spends],
        decided_metadata=[_encode(s.metadata).decode() if s.metadata else "{}" for s in spends],
        decided_policy_version=numbers(s.policy_version for s in spends),
        decided_decision=[_encode(s.decision).decode() for s in spends],
        decided_network=words(s.network for s in spends),
        decided_created_by=words(s.created_by for s in spends),
        decided_decision_number=numbers(s.decision_number for s in spends),
        decided_network_lamports=numbers(s.network_lamports for s in spends),
        decided_transfer_number=numbers(d.transfer_number for d in decided),
        decided_credits_posted=numbers(d.credits_posted for d in decided),
        decided_debits_posted=numbers(d.debits_posted for d in decided),
        decided_debits_pending=numbers(d.debits_pending for d in decided),
        decided_event_id=words(d.event_id for d in decided),
        decided_event_type=words(d.event_type for d in decided),
        decided_data=[d.data for d in decided],
        decided_route=words("" if key is None else key.route for key in keys),
        decided_key=words("" if key is None else key.key for key in keys),
        decided_fingerprint=words("" if key is None else key.fingerprint.hex() for key in keys),
        touched_agent_id=words(t.agent_id for t in touched),
        touched_debits_pending=numbers(t.debits_pending for t in touched),
        touched_transfers=numbers(t.transfers for t in touched),
        touched_decisions=numbers(t.decisions for t in touched),
        touched_added_micros=numbers(t.added_micros for t in touched),
        touched_cap_micros=numbers(t.cap_micros for t in touched),
        touched_added_lamports=numbers(t.added_lamports for t in touched),
        touched_network_cap_lamports=numbers(t.network_cap_lamports for t in touched),
        totals_realm_id=numbers(t.realm_id for t in totals),
        totals_agent_id=words(t.agent_id for t in totals),
        totals_recipient=words(t.recipient for t in totals),
        totals_shard=numbers(t.shard for t in totals),
        totals_spends=numbers(t.spends for t in totals),
        totals_rejected=numbers(t.rejected for t in totals),
    )


async def get_spend(tx: Tx, realm_id: int, spend_id: str) -> SpendRow | None:
    row = await _GET.row(tx, realm_id=realm_id, spend_id=spend_id)
    return None if row is None else spend_of(row)


async def list_spends(
    tx: Tx, filters: SpendFilter, before: tuple[datetime, str] | None, limit: int
) -> list[SpendRow]:
    """Newest first."""
    rows = await _LIST.rows(tx, before, limit, **msgspec.structs.asdict(filters))
    return [spend_of(row) for row in rows]


async def pending_of_agent(tx: Tx, agent_id: str) -> list[SpendRow]:
    return [spend_of(row) for row in await _PENDING.rows(tx, agent_id=agent_id)]


async def expired(tx: Tx, limit: int) -> list[Expired]:
    """The oldest, by wallet."""
    return [made(Expired, row) for row in await _EXPIRED.rows(tx, limit=limit)]


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
    """Moves those that are still in the expected state, and returns them.

    `decided_by` is None where no person decides: what is known of an earlier decision stays.
    """
    rows = await _MOVE.rows(
        tx,
        spend_ids=spend_ids,
        expected=expected,
        status=status,
        reject_code=reject_code,
        decided_by=decided_by,
        decision_reason=decision_reason,
        at=at,
    )
    return [spend_of(row) for row in rows]


async def settle_spends(tx: Tx, paid: Sequence[Paid], at: datetime) -> list[tuple[SpendRow, int]]:
    """Those that were approved until now, each with what was reserved for it of the network
    budget. What it cost, with the attempts that failed before, takes the place of that."""
    spend_ids, signatures, block_times, fees, rents = zip(*paid, strict=True)
    rows = await _SETTLE.rows(
        tx,
        spend_ids=spend_ids,
        signatures=signatures,
        block_times=block_times,
        fees=fees,
        rents=rents,
        at=at,
    )
    return [(spend_of(row), row["reserved_lamports"]) for row in rows]


async def finished(tx: Tx, spend_ids: Sequence[str]) -> list[SpendRow]:
    """Those that reached a terminal state."""
    return [spend_of(row) for row in await _FINISHED.rows(tx, spend_ids=spend_ids)]


async def release_usage(tx: Tx, deltas: Mapping[tuple[str, date], int]) -> None:
    """Gives amounts back to the days on which they were counted."""
    keys = sorted(deltas)
    await _RELEASE_USAGE.run(
        tx,
        agent_ids=[agent_id for agent_id, _ in keys],
        days=[day for _, day in keys],
        micros=[deltas[key] for key in keys],
    )


async def used_on(tx: Tx, agent_id: str, day: date) -> int:
    return await _USED.value(tx, agent_id=agent_id, day=day) or 0


def spend_of(row: Row) -> SpendRow:
    code = row["reject_code"]
    return made(
        SpendRow,
        row,
        reject_code=None if code is None else RejectCode(code),
        metadata=_decode_metadata(row["metadata"]),
        decision=_decode_decision(row["decision"]),
    )
