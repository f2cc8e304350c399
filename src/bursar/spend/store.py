"""Queries on spends and on what they use of their windows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from bursar.chain.port import Paid
from bursar.db import Row, Tx, records
from bursar.policy.engine import RejectCode, Terms, used_of
from bursar.spend.model import SpendRow, SpendStatus
from bursar.sql import Listing, Query, columns, made

# The constraint that keeps an idempotency key from being used twice.
KEY_CONSTRAINT: Final = "spend_key"
_decode_terms = msgspec.json.Decoder(Terms).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode

_GET = Query(f"""
    SELECT {columns(SpendRow)}
      FROM spend
     WHERE id = :spend_id AND realm_id = :realm_id
""")
# By account and status, because there an index holds few: what is open is paid within seconds.
_OPEN = Query("""
    SELECT coalesce(sum(amount_micros) FILTER (WHERE status = 'approved'), 0)::bigint
             AS approved_micros,
           coalesce(sum(amount_micros) FILTER (WHERE status = 'pending'), 0)::bigint
             AS pending_micros
      FROM spend
     WHERE realm_id = :realm_id AND agent_id = :agent_id AND status IN ('approved', 'pending')
       AND created_at >= :created_from
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
    WITH moved AS (
      UPDATE spend
         SET status = :status, reject_code = :reject_code,
             decided_by = coalesce(:decided_by, decided_by),
             decided_at = CASE WHEN :decided_by IS NULL THEN decided_at ELSE :at END,
             decision_reason
               = CASE WHEN :decided_by IS NULL THEN decision_reason ELSE :decision_reason END,
             approved_after
               = CASE WHEN :status = 'approved'
                      THEN (SELECT w.decisions FROM wallet w WHERE w.agent_id = spend.agent_id)
                      ELSE approved_after END,
             updated_at = :at
       WHERE id = ANY(:spend_ids) AND status = :expected
      RETURNING {columns(SpendRow)}
    ), fewer AS (
      UPDATE wallet w
         SET pending_count = w.pending_count - m.spends
        FROM (SELECT agent_id, count(*) AS spends FROM moved GROUP BY agent_id) m
       WHERE w.agent_id = m.agent_id AND :expected = 'pending'
    ), purchases AS (
      UPDATE purchase p
         SET status = 'rejected', reject_code = :reject_code, updated_at = :at, busy_until = NULL
        FROM moved m
       WHERE p.spend_id = m.id AND p.status = 'pending'
         AND :expected = 'pending' AND :status = 'rejected'
      RETURNING p.id
    ), forgotten AS (
      -- What was sent to its seller, and will not be sent again.
      DELETE FROM purchase_secret s
       USING purchases p
       WHERE s.purchase_id = p.id AND s.kind = 'order'
    )
    SELECT * FROM moved
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
_FIND_KEYS = Query(f"""
    SELECT {columns(SpendRow, "s")}, s.idempotency_key, s.fingerprint
      FROM unnest(:realm_ids::int[], :agent_ids::text[], :keys::text[])
           AS k (realm_id, agent_id, key)
      JOIN spend s ON s.agent_id = k.agent_id AND s.idempotency_key = k.key
                  AND s.realm_id = k.realm_id
""")
_PAY = Query("""
    INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, leased_until,
                         created_at)
    SELECT s.id, r.mode, s.realm_id, s.agent_id, s.amount_micros, s.pay_to, :at, :at
      FROM spend s
      JOIN realm r ON r.id = s.realm_id
     WHERE s.id = ANY(:spend_ids) AND s.status = 'approved' AND s.purchase_id IS NULL
""")
_ADD_TO_WINDOWS = Query("""
    SELECT add_to_windows(:agent_ids, :moments, :micros, :spends, :lamports)
""")
_USED_IN_DAY = Query("SELECT micros, lamports FROM used_in_day(:agent_id, :at)")
_CLOSED_WINDOWS = Query("""
    SELECT window_kind, micros, spends
      FROM usage
     WHERE agent_id = :agent_id AND window_start = date_trunc(window_kind, :at, 'UTC')
""")
# Rows come as PostgreSQL's own text: `records` says why.
_WRITING: Final = """write_spends(
        :life, :locked_at, :approval_seconds, :agent_ids::text::text[],
        :wallets::text::touched_wallet[], :spends::text::decided_spend[], :purchase_id,
        :meters::text::touched_meter[], :uses::text::use_of_meter[])"""
_WRITE = Query(f"SELECT * FROM {_WRITING}")
# With the wallet that was written its purchase is priced; where it may no longer be, that raises,
# and the spend is not written either. Where it is refused, nothing is sent to its seller any more.
_WRITE_AND_PRICE = Query(f"""
    WITH written AS (
      SELECT * FROM {_WRITING}
    ), priced AS (
      SELECT p.status, p.updated_at
        FROM written w
       CROSS JOIN LATERAL price_purchase(
               w.agent_id, :purchase_id, :spend_id, :protocol, :listed, :pinned) p
    ), forgotten AS (
      DELETE FROM purchase_secret s
       WHERE s.purchase_id = :purchase_id AND s.kind = 'order'
         AND EXISTS (SELECT FROM priced p WHERE p.status = 'rejected')
    )
    SELECT w.*, p.updated_at
      FROM written w
     CROSS JOIN priced p
""")
# The same for one that is presented at once. The realm is locked before the wallet, for the stop:
# its id is handed on, as nothing, so that it comes first.
_WRITE_AND_PRESENT = Query(f"""
    WITH held AS MATERIALIZED (
      SELECT id FROM realm WHERE id = :realm_id FOR SHARE
    ), written AS (
      SELECT w.*
        FROM held
       CROSS JOIN LATERAL {
    _WRITING.replace(":approval_seconds", ":approval_seconds + 0 * held.id")
} w
    )
    SELECT w.*, p.updated_at
      FROM written w
     CROSS JOIN LATERAL present_purchase(
             w.agent_id, :purchase_id, :spend_id, :protocol, :listed, :pinned, :raw, :signature,
             :fee_payer, :blockhash, :last_valid_height, :signed_slot, :unanswered_millis, :owner,
             :kind, :master_version, :sealed, :bytes, :days) p
""")


class Rows(NamedTuple):
    """A batch as the schema's `write_spends` takes it: rows as `records` does, of the types that it
    names there."""

    agent_ids: list[str]
    wallets: list[str]
    spends: list[str]
    # Of a metered batch: what counts it beside its wallets, and which of its spends.
    meters: list[str] | None = None
    uses: list[str] | None = None


class Found(msgspec.Struct, frozen=True):
    """A wallet that was written, as it was before; and the moment of its decisions."""

    agent_id: str
    at: datetime
    credits_posted: int
    debits_posted: int
    debits_pending: int
    decisions: int
    transfers: int
    spent_micros: int
    network_lamports: int
    pending_count: int
    # With one wallet of a metered batch: what the meters of each of its spends had, in their order.
    meters: Sequence[str] | None = None
    # When the purchase got its price that the spend pays for, if it does.
    priced_at: datetime | None = None

    @property
    def available_micros(self) -> int:
        return self.credits_posted - self.debits_posted - self.debits_pending


class Presenting(msgspec.Struct, frozen=True, kw_only=True):
    """What was signed for a purchase, which leaves once it is committed with its price; and the
    header that pays, sealed."""

    realm_id: int
    raw: bytes
    signature: str
    fee_payer: str
    blockhash: str
    last_valid_height: int
    signed_slot: int
    unanswered_millis: int
    owner: str
    kind: str
    master_version: int
    sealed: bytes
    bytes: int
    days: int


class OfPurchase(NamedTuple):
    """The purchase that a spend pays for, which gets its price in the same commit: what the seller
    speaks, and where the directory and a pin say that it is paid."""

    id: str
    protocol: str
    listed: str | None
    pinned: str | None
    presenting: Presenting | None = None


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


async def write_spends(
    tx: Tx,
    life: str,
    locked_at: datetime | None,
    approval_seconds: int,
    batch: Rows,
    of_purchase: OfPurchase | None = None,
    spend_id: str | None = None,
) -> dict[str, Found]:
    """Writes the wallets whose guards hold, with all that was decided about them, in one commit;
    returns those, by agent. Of the others nothing is written. A spend that pays for a purchase is
    the only one of its batch, and named.

    Raises UniqueViolationError of `KEY_CONSTRAINT` when an idempotency key was used before, and
    SerializationError when only some wallets of a batch with meters would have been written, or
    when the purchase has ended, its seller is paid elsewhere by now, or it may not be presented.
    """
    query = _WRITE
    more: dict[str, Any] = {"purchase_id": None}
    if of_purchase is not None:
        query = _WRITE_AND_PRICE
        more = {
            "purchase_id": of_purchase.id,
            "spend_id": spend_id,
            "protocol": of_purchase.protocol,
            "listed": of_purchase.listed,
            "pinned": of_purchase.pinned,
        }
        if of_purchase.presenting is not None:
            query = _WRITE_AND_PRESENT
            more |= msgspec.structs.asdict(of_purchase.presenting)
    rows = await query.rows(
        tx,
        life=life,
        locked_at=locked_at,
        approval_seconds=approval_seconds,
        agent_ids=f"{{{','.join(batch.agent_ids)}}}",
        wallets=records(batch.wallets),
        spends=records(batch.spends),
        meters=records(batch.meters) if batch.meters else None,
        uses=None if batch.uses is None else records(batch.uses),
        **more,
    )
    return {row["agent_id"]: Found(*row) for row in rows}


async def find_by_keys(
    tx: Tx, keys: Sequence[tuple[int, str, str]]
) -> dict[tuple[int, str, str], tuple[SpendRow, bytes]]:
    """The spend and the fingerprint of its request, by (realm, agent, idempotency key)."""
    realm_ids, agent_ids, names = zip(*keys, strict=True)
    rows = await _FIND_KEYS.rows(tx, realm_ids=realm_ids, agent_ids=agent_ids, keys=names)
    return {
        (row["realm_id"], row["agent_id"], row["idempotency_key"]): (
            spend_of(row),
            row["fingerprint"],
        )
        for row in rows
    }


async def pay(tx: Tx, spend_ids: Sequence[str], at: datetime) -> None:
    """Hands approved spends to settlement, in the commit that approves them. Others submit the
    payments of purchases."""
    await _PAY.run(tx, spend_ids=spend_ids, at=at)


async def get_spend(tx: Tx, realm_id: int, spend_id: str) -> SpendRow | None:
    row = await _GET.row(tx, realm_id=realm_id, spend_id=spend_id)
    return None if row is None else spend_of(row)


async def open_micros(
    tx: Tx, realm_id: int, agent_id: str, created_from: datetime
) -> tuple[int, int]:
    """What an agent's spends since then add up to that are approved and not paid yet, and of those
    that wait for a person."""
    row = await _OPEN.one(tx, realm_id=realm_id, agent_id=agent_id, created_from=created_from)
    return row["approved_micros"], row["pending_micros"]


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
    """Moves those that are still in the expected state, and returns them. A purchase that waits for
    its spend ends with it.

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


class Use(NamedTuple):
    """What is added to the windows of a moment, or given back to them."""

    agent_id: str
    at: datetime
    micros: int
    spends: int
    lamports: int


async def add_to_windows(tx: Tx, uses: Sequence[Use]) -> None:
    """The caller holds the wallets' locks."""
    if uses:
        agent_ids, moments, micros, spends, lamports = zip(*uses, strict=True)
        await _ADD_TO_WINDOWS.run(
            tx,
            agent_ids=agent_ids,
            moments=moments,
            micros=micros,
            spends=spends,
            lamports=lamports,
        )


async def used_in_day(tx: Tx, agent_id: str, at: datetime) -> tuple[int, int]:
    """(micros, lamports) used in the UTC day of a moment. The caller holds the wallet's lock."""
    row = await _USED_IN_DAY.row(tx, agent_id=agent_id, at=at)
    return (0, 0) if row is None else (row["micros"], row["lamports"])


async def closed_windows(tx: Tx, agent_id: str, at: datetime) -> dict[str, tuple[int, int]]:
    """(micros, spends) of the windows of a moment that are over, by their kind."""
    rows = await _CLOSED_WINDOWS.rows(tx, agent_id=agent_id, at=at)
    return {row["window_kind"]: (row["micros"], row["spends"]) for row in rows}


def spend_of(row: Row) -> SpendRow:
    code = row["reject_code"]
    return made(
        SpendRow,
        row,
        reject_code=None if code is None else RejectCode(code),
        metadata=_decode_metadata(row["metadata"]),
        terms=_decode_terms(row["terms"]),
        used=used_of(row["used"]),
    )
