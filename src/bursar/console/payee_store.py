"""Queries on payees that changed: hosts of the directory, and sellers that ask for it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bursar.db import Tx
from bursar.sql import Query, columns, made

_LISTED: Final = 3
# Of the entries that were written lately, newest first.
_MOST_LOOKED_AT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Moved:
    """A host that the directory has another address for than before."""

    hostname: str
    address: str
    updated_by: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Asking:
    """A seller that names another address than it is pinned to."""

    origin: str
    offered: str
    offered_at: datetime


@dataclass(frozen=True, slots=True)
class Payees:
    moved: list[Moved]
    asking: list[Asking]
    # Whether there are others besides those listed.
    more_moved: bool
    more_asking: bool


# Has another address than it had lately, or had last before that, also where it was removed and
# made again in between.
_MOVED = Query(f"""
    SELECT {columns(Moved)}
      FROM (SELECT *
              FROM recipient
             WHERE realm_id = :realm_id
               AND updated_at >= :since
             ORDER BY updated_at DESC
             LIMIT :most) AS r
     WHERE EXISTS (SELECT
                     FROM audit_log l
                    WHERE l.realm_id = :realm_id
                      AND l.subject = r.hostname
                      AND l.action IN ('recipient.set', 'recipient.deleted')
                      AND l.at >= :since
                      AND l.before ->> 'address' <> r.address)
        OR r.address <> (SELECT coalesce(l.after, l.before) ->> 'address'
                           FROM audit_log l
                          WHERE l.realm_id = :realm_id
                            AND l.subject = r.hostname
                            AND l.action IN ('recipient.set', 'recipient.deleted')
                            AND l.at < :since
                          ORDER BY l.id DESC
                          LIMIT 1)
     ORDER BY r.updated_at DESC
     LIMIT :listed
""")
_ASKING = Query(f"""
    SELECT {columns(Asking)}
      FROM pin
     WHERE realm_id = :realm_id
       AND offered IS NOT NULL
     ORDER BY offered_at DESC
     LIMIT :listed
""")


async def changed_payees(tx: Tx, realm_id: int, since: datetime) -> Payees:
    moved = await _MOVED.rows(
        tx, realm_id=realm_id, since=since, most=_MOST_LOOKED_AT, listed=_LISTED + 1
    )
    asking = await _ASKING.rows(tx, realm_id=realm_id, listed=_LISTED + 1)
    return Payees(
        [made(Moved, row) for row in moved[:_LISTED]],
        [made(Asking, row) for row in asking[:_LISTED]],
        more_moved=len(moved) > _LISTED,
        more_asking=len(asking) > _LISTED,
    )
