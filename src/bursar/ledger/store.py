"""Queries on the counters of wallets, the journal and its seals."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bursar.advisory import SEALING
from bursar.db import Tx
from bursar.ledger.model import LockedWallet, Transfer
from bursar.sql import Query, columns, made

_UPDATE_WALLETS = Query("""
    UPDATE wallet w
       SET status = a.status, credits_posted = a.credits_posted, debits_posted = a.debits_posted,
           debits_pending = a.debits_pending, transfers = a.transfers,
           is_low = a.is_low, last_funded_at = a.last_funded_at
      FROM unnest(:agent_ids::text[], :statuses::text[], :credits_posted::bigint[],
                  :debits_posted::bigint[], :debits_pending::bigint[], :transfers::bigint[],
                  :is_low::boolean[], :last_funded_at::timestamptz[])
           AS a (agent_id, status, credits_posted, debits_posted, debits_pending, transfers,
                 is_low, last_funded_at)
     WHERE w.agent_id = a.agent_id
""")


async def insert_transfers(tx: Tx, transfers: Sequence[Transfer]) -> None:
    await tx.copy_records_to_table(
        "transfer",
        columns=Transfer.__struct_fields__,
        records=[msgspec.structs.astuple(transfer) for transfer in transfers],
    )


async def update_wallets(tx: Tx, wallets: Sequence[LockedWallet]) -> None:
    await _UPDATE_WALLETS.run(
        tx,
        agent_ids=[w.agent_id for w in wallets],
        statuses=[w.status for w in wallets],
        credits_posted=[w.credits_posted for w in wallets],
        debits_posted=[w.debits_posted for w in wallets],
        debits_pending=[w.debits_pending for w in wallets],
        transfers=[w.transfers for w in wallets],
        is_low=[w.is_low for w in wallets],
        last_funded_at=[w.last_funded_at for w in wallets],
    )


# The seal ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SealedTransfer:
    xact: int
    agent_id: str
    number: int
    kind: str
    subject_id: str
    amount_micros: int
    credits_posted_after: int
    debits_posted_after: int
    debits_pending_after: int
    created_at_millis: int

    def line(self) -> str:
        """All that is sealed of a transfer. No field can hold a space or a line break."""
        return (
            f"{self.agent_id} {self.number} {self.kind} {self.subject_id} {self.amount_micros}"
            f" {self.credits_posted_after} {self.debits_posted_after} {self.debits_pending_after}"
            f" {self.created_at_millis}\n"
        )


_LOCK_SEAL = Query("SELECT pg_try_advisory_xact_lock(:lock)")
_LAST_SEAL = Query("""
    SELECT number, xact_below::text::bigint AS below, hash
      FROM seal
     ORDER BY number DESC
     LIMIT 1
""")
_OLDEST_RUNNING = Query("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
_TRANSFERS_BETWEEN = Query(f"""
    SELECT {columns(SealedTransfer, but=["xact", "created_at_millis"])},
           xact::text::bigint AS xact,
           (extract(epoch FROM created_at) * 1000)::bigint AS created_at_millis
      FROM transfer
     WHERE xact >= :start::text::xid8 AND xact < :end::text::xid8
     ORDER BY transfer.xact, agent_id, number
     LIMIT :limit
""")
_INSERT_SEAL = Query("""
    INSERT INTO seal (number, xact_below, transfer_count, hash)
    VALUES (:number, :below::text::xid8, :count, :hash)
""")
_SEALS_AFTER = Query("""
    SELECT number, xact_below::text::bigint AS below, transfer_count, hash
      FROM seal
     WHERE number > :number
     ORDER BY number
     LIMIT :limit
""")


async def lock_seal(tx: Tx) -> bool:
    """False when another process is sealing."""
    return await _LOCK_SEAL.value(tx, lock=SEALING)


async def last_seal(tx: Tx) -> tuple[int, int, bytes] | None:
    """(number, first transaction not sealed, hash)."""
    row = await _LAST_SEAL.row(tx)
    return None if row is None else (row["number"], row["below"], row["hash"])


async def oldest_running(tx: Tx) -> int:
    """Every transaction below this number has ended, and what it wrote can be seen."""
    return await _OLDEST_RUNNING.value(tx)


async def transfers_between(
    tx: Tx, start: int, end: int, limit: int | None
) -> list[SealedTransfer]:
    """Transfers written by transactions from `start` to before `end`, in the chain's order."""
    rows = await _TRANSFERS_BETWEEN.rows(tx, start=str(start), end=str(end), limit=limit)
    return [made(SealedTransfer, row) for row in rows]


async def insert_seal(tx: Tx, number: int, below: int, count: int, hash_: bytes) -> None:
    await _INSERT_SEAL.run(tx, number=number, below=str(below), count=count, hash=hash_)


async def seals_after(tx: Tx, number: int, limit: int) -> list[tuple[int, int, int, bytes]]:
    """(number, first transaction not covered, transfers, hash) in order."""
    rows = await _SEALS_AFTER.rows(tx, number=number, limit=limit)
    return [(row["number"], row["below"], row["transfer_count"], row["hash"]) for row in rows]
