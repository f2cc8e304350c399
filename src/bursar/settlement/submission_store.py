"""Queries on submissions: the attempts that were signed for payments."""

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from bursar.chain.port import Paid
from bursar.config import Mode
from bursar.cost import store as cost_store
from bursar.db import Tx
from bursar.settlement import payment_store, watch_store
from bursar.settlement.model import (
    Ended,
    Look,
    NewSubmission,
    PaymentRow,
    Stored,
    SubmissionRow,
)
from bursar.sql import Query, columns, made, made_or_none
from bursar.stop import store as stop_store

# Signed ------------------------------------------------------------------------------------------

# The worker that signed sends at once and then says so; if it cannot, others look after the attempt
# from then on.
_FIRST_LOOK: Final = "interval '5 seconds'"

_LOCK_PAYMENTS = Query("""
    SELECT p.id, p.attempts
      FROM payment p
      JOIN wallet w ON w.agent_id = p.agent_id
     WHERE p.id = ANY(:payment_ids) AND p.state = 'waiting' AND p.called_off_by IS NULL
       AND NOT w.is_frozen
     ORDER BY p.id
       FOR UPDATE OF p
""")
_INSERT = Query(f"""
    INSERT INTO submission (payment_id, attempt, mode, state, raw, signature, blockhash,
                            last_valid_height, signed_slot, opens_account, network_lamports,
                            next_check_at)
    SELECT s.payment_id, s.attempt, s.mode, 'live', s.raw, s.signature, s.blockhash,
           s.last_valid_height, s.signed_slot, s.opens_account, s.network_lamports,
           clock_timestamp() + {_FIRST_LOOK}
      FROM unnest(:payment_ids::text[], :attempts::int[], :modes::text[], :raws::bytea[],
                  :signatures::text[], :blockhashes::text[], :last_valid_heights::bigint[],
                  :signed_slots::bigint[], :opens_account::boolean[], :network_lamports::bigint[])
           AS s (payment_id, attempt, mode, raw, signature, blockhash, last_valid_height,
                 signed_slot, opens_account, network_lamports)
""")
_MAKE_PAYMENTS_LIVE = Query("""
    UPDATE payment
       SET state = 'live', attempts = attempts + 1, problem = NULL
     WHERE id = ANY(:payment_ids)
""")
_KNOWN = Query("""
    SELECT signature
      FROM submission
     WHERE signature = ANY(:signatures::text[])
    UNION ALL
    SELECT signature
      FROM purchase
     WHERE signature = ANY(:signatures::text[])
""")


async def insert_submissions(
    tx: Tx, submissions: Sequence[NewSubmission], known_timeline: str, account_lamports: int
) -> Stored:
    """Stores what was signed, if nothing else of the payment is alive and its account can pay.

    The payment's row is locked first, so that of two workers one signs in vain and sends nothing.
    The same for one that signed before a failover and stores after it, and for one whose account
    was stopped meanwhile, if the stop holds what is not signed.
    """
    if await watch_store.timeline(tx) != known_timeline:
        return Stored(set(), set())
    may_sign = await stop_store.may_sign(tx, list({s.payment.realm_id for s in submissions}))
    submissions = [
        s for s in submissions if s.payment.is_withdrawal or s.payment.realm_id in may_sign
    ]
    rows = await _LOCK_PAYMENTS.rows(tx, payment_ids=[s.payment.id for s in submissions])
    free = {row["id"]: row["attempts"] for row in rows}
    kept = [s for s in submissions if free.get(s.payment.id) == s.attempt - 1]
    costs = [s.cost for s in kept]
    admitted, over_budget = await cost_store.admit(tx, costs, account_lamports)
    kept = [s for s in kept if s.payment.id in admitted]
    if kept:
        payment_ids = [s.payment.id for s in kept]
        await _INSERT.run(
            tx,
            payment_ids=payment_ids,
            attempts=[s.attempt for s in kept],
            modes=[s.payment.mode for s in kept],
            raws=[s.raw for s in kept],
            signatures=[s.signature for s in kept],
            blockhashes=[s.blockhash for s in kept],
            last_valid_heights=[s.last_valid_height for s in kept],
            signed_slots=[s.signed_slot for s in kept],
            opens_account=[s.opens_account for s in kept],
            network_lamports=[s.network_lamports for s in kept],
        )
        await _MAKE_PAYMENTS_LIVE.run(tx, payment_ids=payment_ids)
    return Stored({s.payment.id for s in kept}, over_budget)


async def known_attempts(tx: Tx, signatures: Sequence[str]) -> set[str]:
    """Those of these that were signed for a payment or a purchase."""
    return {row["signature"] for row in await _KNOWN.rows(tx, signatures=signatures)}


# Looked after ------------------------------------------------------------------------------------

_CLAIM = Query(f"""
    WITH due AS (
      SELECT s.payment_id, s.attempt
        FROM submission s
        JOIN payment p ON p.id = s.payment_id
       WHERE s.mode = :mode AND s.state = 'live'
         AND (s.next_check_at <= clock_timestamp()
              OR s.next_check_at > clock_timestamp() + {payment_store.CLOCK_WAS_SET_BACK})
         AND {payment_store.MAY_BE_TRIED}
       ORDER BY s.next_check_at
       LIMIT :limit
         FOR UPDATE OF s SKIP LOCKED
    )
    UPDATE submission s
       SET next_check_at = clock_timestamp() + {payment_store.LEASE}, checks = s.checks + 1
      FROM due {payment_store.of_spend("due.payment_id")}, payment p, wallet w, durably()
     WHERE s.payment_id = due.payment_id AND s.attempt = due.attempt
       AND p.id = s.payment_id AND w.agent_id = p.agent_id
    RETURNING {columns(SubmissionRow, "s", but=["payment"])},
              {payment_store.COLUMNS}
""")
_LOOK_NOW = Query("""
    UPDATE submission
       SET next_check_at = clock_timestamp()
     WHERE payment_id = ANY(:payment_ids) AND state = 'live' AND checks = 0
""")
_LOOK_AGAIN = Query("""
    UPDATE submission s
       SET refusal = n.refusal, in_doubt = n.in_doubt,
           next_check_at = clock_timestamp() + make_interval(secs => n.seconds)
      FROM unnest(:payment_ids::text[], :attempts::int[], :seconds::float8[], :refusals::text[],
                  :in_doubt::boolean[])
           AS n (payment_id, attempt, seconds, refusal, in_doubt)
     WHERE s.payment_id = n.payment_id AND s.attempt = n.attempt AND s.state = 'live'
""")


async def claim_submissions(tx: Tx, mode: Mode, limit: int) -> list[SubmissionRow]:
    """Takes live attempts that are due for a look."""
    rows = await _CLAIM.rows(tx, mode=mode, limit=limit)
    return [made(SubmissionRow, row, payment=made(PaymentRow, row)) for row in rows]


async def look_now(tx: Tx, payment_ids: Sequence[str]) -> None:
    """They were sent: any worker may look at them."""
    await _LOOK_NOW.run(tx, payment_ids=payment_ids)


async def look_again(tx: Tx, looks: Sequence[Look]) -> None:
    await _LOOK_AGAIN.run(
        tx,
        payment_ids=[look.submission.payment.id for look in looks],
        attempts=[look.submission.attempt for look in looks],
        seconds=[look.seconds for look in looks],
        refusals=[
            look.submission.refusal if look.refusal is UNSET else look.refusal for look in looks
        ],
        in_doubt=[look.in_doubt for look in looks],
    )


# Ended -------------------------------------------------------------------------------------------

# The columns of `Ended`.
_ENDED: Final = """
        s.payment_id, (s.signed_at AT TIME ZONE 'UTC')::date AS day,
        s.network_lamports AS charged_lamports"""
_SETTLE = Query(f"""
    UPDATE submission s
       SET state = 'settled', outcome = 'finalized', in_doubt = false, fee_lamports = l.fee
      FROM unnest(:signatures::text[], :fees::bigint[]) AS l (signature, fee)
     WHERE s.signature = l.signature AND s.state = 'live'
    RETURNING {_ENDED}
""")
_BURY_OTHERS = Query(f"""
    UPDATE submission s
       SET state = 'dead', outcome = 'paid by another', in_doubt = false
     WHERE s.payment_id = ANY(:payment_ids) AND s.state = 'live'
    RETURNING {_ENDED}
""")
_BURY = Query(f"""
    UPDATE submission s
       SET state = 'dead', outcome = :outcome, fee_lamports = :fee_lamports, in_doubt = false
     WHERE s.payment_id = :payment_id AND s.attempt = :attempt AND s.state = 'live'
    RETURNING {_ENDED}
""")
_ADD_COST = Query("""
    UPDATE payment
       SET cost_lamports = cost_lamports + :fee_lamports
     WHERE id = :payment_id
""")


async def settle_submissions(tx: Tx, paid: Sequence[Paid], settled: set[str]) -> list[Ended]:
    """The attempts that ended because payments were made; `settled` are those payments that were
    open until now."""
    rows = await _SETTLE.rows(
        tx,
        signatures=[payment.signature for payment in paid],
        fees=[payment.fee_lamports for payment in paid],
    )
    # Made by an attempt that this database forgot: the one it knows has expired.
    rows += await _BURY_OTHERS.rows(tx, payment_ids=list(settled))
    return [made(Ended, row) for row in rows]


async def bury_submission(
    tx: Tx, payment_id: str, attempt: int, outcome: str, fee_lamports: int | None
) -> Ended | None:
    """live -> dead; None when another worker ended it. A fee was paid if it failed on the chain."""
    row = await _BURY.row(
        tx, payment_id=payment_id, attempt=attempt, outcome=outcome, fee_lamports=fee_lamports
    )
    if row is not None and fee_lamports:
        await _ADD_COST.run(tx, payment_id=payment_id, fee_lamports=fee_lamports)
    return made_or_none(Ended, row)
