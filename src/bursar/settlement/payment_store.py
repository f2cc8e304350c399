"""Queries on payments: which are due, who works on them, and how they end."""

from collections.abc import Sequence
from typing import Final, Literal

from bursar.chain.port import Paid
from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.settlement.model import PaymentRow
from bursar.sql import Query, columns, made
from bursar.stop.store import HELD

# Longer than a round of the worker takes, so that a worker that died gives its payments back. Only
# a search of long histories after a restore may outlast it: then another round searches the same
# ones, which costs twice the reading and pays nothing twice.
LEASE: Final = "interval '30 seconds'"
# Nothing waits this long: what seems to was written by a clock that has been set back since.
CLOCK_WAS_SET_BACK: Final = "interval '1 minute'"
# Of the payment `p` and its wallet `w`.
_NOT_ITS_OWN: Final = (
    *("source", "mint", "fee_payer", "asked_at", "set_aside", "reserved_lamports"),
)
COLUMNS: Final = f"""
        {columns(PaymentRow, "p", but=_NOT_ITS_OWN)},
        w.address AS source, w.mint,
        (SELECT k.address FROM system_key k WHERE k.owner = 'fee_payer:' || p.mode) AS fee_payer,
        coalesce(o.created_at, p.created_at) AS asked_at,
        coalesce(o.network_lamports, 0) AS reserved_lamports,
        EXISTS (SELECT FROM quarantine q WHERE q.agent_id = p.agent_id AND q.duty = 'settle')
          AS set_aside"""


def of_spend(payment_id: str) -> str:
    """What these columns need of the spend, if it pays one. Apart, so that it is looked up for each
    payment, however many the planner expects."""
    return f"""
      LEFT JOIN LATERAL (
           SELECT s.created_at, s.network_lamports
             FROM spend s
            WHERE s.id = {payment_id}
           OFFSET 0) o ON true"""


# A wallet that is set aside is tried again only after a while.
MAY_BE_TRIED: Final = """
       NOT EXISTS (SELECT FROM quarantine q
                    WHERE q.agent_id = p.agent_id AND q.duty = 'settle'
                      AND q.next_try_at > clock_timestamp())"""

# Claiming ----------------------------------------------------------------------------------------


_CLAIM = Query(f"""
    WITH due AS (
      SELECT p.id
        FROM payment p
        JOIN wallet w ON w.agent_id = p.agent_id
       WHERE p.mode = :mode AND p.state = 'waiting' AND NOT w.is_frozen
         AND (p.leased_until <= clock_timestamp()
              OR p.leased_until > clock_timestamp() + {CLOCK_WAS_SET_BACK})
         AND {MAY_BE_TRIED}
         AND NOT {HELD}
       ORDER BY p.created_at
       LIMIT :limit
         FOR UPDATE OF p SKIP LOCKED
    )
    UPDATE payment p
       SET leased_until = clock_timestamp() + {LEASE}
      FROM due {of_spend("due.id")}, wallet w, durably()
     WHERE p.id = due.id AND w.agent_id = p.agent_id
    RETURNING {COLUMNS}
""")
_RELEASE = Query("""
    UPDATE payment
       SET leased_until = clock_timestamp() + make_interval(secs => :after_seconds),
           problem = :problem
     WHERE id = ANY(:payment_ids) AND state = 'waiting'
""")


async def claim_payments(tx: Tx, mode: Mode, limit: int) -> list[PaymentRow]:
    """Takes payments for which nothing signed is alive, oldest first, so that nobody else does."""
    claimed = [made(PaymentRow, row) for row in await _CLAIM.rows(tx, mode=mode, limit=limit)]
    return sorted(claimed, key=lambda payment: payment.created_at)


async def release_payments(
    tx: Tx, payment_ids: Sequence[str], after_seconds: int, problem: str | None
) -> None:
    """Gives claimed payments back, to be tried again after a while."""
    await _RELEASE.run(
        tx, payment_ids=payment_ids, after_seconds=float(after_seconds), problem=problem
    )


# Ends --------------------------------------------------------------------------------------------

# One that was found on the chain without its attempt here (after a restore) says so.
_SETTLE = Query("""
    UPDATE payment p
       SET state = 'settled',
           problem = CASE WHEN s.payment_id IS NULL THEN 'found on the chain' END
      FROM unnest(:payment_ids::text[], :signatures::text[]) AS l (id, signature)
      LEFT JOIN submission s ON s.payment_id = l.id AND s.signature = l.signature
     WHERE p.id = l.id AND p.state IN ('waiting', 'live')
    RETURNING p.id
""")
_FAIL = Query("""
    UPDATE payment
       SET state = 'failed', problem = :problem
     WHERE id = :payment_id AND state = :was
       AND NOT EXISTS (SELECT FROM submission WHERE payment_id = :payment_id AND state = 'live')
""")
_FAIL_CALLED_OFF = Query("""
    UPDATE payment
       SET state = 'failed', problem = 'called off'
     WHERE id = ANY(:payment_ids) AND state = 'waiting' AND called_off_by IS NOT NULL
    RETURNING id
""")
_LET_WAIT = Query("""
    UPDATE payment
       SET state = 'waiting', leased_until = clock_timestamp(), problem = :problem
     WHERE id = :payment_id AND state = 'live'
""")
_ADOPT = Query("""
    UPDATE payment
       SET state = 'settled', problem = 'found on the chain'
     WHERE id = :withdrawal_id AND state = 'waiting'
""")


async def settle_payments(tx: Tx, paid: Sequence[Paid]) -> set[str]:
    """Those of the payments that this call settled."""
    rows = await _SETTLE.rows(
        tx,
        payment_ids=[payment.payment_id for payment in paid],
        signatures=[payment.signature for payment in paid],
    )
    return {row["id"] for row in rows}


async def fail_payment(
    tx: Tx, payment_id: str, problem: str, was: Literal["waiting", "live"]
) -> bool:
    """False when it is closed already, or an attempt of it is alive. `was` keeps one that nothing
    was signed for from failing when another worker has just stored an attempt: that changes the
    state, and the state is read again under the row's lock, which a look at attempts is not."""
    return await _FAIL.count(tx, payment_id=payment_id, problem=problem, was=was) == 1


async def fail_called_off(tx: Tx, payment_ids: Sequence[str]) -> list[str]:
    """Those that this call failed."""
    return [row["id"] for row in await _FAIL_CALLED_OFF.rows(tx, payment_ids=payment_ids)]


async def let_payment_wait(tx: Tx, payment_id: str, problem: str) -> None:
    """Its attempt is dead: another may be signed."""
    await _LET_WAIT.run(tx, payment_id=payment_id, problem=problem)


async def adopt_payment(tx: Tx, withdrawal_id: str) -> None:
    """waiting -> settled, for a withdrawal that was made without an attempt of ours."""
    await _ADOPT.run(tx, withdrawal_id=withdrawal_id)


# Backlog -----------------------------------------------------------------------------------------

# What a stop holds waits for a person, not for the worker.
_BACKLOG = Query(f"""
    SELECT count(*) FILTER (WHERE p.state = 'waiting') AS waiting,
           count(*) FILTER (WHERE p.state = 'live') AS live,
           count(*) FILTER (WHERE s.in_doubt) AS in_doubt,
           coalesce(extract(epoch FROM clock_timestamp() - min(p.created_at)), 0)::float8 AS oldest
      FROM payment p
      LEFT JOIN submission s ON s.payment_id = p.id AND s.state = 'live'
     WHERE p.mode = :mode AND p.state IN ('waiting', 'live')
       AND NOT (p.state = 'waiting' AND {HELD})
""")


async def backlog(tx: Tx, mode: Mode) -> Row:
    """waiting, live, in_doubt, and the age in seconds of the oldest open payment."""
    return await _BACKLOG.one(tx, mode=mode)
