"""Queries of backups to the embedded server itself, as its superuser."""

from datetime import datetime
from typing import Final

from bursar.db import Tx

SLOT_PREFIX: Final = "bursar_backup_"


async def system_identifier(tx: Tx) -> str:
    """The cluster's unique identifier; it stays the same through restores."""
    return await tx.fetchval("SELECT system_identifier::text FROM pg_control_system()")


async def clock(tx: Tx) -> datetime:
    return await tx.fetchval("SELECT clock_timestamp()")


async def slot(tx: Tx) -> str | None:
    """The slot that keeps the log until it is received; None if there is none or it was lost."""
    return await tx.fetchval(
        "SELECT slot_name FROM pg_replication_slots"
        " WHERE starts_with(slot_name, $1) AND wal_status <> 'lost'",
        SLOT_PREFIX,
    )


async def create_slot(tx: Tx, name: str) -> None:
    await tx.execute("SELECT pg_create_physical_replication_slot($1, true)", name)


async def drop_slots(tx: Tx) -> None:
    await tx.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE starts_with(slot_name, $1) AND NOT active",
        SLOT_PREFIX,
    )


async def commit_something(tx: Tx) -> str:
    """Commits something: a recovery stops at the first commit after its target, so there has to be
    one. Returns where the log ends after it."""
    await tx.execute("SELECT pg_logical_emit_message(true, 'bursar', 'backup')")
    return await tx.fetchval("SELECT pg_current_wal_lsn()::text")


async def received(tx: Tx, slot_name: str, position: str) -> bool:
    return await tx.fetchval(
        "SELECT EXISTS (SELECT FROM pg_replication_slots s JOIN pg_stat_replication r"
        " ON r.pid = s.active_pid WHERE s.slot_name = $1 AND r.write_lsn >= $2::text::pg_lsn)",
        slot_name,
        position,
    )
