"""Queries on what the books say, to be compared with the chain or completed from it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, get_args

from bursar.config import Mode
from bursar.db import Tx
from bursar.settlement.model import LedgerNow, SettledRow
from bursar.settlement.payment_store import of_spend
from bursar.sql import Query, made

# Transactions ------------------------------------------------------------------------------------

_IN_THE_BOOKS = Query("""
    SELECT signature FROM submission WHERE signature = ANY(:signatures)
    UNION ALL
    SELECT signature FROM spend WHERE signature = ANY(:signatures)
    UNION ALL
    SELECT signature FROM withdrawal WHERE signature = ANY(:signatures)
    UNION ALL
    SELECT signature FROM deposit
     WHERE signature = ANY(:signatures) AND token_account = :token_account
""")
_ACCOUNTED_FOR = Query("""
    SELECT signature FROM deposit
     WHERE token_account = :token_account AND status = 'credited'
       AND signature = ANY(:signatures::text[])
    UNION ALL
    SELECT signature FROM unread_deposit
     WHERE token_account = :token_account AND signature = ANY(:signatures::text[])
    UNION ALL
    SELECT s.signature FROM submission s JOIN payment p ON p.id = s.payment_id
     WHERE p.agent_id = :agent_id AND s.signature = ANY(:signatures::text[])
    UNION ALL
    SELECT signature FROM spend
     WHERE agent_id = :agent_id AND purchase_id IS NOT NULL
       AND signature = ANY(:signatures::text[])
""")
_STILL_TO_PAY = Query("""
    SELECT id FROM spend WHERE id = ANY(:ids) AND status IN ('pending', 'approved')
    UNION ALL
    SELECT id FROM withdrawal WHERE id = ANY(:ids) AND status = 'pending'
    UNION ALL
    SELECT id FROM purchase WHERE id = ANY(:ids) AND status IN ('open', 'pending', 'presented')
""")
_UNSIGNED = Query("""
    SELECT id
      FROM purchase
     WHERE agent_id = :agent_id AND status IN ('open', 'pending')
       AND amount_micros = :amount_micros AND pay_to = :pay_to
""")
_PRESENTED_WITH = Query("""
    SELECT id
      FROM purchase
     WHERE signature = ANY(:signatures::text[]) AND status = 'presented'
""")


async def in_the_books(tx: Tx, token_account: str, signatures: Sequence[str]) -> set[str]:
    """Those of the transactions that are attempts of ours, payments that were found on the chain,
    or deposits into this account. What another wallet of ours received explains nothing here."""
    rows = await _IN_THE_BOOKS.rows(tx, token_account=token_account, signatures=signatures)
    return {row["signature"] for row in rows}


async def accounted_for(
    tx: Tx, agent_id: str, token_account: str, signatures: Sequence[str]
) -> set[str]:
    """Those of the signatures that are credited deposits of this account, or its own payments, or
    noted as unreadable: those have a look of their own."""
    rows = await _ACCOUNTED_FOR.rows(
        tx, agent_id=agent_id, token_account=token_account, signatures=signatures
    )
    return {row["signature"] for row in rows}


async def presented_with(tx: Tx, signatures: Sequence[str]) -> set[str]:
    """The purchases that one of these was signed for, of those that the worker has yet to end."""
    return {row["id"] for row in await _PRESENTED_WITH.rows(tx, signatures=signatures)}


async def still_to_pay(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Those of the ids that are spends or withdrawals the worker has yet to settle, or will once
    they are approved: then it finds them on the chain. And purchases that are not over: where the
    seller asks for no memo, theirs is their id."""
    return {row["id"] for row in await _STILL_TO_PAY.rows(tx, ids=ids)}


async def unsigned_purchases(tx: Tx, agent_id: str, amount_micros: int, pay_to: str) -> list[str]:
    """Those of this price and payee that were not signed for, as far as this database knows."""
    rows = await _UNSIGNED.rows(tx, agent_id=agent_id, amount_micros=amount_micros, pay_to=pay_to)
    return [row["id"] for row in rows]


# Settled payments --------------------------------------------------------------------------------


Made = Literal["payment", "purchase"]
MADE: Final[tuple[Made, ...]] = get_args(Made)


def _payments(sample: str) -> str:
    """One that an operator entered by hand is `adopted`: it has no memo of ours."""
    return f"""
    SELECT p.id, p.amount_micros, p.destination, w.address AS source, w.mint,
           (SELECT k.address FROM system_key k WHERE k.owner = 'fee_payer:' || p.mode) AS fee_payer,
           coalesce(s.signature, d.signature) AS signature,
           coalesce(d.created_by = 'system', false) AS adopted, NULL AS signed
      FROM payment p {sample}
      JOIN wallet w ON w.agent_id = p.agent_id
      LEFT JOIN spend s ON s.id = p.id
      LEFT JOIN withdrawal d ON d.id = p.id
     WHERE p.mode = :mode AND p.state = 'settled'"""


def _purchases(sample: str) -> str:
    return f"""
    SELECT p.id, p.amount_micros, p.pay_to AS destination, w.address AS source, w.mint,
           p.fee_payer, s.signature, false AS adopted, p.signature AS signed
      FROM purchase p {sample}
      JOIN wallet w ON w.agent_id = p.agent_id
      JOIN spend s ON s.id = p.spend_id
     WHERE p.mode = :mode AND p.status = 'paid'"""


_SETTLED: Final[dict[Made, Callable[[str], str]]] = {
    "payment": _payments,
    "purchase": _purchases,
}
_SETTLED_AFTER = {
    kind: Query(f"""
    {settled("")} AND p.id > :after
     ORDER BY p.id
     LIMIT :limit
    """)
    for kind, settled in _SETTLED.items()
}


def _by_chance(kind: Made) -> str:
    """As many as are wanted of as many as the planner believes there are."""
    return f"""
           TABLESAMPLE SYSTEM ((SELECT least(100, 100 * :count / greatest(reltuples, 1))
                                  FROM pg_class
                                 WHERE oid = '{kind}'::regclass))"""


_SAMPLES = {
    kind: Query(f"""
    ({settled("")}
     ORDER BY p.id DESC
     LIMIT :count)
    UNION
    ({settled(_by_chance(kind))}
     LIMIT :count)
    """)
    for kind, settled in _SETTLED.items()
}


async def settled_after(tx: Tx, mode: Mode, kind: Made, after: str, limit: int) -> list[SettledRow]:
    """Payments or purchases that were made, in the order of their ids."""
    rows = await _SETTLED_AFTER[kind].rows(tx, mode=mode, after=after, limit=limit)
    return [made(SettledRow, row) for row in rows]


async def settled_samples(tx: Tx, mode: Mode, kind: Made, count: int) -> list[SettledRow]:
    """The newest that were made, and about as many others by chance."""
    rows = await _SAMPLES[kind].rows(tx, mode=mode, count=count)
    return [made(SettledRow, row) for row in rows]


# Wallets -----------------------------------------------------------------------------------------

_MODE = Query("""
    SELECT r.mode
      FROM wallet w
      JOIN realm r ON r.id = w.realm_id
     WHERE w.agent_id = :agent_id
""")
# Only open payments are in an index, and there are never many.
_LEDGER_NOW = Query(f"""
    WITH alive AS (
      SELECT p.agent_id, sum(p.amount_micros) AS micros
        FROM payment p
        LEFT JOIN settlement_watch s ON s.mode = p.mode
        {of_spend("p.id")}
       WHERE p.state IN ('waiting', 'live') AND p.agent_id = ANY(:agent_ids::text[])
         AND (p.state = 'live' OR coalesce(o.created_at, p.created_at) <= s.careful_before)
       GROUP BY p.agent_id
    ), presented AS (
      SELECT p.agent_id, sum(p.amount_micros) AS micros
        FROM purchase p
       WHERE p.status = 'presented' AND p.agent_id = ANY(:agent_ids::text[])
       GROUP BY p.agent_id
    )
    SELECT w.agent_id, w.credits_posted::bigint AS credits_micros,
           w.debits_posted::bigint AS debits_micros,
           (coalesce(a.micros, 0) + coalesce(b.micros, 0))::bigint AS alive_micros
      FROM wallet w
      LEFT JOIN alive a USING (agent_id)
      LEFT JOIN presented b USING (agent_id)
     WHERE w.agent_id = ANY(:agent_ids::text[])
""")
_CURSOR = Query("""
    SELECT signature
      FROM deposit_cursor
     WHERE agent_id = :agent_id
""")
_PUT_CURSOR = Query("""
    INSERT INTO deposit_cursor (agent_id, signature)
    VALUES (:agent_id, :signature)
        ON CONFLICT (agent_id) DO UPDATE
       SET signature = excluded.signature
""")


async def mode_of(tx: Tx, agent_id: str) -> Mode | None:
    return await _MODE.value(tx, agent_id=agent_id)


async def ledger_now(tx: Tx, agent_ids: Sequence[str]) -> dict[str, LedgerNow]:
    """In one snapshot. A payment may have left if an attempt is live, or if it is open and older
    than a restore, which may have forgotten an attempt; a purchase, if it was presented."""
    rows = await _LEDGER_NOW.rows(tx, agent_ids=agent_ids)
    return {row["agent_id"]: made(LedgerNow, row) for row in rows}


async def deposit_cursor(tx: Tx, agent_id: str) -> str | None:
    """Until where the history of the wallet's token account was read."""
    return await _CURSOR.value(tx, agent_id=agent_id)


async def put_deposit_cursor(tx: Tx, agent_id: str, signature: str) -> None:
    await _PUT_CURSOR.run(tx, agent_id=agent_id, signature=signature)


# Block times -------------------------------------------------------------------------------------

# What carries the time of a block: table, its state then, and since when it is so.
_TIMED: Final = (
    ("spend", "settled", "settled_at"),
    ("withdrawal", "settled", "settled_at"),
    ("deposit", "credited", "credited_at"),
)
_WITHOUT_TIME = Query(
    " UNION ".join(
        f"""
    (SELECT t.signature
       FROM {table} t
       JOIN realm r ON r.id = t.realm_id
      WHERE r.mode = :mode AND t.status = '{status}' AND t.block_time IS NULL
        AND t.{at} > clock_timestamp() - interval '7 days'
      ORDER BY t.{at} DESC
      LIMIT :limit)
    """
        for table, status, at in _TIMED
    )
)
_FILL_TIMES = {
    table: Query(f"""
    UPDATE {table} t
       SET block_time = n.block_time
      FROM unnest(:signatures::text[], :block_times::bigint[]) AS n (signature, block_time)
     WHERE t.signature = n.signature AND t.status = '{status}' AND t.block_time IS NULL
    """)
    for table, status, _ in _TIMED
}


async def without_block_time(tx: Tx, mode: Mode, limit: int) -> list[str]:
    """Signatures of what was settled or credited within a week, by a node that did not know yet
    when the block was made."""
    return [row["signature"] for row in await _WITHOUT_TIME.rows(tx, mode=mode, limit=limit)]


async def fill_block_times(tx: Tx, times: Mapping[str, int]) -> None:
    for query in _FILL_TIMES.values():
        await query.run(tx, signatures=list(times.keys()), block_times=list(times.values()))
