"""Queries on the counters of wallets, the journal and its seals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from bursar.db import Tx
from bursar.ledger.model import LockedWallet, Transfer


async def insert_transfers(tx: Tx, transfers: Sequence[Transfer]) -> None:
    await tx.copy_records_to_table(
        "transfer",
        columns=Transfer.__struct_fields__,
        records=[msgspec.structs.astuple(transfer) for transfer in transfers],
    )


async def update_wallets(tx: Tx, wallets: Sequence[LockedWallet]) -> None:
    await tx.execute(
        "UPDATE wallet w SET status = a.status, credits_posted = a.credits_posted,"
        " debits_posted = a.debits_posted, debits_pending = a.debits_pending,"
        " transfers = a.transfers, decisions = a.decisions, is_low = a.is_low,"
        " last_funded_at = a.last_funded_at"
        " FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],"
        " $6::bigint[], $7::bigint[], $8::boolean[], $9::timestamptz[])"
        " AS a (agent_id, status, credits_posted, debits_posted, debits_pending, transfers,"
        " decisions, is_low, last_funded_at) WHERE w.agent_id = a.agent_id",
        [a.agent_id for a in wallets],
        [a.status for a in wallets],
        [a.credits_posted for a in wallets],
        [a.debits_posted for a in wallets],
        [a.debits_pending for a in wallets],
        [a.transfers for a in wallets],
        [a.decisions for a in wallets],
        [a.is_low for a in wallets],
        [a.last_funded_at for a in wallets],
    )


# The seal ----------------------------------------------------------------------------------------

# Names "sealing the journal" among advisory locks.
_SEAL_LOCK: Final = 0x5345414C


@dataclass(frozen=True, slots=True)
class SealedTransfer:
    xact: int
    agent_id: str
    number: int
    kind: str
    payment_id: str
    amount_micros: int
    credits_posted_after: int
    debits_posted_after: int
    debits_pending_after: int
    created_at_millis: int

    def line(self) -> str:
        """All that is sealed of a transfer. No field can hold a space or a line break."""
        return (
            f"{self.agent_id} {self.number} {self.kind} {self.payment_id} {self.amount_micros}"
            f" {self.credits_posted_after} {self.debits_posted_after} {self.debits_pending_after}"
            f" {self.created_at_millis}\n"
        )


async def lock_seal(tx: Tx) -> bool:
    """False when somebody else is sealing."""
    return await tx.fetchval("SELECT pg_try_advisory_xact_lock($1)", _SEAL_LOCK)


async def last_seal(tx: Tx) -> tuple[int, int, bytes] | None:
    """(number, first transaction not sealed, hash)."""
    row = await tx.fetchrow(
        "SELECT number, xact_below::text::bigint AS below, hash FROM seal"
        " ORDER BY number DESC LIMIT 1"
    )
    return None if row is None else (row["number"], row["below"], row["hash"])


async def oldest_running(tx: Tx) -> int:
    """Every transaction below this number has ended, and what it wrote can be seen."""
    return await tx.fetchval("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")


async def transfers_between(
    tx: Tx, start: int, end: int, limit: int | None
) -> list[SealedTransfer]:
    """Transfers written by transactions from `start` to before `end`, in the chain's order."""
    rows = await tx.fetch(
        "SELECT xact::text::bigint AS xact, agent_id, number, kind, payment_id, amount_micros,"
        " credits_posted_after, debits_posted_after, debits_pending_after,"
        " (extract(epoch FROM created_at) * 1000)::bigint AS created_at_millis"
        " FROM transfer WHERE xact >= $1::text::xid8 AND xact < $2::text::xid8"
        " ORDER BY transfer.xact, agent_id, number LIMIT $3",
        str(start),
        str(end),
        limit,
    )
    return [SealedTransfer(*row) for row in rows]


async def insert_seal(tx: Tx, number: int, below: int, count: int, hash_: bytes) -> None:
    await tx.execute(
        "INSERT INTO seal (number, xact_below, transfer_count, hash)"
        " VALUES ($1, $2::text::xid8, $3, $4)",
        number,
        str(below),
        count,
        hash_,
    )


async def seals_after(tx: Tx, number: int, limit: int) -> list[tuple[int, int, int, bytes]]:
    """(number, first transaction not covered, transfers, hash) in order."""
    rows = await tx.fetch(
        "SELECT number, xact_below::text::bigint AS below, transfer_count, hash FROM seal"
        " WHERE number > $1 ORDER BY number LIMIT $2",
        number,
        limit,
    )
    return [(row["number"], row["below"], row["transfer_count"], row["hash"]) for row in rows]
