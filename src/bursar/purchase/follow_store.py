"""Queries on purchases that the worker looks after."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import msgspec

from bursar.chain.message import token_account
from bursar.config import Mode
from bursar.db import Tx
from bursar.errors import present
from bursar.purchase.model import PurchaseRow
from bursar.purchase.secret_store import FORGETTING
from bursar.purchase.store import purchase_of
from bursar.sql import Query, columns, made

_COLUMNS: Final = columns(PurchaseRow)

# Ends --------------------------------------------------------------------------------------------

# Who is presenting it again goes on, and nobody else does meanwhile.
_END = Query(f"""
    WITH of_purchase AS (
      UPDATE purchase
         SET status = :status, problem = :problem, updated_at = moment(), next_check_at = NULL
       WHERE id = ANY(:purchase_ids) AND status = 'presented'
      RETURNING {_COLUMNS}
    ), {FORGETTING}
    SELECT * FROM of_purchase
""")


async def end_presented(
    tx: Tx, purchase_ids: Sequence[str], status: Literal["paid", "unpaid"], problem: str | None
) -> list[PurchaseRow]:
    """Those that were presented until now; the caller holds their wallets' locks."""
    rows = await _END.rows(tx, purchase_ids=purchase_ids, status=status, problem=problem)
    return [purchase_of(row) for row in rows]


# Looked after ------------------------------------------------------------------------------------

# Longer than a look takes, so that those of a worker that died are looked after all the same.
_LEASE: Final = "interval '30 seconds'"
# Nothing waits this long: what seems to was written by a clock that has been set back since.
_CLOCK_WAS_SET_BACK: Final = "interval '1 minute'"
_RESTS: Final = """
       EXISTS (SELECT FROM quarantine q
                WHERE q.agent_id = p.agent_id AND q.duty = 'purchase'
                  AND q.next_try_at > clock_timestamp())"""
_CLAIM = Query(f"""
    WITH due AS (
      SELECT p.id
        FROM purchase p
       WHERE p.mode = :mode AND p.status = 'presented'
         AND (p.next_check_at <= clock_timestamp()
              OR p.next_check_at > clock_timestamp() + {_CLOCK_WAS_SET_BACK})
         AND NOT {_RESTS}
       ORDER BY p.next_check_at
       LIMIT :limit
         FOR UPDATE OF p SKIP LOCKED
    )
    UPDATE purchase p
       SET next_check_at = clock_timestamp() + {_LEASE}, checks = p.checks + 1
      FROM due, wallet w, durably()
     WHERE p.id = due.id AND w.agent_id = p.agent_id
    RETURNING {columns(PurchaseRow, "p")}, w.address, w.mint, p.blockhash, p.checks,
              p.next_check_at AS lease
""")
# One that was answered meanwhile is looked at earlier.
_LOOK_AGAIN = Query("""
    UPDATE purchase p
       SET next_check_at = clock_timestamp() + make_interval(secs => n.seconds)
      FROM unnest(:purchase_ids::text[], :leases::timestamptz[], :seconds::float8[])
           AS n (id, lease, seconds)
     WHERE p.id = n.id AND p.status = 'presented' AND p.next_check_at = n.lease
""")
_SIGNED_WITH = Query(f"""
    SELECT {_COLUMNS}
      FROM purchase
     WHERE signature = ANY(:signatures::text[]) AND agent_id = :agent_id
""")
_BACKLOG = Query("""
    SELECT count(*) AS presented,
           coalesce(extract(epoch FROM clock_timestamp() - min(signed_at)), 0)::float8 AS oldest
      FROM purchase
     WHERE mode = :mode AND status = 'presented'
""")
_DISMISSED = Query("""
    SELECT signature
      FROM unread_deposit
     WHERE token_account = :token_account AND signature = ANY(:signatures::text[])
       AND dismissed_at IS NOT NULL
""")


@dataclass(frozen=True, slots=True)
class Payer:
    """A wallet that buys."""

    agent_id: str
    address: str
    mint: str

    @property
    def account(self) -> str:
        return token_account(self.address, self.mint)


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A presented purchase that this worker looks after, until its lease ends."""

    purchase: PurchaseRow
    payer: Payer
    blockhash: str
    checks: int
    lease: datetime

    @property
    def signature(self) -> str:
        return present(self.purchase.signature, "what was presented is signed")

    @property
    def last_valid_height(self) -> int:
        return present(self.purchase.last_valid_height, "what was presented is signed")

    @property
    def signed_slot(self) -> int:
        return present(self.purchase.signed_slot, "what was presented is signed")

    @property
    def amount_micros(self) -> int:
        return present(self.purchase.amount_micros, "what was presented has a price")


async def claim(tx: Tx, mode: Mode, limit: int) -> list[Followed]:
    """Takes presented purchases that are due for a look."""
    rows = await _CLAIM.rows(tx, mode=mode, limit=limit)
    return [
        made(
            Followed,
            row,
            purchase=purchase_of(row),
            payer=Payer(row["agent_id"], row["address"], row["mint"]),
        )
        for row in rows
    ]


async def look_again(tx: Tx, looks: Sequence[tuple[Followed, float]]) -> None:
    """After so many seconds."""
    await _LOOK_AGAIN.run(
        tx,
        purchase_ids=[followed.purchase.id for followed, _ in looks],
        leases=[followed.lease for followed, _ in looks],
        seconds=[seconds for _, seconds in looks],
    )


async def signed_with(tx: Tx, agent_id: str, signatures: Sequence[str]) -> dict[str, PurchaseRow]:
    """The wallet's purchases that were signed so, by our signature."""
    rows = await _SIGNED_WITH.rows(tx, agent_id=agent_id, signatures=signatures)
    return {row["signature"]: purchase_of(row) for row in rows}


async def backlog(tx: Tx, mode: Mode) -> tuple[int, float]:
    """How many were presented and are not over, and how many seconds ago the oldest was signed."""
    row = await _BACKLOG.one(tx, mode=mode)
    return row["presented"], row["oldest"]


async def dismissed(tx: Tx, token_account: str, signatures: Sequence[str]) -> set[str]:
    """Those of the transactions that no node shows and a person has looked at."""
    rows = await _DISMISSED.rows(tx, token_account=token_account, signatures=signatures)
    return {row["signature"] for row in rows}


# Never signed ------------------------------------------------------------------------------------

# Called off by a person who resumed after a stop. Interrupted: the process that asked the seller is
# gone. Not continued: approved long ago, and the agent did not come back.
_OVER: Final = """
       (p.called_off_by IS NOT NULL
        OR p.status = 'open' AND coalesce(p.busy_until, p.updated_at) < clock_timestamp()
        OR p.status = 'pending' AND coalesce(p.busy_until, p.updated_at) < clock_timestamp()
        AND s.status = 'approved'
        AND s.decided_at < clock_timestamp() - make_interval(secs => :continue_seconds))"""
_UNSIGNED = Query(f"""
    SELECT {columns(PurchaseRow, "p")},
           EXISTS (SELECT FROM quarantine q
                    WHERE q.agent_id = p.agent_id AND q.duty = 'purchase') AS set_aside
      FROM purchase p
      LEFT JOIN spend s ON s.id = p.spend_id
     WHERE p.status IN ('open', 'pending') AND {_OVER} AND NOT {_RESTS}
     ORDER BY p.updated_at
     LIMIT :limit
""")
_STILL_UNSIGNED = Query(f"""
    SELECT {columns(PurchaseRow, "p")}
      FROM purchase p
      LEFT JOIN spend s ON s.id = p.spend_id
     WHERE p.id = :purchase_id AND p.status IN ('open', 'pending') AND {_OVER}
       FOR UPDATE OF p
""")


class Unsigned(msgspec.Struct, frozen=True, kw_only=True):
    """A purchase that nothing will be signed for."""

    purchase: PurchaseRow
    # Whether looking after its wallet's purchases raised before.
    set_aside: bool

    @property
    def agent_id(self) -> str:
        return self.purchase.agent_id


async def unsigned(tx: Tx, continue_seconds: int, limit: int) -> list[Unsigned]:
    """Those that were interrupted, or not continued for so long after they were approved."""
    rows = await _UNSIGNED.rows(tx, continue_seconds=float(continue_seconds), limit=limit)
    return [made(Unsigned, row, purchase=purchase_of(row)) for row in rows]


async def still_unsigned(tx: Tx, purchase_id: str, continue_seconds: int) -> PurchaseRow | None:
    """Locked until the commit. None when a process took it up again, or it has ended."""
    row = await _STILL_UNSIGNED.row(
        tx, purchase_id=purchase_id, continue_seconds=float(continue_seconds)
    )
    return None if row is None else purchase_of(row)
