"""Queries on the recipients directory."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from bursar.db import Tx
from bursar.recipient.model import RecipientFilter, RecipientRow
from bursar.sql import Listing, Query, columns, made, made_or_none

_LOCK = Query("""
    SELECT FROM realm
     WHERE id = :realm_id
       FOR NO KEY UPDATE
""")
_PUT = Query(f"""
    INSERT INTO recipient AS r
           (realm_id, hostname, address, created_by, created_at, updated_by, updated_at)
    SELECT :realm_id, :hostname, :address, :by, now.at, :by, now.at
      FROM (SELECT moment() AS at) now
        ON CONFLICT (realm_id, hostname) DO UPDATE
       SET address = excluded.address,
           updated_by = excluded.updated_by,
           updated_at = excluded.updated_at
    RETURNING {columns(RecipientRow)}
""")
_GET = Query(f"""
    SELECT {columns(RecipientRow)}
      FROM recipient
     WHERE realm_id = :realm_id AND hostname = :hostname
""")
# A filter for each field of `RecipientFilter`.
_LIST = Listing(
    f"""
    SELECT {columns(RecipientRow)}
      FROM recipient
     WHERE realm_id = :realm_id
       AND strpos(hostname, :hostname) > 0
       AND address = :address
    """,
    id_="hostname",
)
_DELETE = Query("""
    DELETE FROM recipient
     WHERE realm_id = :realm_id AND hostname = :hostname
""")
_ADDRESSES = Query("""
    SELECT hostname, address
      FROM recipient
     WHERE realm_id = :realm_id AND hostname = ANY(:hostnames)
""")
_HOSTNAMES = Query("""
    SELECT address, hostname
      FROM recipient
     WHERE realm_id = :realm_id AND address = ANY(:addresses)
""")


async def lock_directory(tx: Tx, realm_id: int) -> None:
    """Makes changes of a directory take turns, so that each knows what it replaces."""
    await _LOCK.run(tx, realm_id=realm_id)


async def put_recipient(
    tx: Tx, realm_id: int, hostname: str, address: str, by: str
) -> RecipientRow:
    row = await _PUT.one(tx, realm_id=realm_id, hostname=hostname, address=address, by=by)
    return made(RecipientRow, row)


async def get_recipient(tx: Tx, realm_id: int, hostname: str) -> RecipientRow | None:
    return made_or_none(RecipientRow, await _GET.row(tx, realm_id=realm_id, hostname=hostname))


async def list_recipients(
    tx: Tx, wanted: RecipientFilter, before: tuple[datetime, str] | None, limit: int
) -> list[RecipientRow]:
    rows = await _LIST.rows(tx, before, limit, **asdict(wanted))
    return [made(RecipientRow, row) for row in rows]


async def delete_recipient(tx: Tx, realm_id: int, hostname: str) -> None:
    await _DELETE.run(tx, realm_id=realm_id, hostname=hostname)


async def addresses_of(tx: Tx, realm_id: int, hostnames: Sequence[str]) -> dict[str, str]:
    rows = await _ADDRESSES.rows(tx, realm_id=realm_id, hostnames=hostnames)
    return {row["hostname"]: row["address"] for row in rows}


async def hostnames_of(tx: Tx, realm_id: int, addresses: Sequence[str]) -> list[tuple[str, str]]:
    """(address, hostname) of every entry with one of these addresses."""
    rows = await _HOSTNAMES.rows(tx, realm_id=realm_id, addresses=addresses)
    return [(row["address"], row["hostname"]) for row in rows]
