"""Queries on purchases."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from bursar.advisory import PURCHASING
from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.errors import present
from bursar.policy.engine import RejectCode
from bursar.purchase.model import (
    FailureCode,
    PurchaseFilter,
    PurchaseRow,
    PurchaseStatus,
)
from bursar.purchase.secret_store import FORGETTING, Kept, keeping
from bursar.spend.model import SpendRow
from bursar.spend.store import spend_of
from bursar.sql import Listing, Query, columns, made

SIGNATURE_CONSTRAINT: Final = "purchase_signature_key"
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode
_COLUMNS: Final = columns(PurchaseRow)

# Before there is one -----------------------------------------------------------------------------

_TAKE_TURNS = Query("SELECT pg_advisory_xact_lock(:number, :realm_id)")
_OURS = Query("""
    SELECT address FROM wallet WHERE address = ANY(:addresses)
    UNION ALL
    SELECT address FROM system_key WHERE address = ANY(:addresses)
""")


async def take_turns(tx: Tx, realm_id: int) -> None:
    """Purchases of a realm that begin, or pin a payee, do so one after the other. Comes before
    every other lock of a transaction."""
    await _TAKE_TURNS.run(tx, number=PURCHASING, realm_id=realm_id)


async def ours(tx: Tx, addresses: Sequence[str]) -> set[str]:
    """Those that Bursar holds the key of."""
    return {row["address"] for row in await _OURS.rows(tx, addresses=addresses)}


# Making one --------------------------------------------------------------------------------------

_BEGIN = Query(f"""
    SELECT {_COLUMNS}, fingerprint AS found_fingerprint
      FROM begin_purchase(
        :given, :busy_seconds, :same_seconds, :most_of_account, :most_of_agent, :most_of_host,
        :owner, :kind, :master_version, :sealed, :bytes, :days)
""")
_UNDER_WAY = Query("""
    SELECT count(*) AS of_account, count(*) FILTER (WHERE agent_id = :agent_id) AS of_agent,
           count(*) FILTER (WHERE host = :host) AS of_host
      FROM purchase
     WHERE realm_id = :realm_id AND status = 'open'
""")
_NOTHING_KEPT: Final = dict.fromkeys(("owner", "kind", "master_version", "sealed", "bytes", "days"))


class NewPurchase(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a purchase before anything happens: open, or rejected at once."""

    id: str
    realm_id: int
    agent_id: str
    mode: Mode
    url: str
    method: str
    host: str
    origin: str
    max_micros: int | None
    memo: str | None
    metadata: dict[str, str]
    brought: bool
    digest: bytes
    idempotency_key: str | None
    fingerprint: bytes | None
    created_by: str
    created_at: datetime
    reject_code: RejectCode | None
    # The decision of a refusal.
    refusal: str | None


class Begun(NamedTuple):
    """A purchase that was stored, or found; and the fingerprint of the request that made it."""

    purchase: PurchaseRow
    fingerprint: bytes | None


class Room(NamedTuple):
    """Purchases being made: how many there may be, or are, of an account, of an agent, and of an
    account from a host."""

    of_account: int
    of_agent: int
    of_host: int


async def begin(
    tx: Tx,
    new: NewPurchase,
    most: Room,
    *,
    busy_seconds: float,
    same_within: int = 0,
    order: Kept | None = None,
) -> Begun | None:
    """Stores the purchase with what is sent, or finds the one that the same request made before:
    by its key, or as the newest of the same digest within so many seconds that did not come to
    nothing. None where there is no room for another."""
    given = msgspec.structs.asdict(new) | {
        "metadata": _encode(new.metadata).decode(),
        "digest": _hex(new.digest),
        "fingerprint": None if new.fingerprint is None else _hex(new.fingerprint),
        "status": "open" if new.reject_code is None else "rejected",
    }
    row = await _BEGIN.row(
        tx,
        given=_encode(given).decode(),
        busy_seconds=busy_seconds,
        same_seconds=float(same_within),
        most_of_account=most.of_account,
        most_of_agent=most.of_agent,
        most_of_host=most.of_host,
        **_NOTHING_KEPT if order is None else msgspec.structs.asdict(order),
    )
    if row is None:
        return None
    return Begun(purchase_of(row), row["found_fingerprint"])


async def under_way(tx: Tx, realm_id: int, agent_id: str, host: str) -> Room:
    """How many are being made now."""
    return Room(*await _UNDER_WAY.one(tx, realm_id=realm_id, agent_id=agent_id, host=host))


def _hex(value: bytes) -> str:
    """As PostgreSQL writes bytes."""
    return f"\\x{value.hex()}"


# Reading -----------------------------------------------------------------------------------------

_GET = Query(f"""
    SELECT {_COLUMNS}
      FROM purchase
     WHERE id = :purchase_id AND realm_id = :realm_id
""")
_MANY = Query(f"""
    SELECT {_COLUMNS}
      FROM purchase
     WHERE id = ANY(:purchase_ids)
""")
_NO_LONGER_OPEN = Query(f"""
    SELECT {_COLUMNS}
      FROM purchase
     WHERE id = ANY(:purchase_ids) AND status <> 'open'
""")
_LIST = Listing(f"""
    SELECT {_COLUMNS}
      FROM purchase
     WHERE realm_id = :realm_id
       AND agent_id = :agent_id
       AND status = :status
       AND host = :host
       AND created_at >= :created_from
       AND created_at < :created_to
""")
_SPENDS = Query(f"""
    SELECT {columns(SpendRow)}
      FROM spend
     WHERE id = ANY(:spend_ids)
""")


async def get_purchase(tx: Tx, realm_id: int, purchase_id: str) -> PurchaseRow | None:
    row = await _GET.row(tx, realm_id=realm_id, purchase_id=purchase_id)
    return None if row is None else purchase_of(row)


async def get_purchases(tx: Tx, purchase_ids: Sequence[str]) -> list[PurchaseRow]:
    return [purchase_of(row) for row in await _MANY.rows(tx, purchase_ids=purchase_ids)]


async def no_longer_open(tx: Tx, purchase_ids: Sequence[str]) -> list[PurchaseRow]:
    """Those that are no longer being made."""
    rows = await _NO_LONGER_OPEN.rows(tx, purchase_ids=purchase_ids)
    return [purchase_of(row) for row in rows]


async def list_purchases(
    tx: Tx, filters: PurchaseFilter, before: tuple[datetime, str] | None, limit: int
) -> list[PurchaseRow]:
    """Newest first."""
    rows = await _LIST.rows(tx, before, limit, **msgspec.structs.asdict(filters))
    return [purchase_of(row) for row in rows]


async def spends_of(tx: Tx, purchases: Sequence[PurchaseRow]) -> dict[str, SpendRow]:
    """By the spend's id."""
    ids = [purchase.spend_id for purchase in purchases if purchase.spend_id is not None]
    rows = await _SPENDS.rows(tx, spend_ids=ids) if ids else []
    return {row["id"]: spend_of(row) for row in rows}


# Moving ------------------------------------------------------------------------------------------

_MOVE = Query(f"""
    WITH of_purchase AS (
      UPDATE purchase
         SET status = :status, reject_code = :reject_code, failure_code = :failure_code,
             problem = coalesce(:problem, problem), updated_at = moment(), busy_until = NULL,
             next_check_at = NULL
       WHERE id = :purchase_id AND status = :expected
      RETURNING {_COLUMNS}
    ), {FORGETTING}
    SELECT * FROM of_purchase
""")
_BUSY = Query(f"""
    UPDATE purchase
       SET busy_until = clock_timestamp() + make_interval(secs => :seconds)
      FROM durably()
     WHERE id = :purchase_id AND status = ANY(:expected)
       AND (busy_until IS NULL OR busy_until < clock_timestamp())
    RETURNING {_COLUMNS}
""")
_IDLE = Query(f"""
    UPDATE purchase
       SET busy_until = NULL, problem = :problem, updated_at = moment()
      FROM durably()
     WHERE id = :purchase_id AND status <> 'open'
    RETURNING {_COLUMNS}
""")
# The seller has answered: the chain is worth a look, above all at what it claims.
_ANSWERED = keeping(f"""
    UPDATE purchase
       SET busy_until = NULL, problem = NULL, updated_at = moment(),
           claimed = CASE WHEN status = 'presented' THEN coalesce(:claimed, claimed)
                          ELSE claimed END,
           next_check_at = CASE WHEN status = 'presented' THEN clock_timestamp() END,
           checks = CASE WHEN status = 'presented' AND :claimed::text IS NULL THEN 0
                         ELSE checks END
      FROM durably()
     WHERE id = :purchase_id AND status <> 'open'
    RETURNING {_COLUMNS}
""")


async def move_purchase(
    tx: Tx,
    purchase_id: str,
    *,
    expected: PurchaseStatus,
    status: PurchaseStatus,
    reject_code: RejectCode | None = None,
    failure_code: FailureCode | None = None,
    problem: str | None = None,
) -> PurchaseRow | None:
    """None when it is not in the expected state."""
    row = await _MOVE.row(
        tx,
        purchase_id=purchase_id,
        expected=expected,
        status=status,
        reject_code=reject_code,
        failure_code=failure_code,
        problem=problem,
    )
    return None if row is None else purchase_of(row)


async def take(
    tx: Tx, purchase_id: str, seconds: float, expected: Sequence[PurchaseStatus]
) -> PurchaseRow | None:
    """Makes it this process's for a while; None when another one is at work on it, or when it is in
    no expected state."""
    row = await _BUSY.row(tx, purchase_id=purchase_id, seconds=seconds, expected=expected)
    return None if row is None else purchase_of(row)


async def give_back(tx: Tx, purchase_id: str, problem: str | None) -> PurchaseRow:
    """Of one that is not open: it is anybody's again."""
    row = await _IDLE.row(tx, purchase_id=purchase_id, problem=problem)
    return purchase_of(present(row, "what was taken is there"))


async def answered(tx: Tx, purchase_id: str, response: Kept, claimed: str | None) -> PurchaseRow:
    """What the seller answered to a payment, and which transaction it says it became."""
    row = await _ANSWERED.row(
        tx, purchase_id=purchase_id, claimed=claimed, **msgspec.structs.asdict(response)
    )
    return purchase_of(present(row, "what was presented is there"))


def purchase_of(row: Row) -> PurchaseRow:
    code = row["reject_code"]
    return made(
        PurchaseRow,
        row,
        metadata=_decode_metadata(row["metadata"]),
        reject_code=None if code is None else RejectCode(code),
    )
