"""Queries on payments, their attempts, and what the settlement watches."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import UNSET

from bursar.chain.port import Paid
from bursar.config import MODES, Mode
from bursar.cost import store as cost_store
from bursar.db import Row, Tx
from bursar.errors import present
from bursar.settlement.model import (
    Ended,
    LedgerNow,
    Look,
    NewPayment,
    NewSubmission,
    PaymentRow,
    SettledRow,
    Stored,
    SubmissionRow,
    Watch,
)

# Longer than a round of the worker takes, so that a worker that died gives its payments back. Only
# a search of long histories after a restore may outlast it: then another round searches the same
# ones, which costs twice the reading and pays nothing twice.
_LEASE: Final = "30 seconds"
# Whoever signed sends at once and then says so; if he cannot, others look after it from then on.
_FIRST_LOOK: Final = "5 seconds"
# Nothing waits this long: what seems to was written by a clock that has been set back since.
_CLOCK_WAS_SET_BACK: Final = "1 minute"
# How far the clocks of two servers may be apart: one that was promoted may be behind.
_CLOCKS_DIFFER: Final = "1 hour"
_PAYMENT = (
    "p.id, p.mode, p.realm_id, p.agent_id, p.amount_micros, p.destination, p.attempts,"
    " p.created_at, w.address AS source, w.mint, p.cost_lamports,"
    " coalesce((SELECT o.network_lamports FROM spend o WHERE o.id = p.id), 0) AS held_lamports,"
    " EXISTS (SELECT FROM quarantine q"
    " WHERE q.agent_id = p.agent_id AND q.duty = 'settle') AS set_aside"
)
# A wallet that is set aside is tried again only after a while.
_MAY_BE_TRIED = (
    "NOT EXISTS (SELECT FROM quarantine q WHERE q.agent_id = p.agent_id AND q.duty = 'settle'"
    " AND q.next_try_at > clock_timestamp())"
)


# One that an operator entered by hand has no memo of ours.
_SETTLED = (
    "SELECT p.id, p.amount_micros, p.destination, w.address AS source, w.mint,"
    " coalesce(s.signature, d.signature) AS signature,"
    " coalesce(d.created_by = 'system', false) AS adopted"
    " FROM payment p JOIN wallet w ON w.agent_id = p.agent_id"
    " LEFT JOIN spend s ON s.id = p.id LEFT JOIN withdrawal d ON d.id = p.id"
)
# As many as are wanted of as many as the planner believes there are.
_BY_CHANCE = (
    "TABLESAMPLE SYSTEM ((SELECT least(100, 100 * $2 / greatest(reltuples, 1))"
    " FROM pg_class WHERE oid = 'payment'::regclass))"
)
_ENDED = "payment_id, (signed_at AT TIME ZONE 'UTC')::date, network_lamports"
# What carries the time of a block: table, its state then, and since when it is so.
_TIMED: Final = (
    ("spend", "settled", "settled_at"),
    ("withdrawal", "settled", "settled_at"),
    ("deposit", "credited", "credited_at"),
)
_WATCH = "mode, timeline, quiet_until_height, careful_before, explained_slot"


# Payments ----------------------------------------------------------------------------------------


async def claim_payments(tx: Tx, mode: Mode, limit: int) -> list[PaymentRow]:
    """Takes payments for which nothing signed is alive, oldest first, so that nobody else does.

    A spend or withdrawal becomes a payment the first time it is claimed: not before those that are
    payments already are claimed, because to look for new ones means to pass over all of the others.
    """
    claimed = await _claim_due(tx, mode, limit)
    if missing := limit - len(claimed):
        await tx.execute(_ENTER_NEW, mode, missing)
        claimed += await _claim_due(tx, mode, missing)
    return sorted(claimed, key=lambda payment: payment.created_at)


# Sub-queries that give one value keep the planner from joining: it would read all that waits, and
# not just the oldest in the order of their index.
_NEW: Final = (
    "(SELECT o.id, $1, o.realm_id, o.agent_id, o.amount_micros, {destination}, clock_timestamp(),"
    " o.created_at FROM {table} o WHERE o.status = '{status}'"
    " AND coalesce((SELECT r.mode = $1 FROM realm r WHERE r.id = o.realm_id), false)"
    " AND coalesce((SELECT false FROM payment p WHERE p.id = o.id), true)"
    " AND coalesce((SELECT false FROM quarantine q WHERE q.agent_id = o.agent_id"
    " AND q.duty = 'settle' AND q.next_try_at > clock_timestamp()), true){{only}}"
    " ORDER BY o.created_at, o.id LIMIT $2)"
)
_ALL_NEW: Final = (
    f"{_NEW.format(table='spend', status='approved', destination='o.pay_to')} UNION ALL"
    f" {_NEW.format(table='withdrawal', status='pending', destination='o.destination')}"
)
_ENTER: Final = (
    "INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, leased_until,"
    f" created_at) {_ALL_NEW} ON CONFLICT (id) DO NOTHING"
)
_ENTER_NEW: Final = _ENTER.format(only="")
_ENTER_THESE: Final = _ENTER.format(only=" AND o.id = ANY($3::text[])")


async def new_payments(tx: Tx, mode: Mode, limit: int) -> list[NewPayment]:
    """Spends and withdrawals that would become payments if they were claimed now."""
    rows = await tx.fetch(
        f"SELECT id, agent_id FROM ({_ALL_NEW.format(only='')}) AS n", mode, limit
    )
    return [NewPayment(**dict(row.items())) for row in rows]


async def enter_payments(tx: Tx, mode: Mode, new: Sequence[NewPayment]) -> None:
    await tx.execute(_ENTER_THESE, mode, len(new), [payment.id for payment in new])


async def _claim_due(tx: Tx, mode: Mode, limit: int) -> list[PaymentRow]:
    rows = await tx.fetch(
        "WITH due AS (SELECT p.id FROM payment p JOIN wallet w ON w.agent_id = p.agent_id"
        " WHERE p.mode = $1 AND p.state = 'waiting' AND (p.leased_until <= clock_timestamp() OR"
        f" p.leased_until > clock_timestamp() + interval '{_CLOCK_WAS_SET_BACK}')"
        f" AND NOT w.is_frozen AND {_MAY_BE_TRIED}"
        " ORDER BY p.created_at LIMIT $2 FOR UPDATE OF p SKIP LOCKED)"
        f" UPDATE payment p SET leased_until = clock_timestamp() + interval '{_LEASE}'"
        f" FROM due, wallet w WHERE p.id = due.id AND w.agent_id = p.agent_id RETURNING {_PAYMENT}",
        mode,
        limit,
    )
    return [_payment(row) for row in rows]


async def release_payments(
    tx: Tx, payment_ids: Sequence[str], after_seconds: int, problem: str | None
) -> None:
    """Gives claimed payments back, to be tried again after a while."""
    await tx.execute(
        "UPDATE payment SET leased_until = clock_timestamp() + make_interval(secs => $2),"
        " problem = $3 WHERE id = ANY($1) AND state = 'waiting'",
        payment_ids,
        float(after_seconds),
        problem,
    )


async def insert_submissions(
    tx: Tx, submissions: Sequence[NewSubmission], known_timeline: str, account_lamports: int
) -> Stored:
    """Stores what was signed, if nothing else of the payment is alive and its account can pay.

    The payment's row is locked first, so that of two workers one signs in vain and sends nothing.
    The same for one that signed before a failover and stores after it.
    """
    if await timeline(tx) != known_timeline:
        return Stored(set(), set())
    ids = [s.payment.id for s in submissions]
    rows = await tx.fetch(
        "SELECT p.id, p.attempts FROM payment p JOIN wallet w ON w.agent_id = p.agent_id"
        " WHERE p.id = ANY($1) AND p.state = 'waiting' AND NOT w.is_frozen"
        " ORDER BY p.id FOR UPDATE OF p",
        ids,
    )
    free = {row["id"]: row["attempts"] for row in rows}
    kept = [s for s in submissions if free.get(s.payment.id) == s.attempt - 1]
    costs = [s.cost for s in kept]
    admitted, over_budget = await cost_store.admit(tx, costs, account_lamports)
    kept = [s for s in kept if s.payment.id in admitted]
    if kept:
        await tx.execute(
            "INSERT INTO submission (payment_id, attempt, mode, state, raw, signature, blockhash,"
            " last_valid_height, signed_slot, opens_account, network_lamports, next_check_at)"
            f" SELECT s.*, clock_timestamp() + interval '{_FIRST_LOOK}'"
            " FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::bytea[], $6::text[],"
            " $7::text[], $8::bigint[], $9::bigint[], $10::boolean[], $11::bigint[]) AS s",
            [s.payment.id for s in kept],
            [s.attempt for s in kept],
            [s.payment.mode for s in kept],
            ["live"] * len(kept),
            [s.raw for s in kept],
            [s.signature for s in kept],
            [s.blockhash for s in kept],
            [s.last_valid_height for s in kept],
            [s.signed_slot for s in kept],
            [s.opens_account for s in kept],
            [s.network_lamports for s in kept],
        )
        await tx.execute(
            "UPDATE payment SET state = 'live', attempts = attempts + 1, problem = NULL"
            " WHERE id = ANY($1)",
            [s.payment.id for s in kept],
        )
    return Stored({s.payment.id for s in kept}, over_budget)


async def insert_adopted(tx: Tx, withdrawal_id: str) -> None:
    """A withdrawal that was made without an attempt of ours, as a payment that is settled."""
    await tx.execute(
        "INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, state,"
        " leased_until, problem, created_at)"
        " SELECT o.id, r.mode, o.realm_id, o.agent_id, o.amount_micros, o.destination, 'settled',"
        " clock_timestamp(), 'found on the chain', o.created_at"
        " FROM withdrawal o JOIN realm r ON r.id = o.realm_id WHERE o.id = $1",
        withdrawal_id,
    )


async def in_the_books(tx: Tx, token_account: str, signatures: Sequence[str]) -> set[str]:
    """Those of the transactions that are attempts of ours, payments that were found on the chain,
    or deposits into this account. What another wallet of ours received explains nothing here."""
    rows = await tx.fetch(
        "SELECT signature FROM submission WHERE signature = ANY($2)"
        " UNION ALL SELECT signature FROM spend WHERE signature = ANY($2)"
        " UNION ALL SELECT signature FROM withdrawal WHERE signature = ANY($2)"
        " UNION ALL SELECT signature FROM deposit WHERE signature = ANY($2) AND token_account = $1",
        token_account,
        signatures,
    )
    return {row["signature"] for row in rows}


async def still_to_pay(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Those of the ids that are spends or withdrawals the worker has yet to settle, or will once
    they are approved: then it finds them on the chain."""
    rows = await tx.fetch(
        "SELECT id FROM spend WHERE id = ANY($1) AND status IN ('pending', 'approved')"
        " UNION ALL SELECT id FROM withdrawal WHERE id = ANY($1) AND status = 'pending'",
        ids,
    )
    return {row["id"] for row in rows}


async def settled_after(tx: Tx, mode: Mode, after: str, limit: int) -> list[SettledRow]:
    """Payments that were made, in the order of their ids."""
    rows = await tx.fetch(
        f"{_SETTLED} WHERE p.mode = $1 AND p.state = 'settled' AND p.id > $2"
        " ORDER BY p.id LIMIT $3",
        mode,
        after,
        limit,
    )
    return [SettledRow(**dict(row.items())) for row in rows]


async def settled_samples(tx: Tx, mode: Mode, count: int) -> list[SettledRow]:
    """The newest payments that were made, and about as many others by chance."""
    rows = await tx.fetch(
        f"({_SETTLED} WHERE p.mode = $1 AND p.state = 'settled' ORDER BY p.id DESC LIMIT $2)"
        f" UNION ({_SETTLED.replace('payment p', f'payment p {_BY_CHANCE}')}"
        " WHERE p.mode = $1 AND p.state = 'settled' LIMIT $2)",
        mode,
        count,
    )
    return [SettledRow(**dict(row.items())) for row in rows]


async def mode_of(tx: Tx, agent_id: str) -> Mode | None:
    return await tx.fetchval(
        "SELECT r.mode FROM wallet w JOIN realm r ON r.id = w.realm_id WHERE w.agent_id = $1",
        agent_id,
    )


async def fail_payment(
    tx: Tx, payment_id: str, problem: str, was: Literal["waiting", "live"]
) -> bool:
    """False when it is closed already, or an attempt of it is alive. `was` keeps one that nothing
    was signed for from failing when another worker has just stored an attempt: that changes the
    state, and the state is read again under the row's lock, which a look at attempts is not."""
    status = await tx.execute(
        "UPDATE payment SET state = 'failed', problem = $2 WHERE id = $1 AND state = $3"
        " AND NOT EXISTS (SELECT FROM submission WHERE payment_id = $1 AND state = 'live')",
        payment_id,
        problem,
        was,
    )
    return status == "UPDATE 1"


# Attempts ----------------------------------------------------------------------------------------


async def claim_submissions(tx: Tx, mode: Mode, limit: int) -> list[SubmissionRow]:
    """Takes live attempts that are due for a look."""
    rows = await tx.fetch(
        "WITH due AS (SELECT s.payment_id, s.attempt FROM submission s"
        " JOIN payment p ON p.id = s.payment_id WHERE s.mode = $1 AND s.state = 'live'"
        " AND (s.next_check_at <= clock_timestamp() OR s.next_check_at > clock_timestamp()"
        f" + interval '{_CLOCK_WAS_SET_BACK}') AND {_MAY_BE_TRIED}"
        " ORDER BY s.next_check_at LIMIT $2 FOR UPDATE OF s SKIP LOCKED)"
        f" UPDATE submission s SET next_check_at = clock_timestamp() + interval '{_LEASE}',"
        " checks = s.checks + 1 FROM due, payment p, wallet w"
        " WHERE s.payment_id = due.payment_id AND s.attempt = due.attempt"
        " AND p.id = s.payment_id AND w.agent_id = p.agent_id"
        " RETURNING s.attempt, s.raw, s.signature, s.last_valid_height, s.signed_slot, s.checks,"
        f" s.refusal, s.in_doubt, {_PAYMENT}",
        mode,
        limit,
    )
    return [_submission(row) for row in rows]


async def look_now(tx: Tx, payment_ids: Sequence[str]) -> None:
    """They were sent: somebody may look at them."""
    await tx.execute(
        "UPDATE submission SET next_check_at = clock_timestamp()"
        " WHERE payment_id = ANY($1) AND state = 'live' AND checks = 0",
        payment_ids,
    )


async def look_again(tx: Tx, looks: Sequence[Look]) -> None:
    await tx.execute(
        "UPDATE submission s SET refusal = n.refusal, in_doubt = n.in_doubt,"
        " next_check_at = clock_timestamp() + make_interval(secs => n.seconds)"
        " FROM unnest($1::text[], $2::int[], $3::float8[], $4::text[], $5::boolean[])"
        " AS n (payment_id, attempt, seconds, refusal, in_doubt)"
        " WHERE s.payment_id = n.payment_id AND s.attempt = n.attempt AND s.state = 'live'",
        [look.submission.payment.id for look in looks],
        [look.submission.attempt for look in looks],
        [look.seconds for look in looks],
        [look.submission.refusal if look.refusal is UNSET else look.refusal for look in looks],
        [look.in_doubt for look in looks],
    )


async def bury_submission(
    tx: Tx, payment_id: str, attempt: int, outcome: str, fee_lamports: int | None
) -> Ended | None:
    """live -> dead; None when somebody else ended it. A fee was paid if it failed on the chain."""
    row = await tx.fetchrow(
        "UPDATE submission SET state = 'dead', outcome = $3, fee_lamports = $4, in_doubt = false"
        f" WHERE payment_id = $1 AND attempt = $2 AND state = 'live' RETURNING {_ENDED}",
        payment_id,
        attempt,
        outcome,
        fee_lamports,
    )
    if row is not None and fee_lamports:
        await tx.execute(
            "UPDATE payment SET cost_lamports = cost_lamports + $2 WHERE id = $1",
            payment_id,
            fee_lamports,
        )
    return None if row is None else Ended(*row)


async def settle_payments(tx: Tx, paid: Sequence[Paid]) -> tuple[set[str], list[Ended]]:
    """Those of the payments that this call settled, and the attempts that ended with that.

    A payment found on the chain without its attempt here (after a restore) says so.
    """
    payments, signatures, _, fees, _ = zip(*paid, strict=True)
    rows = await tx.fetch(
        "UPDATE payment p SET state = 'settled', problem = CASE WHEN s.payment_id IS NULL"
        " THEN 'found on the chain' END"
        " FROM unnest($1::text[], $2::text[]) AS l (id, signature)"
        " LEFT JOIN submission s ON s.payment_id = l.id AND s.signature = l.signature"
        " WHERE p.id = l.id AND p.state IN ('waiting', 'live') RETURNING p.id",
        payments,
        signatures,
    )
    ended = await tx.fetch(
        "UPDATE submission s SET state = 'settled', outcome = 'finalized', in_doubt = false,"
        " fee_lamports = l.fee FROM unnest($1::text[], $2::bigint[]) AS l (signature, fee)"
        f" WHERE s.signature = l.signature AND s.state = 'live' RETURNING {_ENDED}",
        signatures,
        fees,
    )
    # Made by an attempt that this database forgot: the one it knows has expired.
    ended += await tx.fetch(
        "UPDATE submission SET state = 'dead', outcome = 'paid by another', in_doubt = false"
        f" WHERE payment_id = ANY($1) AND state = 'live' RETURNING {_ENDED}",
        [row["id"] for row in rows],
    )
    return {row["id"] for row in rows}, [Ended(*row) for row in ended]


async def let_payment_wait(tx: Tx, payment_id: str, problem: str) -> None:
    """Its attempt is dead: another may be signed."""
    await tx.execute(
        "UPDATE payment SET state = 'waiting', leased_until = clock_timestamp(), problem = $2"
        " WHERE id = $1 AND state = 'live'",
        payment_id,
        problem,
    )


async def backlog(tx: Tx, mode: Mode) -> Row:
    """waiting, live, in_doubt, and the age in seconds of the oldest open payment."""
    row = await tx.fetchrow(
        "SELECT count(*) FILTER (WHERE p.state = 'waiting') AS waiting,"
        " count(*) FILTER (WHERE p.state = 'live') AS live,"
        " count(*) FILTER (WHERE s.in_doubt) AS in_doubt,"
        " coalesce(extract(epoch FROM clock_timestamp() - min(p.created_at)), 0)::float8 AS oldest"
        " FROM payment p LEFT JOIN submission s ON s.payment_id = p.id AND s.state = 'live'"
        " WHERE p.mode = $1 AND p.state IN ('waiting', 'live')",
        mode,
    )
    return present(row, "the statement returns a row")


# The watch ---------------------------------------------------------------------------------------


async def timeline(tx: Tx) -> str:
    """Which history this database is: another one after a promotion, a restore to a point in time,
    or a restore of a dump into a new cluster."""
    return await tx.fetchval("SELECT history()")


async def get_watch(tx: Tx, mode: Mode) -> Watch | None:
    row = await tx.fetchrow(f"SELECT {_WATCH} FROM settlement_watch WHERE mode = $1", mode)
    return None if row is None else Watch(**dict(row.items()))


async def put_watch(
    tx: Tx, mode: Mode, timeline: str, quiet_until_height: int, careful: bool
) -> Watch:
    """A new timeline is written once: whoever comes later gets what the first one wrote."""
    row = await tx.fetchrow(
        "INSERT INTO settlement_watch AS w (mode, timeline, quiet_until_height, careful_before)"
        " VALUES ($1, $2, $3, CASE WHEN $4"
        f" THEN clock_timestamp() + interval '{_CLOCKS_DIFFER}' END)"
        " ON CONFLICT (mode) DO UPDATE SET timeline = excluded.timeline,"
        " quiet_until_height = CASE WHEN w.timeline = excluded.timeline"
        " THEN w.quiet_until_height ELSE excluded.quiet_until_height END,"
        " careful_before = CASE WHEN w.timeline = excluded.timeline"
        " THEN w.careful_before ELSE excluded.careful_before END,"
        " explained_slot = CASE WHEN w.timeline = excluded.timeline THEN w.explained_slot END"
        f" RETURNING {_WATCH}",
        mode,
        timeline,
        quiet_until_height,
        careful,
    )
    row = present(row, "the statement returns a row")
    return Watch(**dict(row.items()))


async def put_explained(tx: Tx, watch: Watch, slot: int) -> None:
    """The first look after the quiet: what landed until now needs no other explanation."""
    await tx.execute(
        "UPDATE settlement_watch SET explained_slot = $3"
        " WHERE mode = $1 AND timeline = $2 AND explained_slot IS NULL",
        watch.mode,
        watch.timeline,
        slot,
    )


async def forget_timelines(tx: Tx, *modes: Mode) -> int:
    """Makes the workers of these modes, or of all, take the database for one that was restored;
    returns how many."""
    status = await tx.execute(
        "UPDATE settlement_watch SET timeline = 'restored' WHERE mode = ANY($1::text[])",
        modes or MODES,
    )
    return int(status.rpartition(" ")[2])


async def known_attempts(tx: Tx, signatures: Sequence[str]) -> set[str]:
    rows = await tx.fetch(
        "SELECT signature FROM submission WHERE signature = ANY($1::text[])", signatures
    )
    return {row["signature"] for row in rows}


async def without_block_time(tx: Tx, mode: Mode, limit: int) -> list[str]:
    """Signatures of what was settled or credited within a week, by a node that did not know yet
    when the block was made."""
    rows = await tx.fetch(
        " UNION ".join(
            f"(SELECT t.signature FROM {table} t JOIN realm r ON r.id = t.realm_id"
            f" WHERE r.mode = $1 AND t.status = '{status}' AND t.block_time IS NULL"
            f" AND t.{at} > clock_timestamp() - interval '7 days' ORDER BY t.{at} DESC LIMIT $2)"
            for table, status, at in _TIMED
        ),
        mode,
        limit,
    )
    return [row["signature"] for row in rows]


async def fill_block_times(tx: Tx, times: Mapping[str, int]) -> None:
    for table, status, _ in _TIMED:
        await tx.execute(
            f"UPDATE {table} t SET block_time = n.block_time"
            " FROM unnest($1::text[], $2::bigint[]) AS n (signature, block_time)"
            f" WHERE t.signature = n.signature AND t.status = '{status}' AND t.block_time IS NULL",
            list(times.keys()),
            list(times.values()),
        )


# Wallets against the chain -----------------------------------------------------------------------


async def ledger_now(tx: Tx, agent_ids: Sequence[str]) -> dict[str, LedgerNow]:
    """In one snapshot. A payment may have left if an attempt is live, or if it is open and older
    than a restore, which may have forgotten an attempt."""
    rows = await tx.fetch(
        "WITH alive AS (SELECT p.agent_id, sum(p.amount_micros) AS micros FROM payment p"
        " LEFT JOIN settlement_watch s ON s.mode = p.mode"
        # Only open ones are in an index, and there are never many.
        " WHERE p.state IN ('waiting', 'live') AND p.agent_id = ANY($1::text[])"
        " AND (p.state = 'live' OR p.created_at <= s.careful_before) GROUP BY 1)"
        " SELECT w.agent_id, w.credits_posted::bigint AS credits_micros,"
        " w.debits_posted::bigint AS debits_micros, coalesce(a.micros, 0)::bigint AS alive_micros"
        " FROM wallet w LEFT JOIN alive a USING (agent_id) WHERE w.agent_id = ANY($1::text[])",
        agent_ids,
    )
    return {
        row["agent_id"]: LedgerNow(
            credits_micros=row["credits_micros"],
            debits_micros=row["debits_micros"],
            alive_micros=row["alive_micros"],
        )
        for row in rows
    }


async def deposit_cursor(tx: Tx, agent_id: str) -> str | None:
    return await tx.fetchval("SELECT signature FROM deposit_cursor WHERE agent_id = $1", agent_id)


async def accounted_for(
    tx: Tx, agent_id: str, token_account: str, signatures: Sequence[str]
) -> set[str]:
    """Those of the signatures that are credited deposits of this account, or its own payments, or
    noted as unreadable: those have a look of their own."""
    rows = await tx.fetch(
        "SELECT signature FROM deposit"
        " WHERE token_account = $2 AND status = 'credited' AND signature = ANY($3::text[])"
        " UNION ALL SELECT signature FROM unread_deposit"
        " WHERE token_account = $2 AND signature = ANY($3::text[])"
        " UNION ALL SELECT s.signature FROM submission s JOIN payment p ON p.id = s.payment_id"
        " WHERE p.agent_id = $1 AND s.signature = ANY($3::text[])",
        agent_id,
        token_account,
        signatures,
    )
    return {row["signature"] for row in rows}


async def put_deposit_cursor(tx: Tx, agent_id: str, signature: str) -> None:
    await tx.execute(
        "INSERT INTO deposit_cursor (agent_id, signature) VALUES ($1, $2)"
        " ON CONFLICT (agent_id) DO UPDATE SET signature = excluded.signature",
        agent_id,
        signature,
    )


def _payment(row: Row) -> PaymentRow:
    return PaymentRow(
        id=row["id"],
        mode=row["mode"],
        realm_id=row["realm_id"],
        agent_id=row["agent_id"],
        amount_micros=row["amount_micros"],
        destination=row["destination"],
        source=row["source"],
        mint=row["mint"],
        attempts=row["attempts"],
        created_at=row["created_at"],
        set_aside=row["set_aside"],
        held_lamports=row["held_lamports"],
        cost_lamports=row["cost_lamports"],
    )


def _submission(row: Row) -> SubmissionRow:
    return SubmissionRow(
        payment=_payment(row),
        attempt=row["attempt"],
        raw=row["raw"],
        signature=row["signature"],
        last_valid_height=row["last_valid_height"],
        signed_slot=row["signed_slot"],
        checks=row["checks"],
        refusal=row["refusal"],
        in_doubt=row["in_doubt"],
    )
