"""Queries on the recipients directory."""

from collections.abc import Sequence
from datetime import datetime

from bursar.db import Row, Tx
from bursar.errors import present
from bursar.recipient.model import RecipientRow

_COLUMNS = "hostname, address, created_by, created_at, updated_at"


async def lock_directory(tx: Tx, realm_id: int) -> None:
    """One change of a directory at a time, so that each is told what it replaces."""
    await tx.execute("SELECT FROM realm WHERE id = $1 FOR NO KEY UPDATE", realm_id)


async def raise_epoch(tx: Tx, realm_id: int) -> None:
    await tx.execute(
        "UPDATE realm SET directory_epoch = directory_epoch + 1 WHERE id = $1", realm_id
    )


async def put_recipient(
    tx: Tx, realm_id: int, hostname: str, address: str, created_by: str
) -> RecipientRow:
    row = await tx.fetchrow(
        "INSERT INTO recipient AS r (realm_id, hostname, address, created_by, created_at,"
        " updated_at) SELECT $1, $2, $3, $4, now.at, now.at FROM (SELECT moment() AS at) now"
        " ON CONFLICT (realm_id, hostname) DO UPDATE"
        " SET address = excluded.address, updated_at = CASE WHEN r.address = excluded.address"
        " THEN r.updated_at ELSE excluded.updated_at END"
        f" RETURNING {_COLUMNS}",
        realm_id,
        hostname,
        address,
        created_by,
    )
    row = present(row, "the statement returns a row")
    return _recipient(row)


async def get_recipient(tx: Tx, realm_id: int, hostname: str) -> RecipientRow | None:
    row = await tx.fetchrow(
        f"SELECT {_COLUMNS} FROM recipient WHERE realm_id = $1 AND hostname = $2",
        realm_id,
        hostname,
    )
    return None if row is None else _recipient(row)


async def list_recipients(
    tx: Tx, realm_id: int, before: tuple[datetime, str] | None, limit: int
) -> list[RecipientRow]:
    rows = await tx.fetch(
        f"SELECT {_COLUMNS} FROM recipient WHERE realm_id = $1"
        " AND ($2::timestamptz IS NULL OR (created_at, hostname) < ($2, $3::text))"
        " ORDER BY created_at DESC, hostname DESC LIMIT $4",
        realm_id,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [_recipient(row) for row in rows]


async def delete_recipient(tx: Tx, realm_id: int, hostname: str) -> None:
    await tx.execute(
        "DELETE FROM recipient WHERE realm_id = $1 AND hostname = $2", realm_id, hostname
    )


async def addresses_of(tx: Tx, realm_id: int, hostnames: Sequence[str]) -> dict[str, str]:
    rows = await tx.fetch(
        "SELECT hostname, address FROM recipient WHERE realm_id = $1 AND hostname = ANY($2)",
        realm_id,
        hostnames,
    )
    return {row["hostname"]: row["address"] for row in rows}


async def hostnames_of(tx: Tx, realm_id: int, addresses: Sequence[str]) -> list[tuple[str, str]]:
    """(address, hostname) of every entry that names one of the addresses."""
    rows = await tx.fetch(
        "SELECT address, hostname FROM recipient WHERE realm_id = $1 AND address = ANY($2)",
        realm_id,
        addresses,
    )
    return [(row["address"], row["hostname"]) for row in rows]


def _recipient(row: Row) -> RecipientRow:
    return RecipientRow(
        hostname=row["hostname"],
        address=row["address"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
