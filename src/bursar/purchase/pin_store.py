"""Queries on pins: where origins are paid, as they said themselves."""

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from bursar.custody.model import SealedKey
from bursar.db import Tx
from bursar.ledger.lock import LockedAgent, agent_of
from bursar.purchase.model import PinRow, PurchaseRow
from bursar.sql import Listing, Query, columns, made, made_or_none

_GET = Query(f"""
    SELECT {columns(PinRow)}
      FROM pin
     WHERE realm_id = :realm_id AND origin = :origin
""")
_LOCK = Query(f"""
    SELECT {columns(PinRow)}
      FROM pin
     WHERE realm_id = :realm_id AND origin = :origin
       FOR NO KEY UPDATE
""")
_BINDING: Final = """
    (SELECT r.address FROM recipient r
      WHERE r.realm_id = :realm_id AND r.hostname = :host) AS listed,
    (SELECT n.address FROM pin n
      WHERE n.realm_id = :realm_id AND n.origin = :origin) AS pinned
"""
_BOUND = Query(f"""
    SELECT {_BINDING},
           EXISTS (SELECT FROM purchase p
                    WHERE p.id = :purchase_id AND p.status = 'open') AS is_open
""")
_BOOKS = Query(f"""
    SELECT a.*, {_BINDING}, k.agent_id AS owner, k.address AS key_address,
           {columns(SealedKey, "k", but=["owner", "address"])}
      FROM read_agents(ARRAY[:agent_id::text], ARRAY[:realm_id::int], lock => false) a
      JOIN wallet_key k ON k.agent_id = :agent_id
""")
_LIST = Listing(
    f"""
    SELECT {columns(PinRow)}
      FROM pin
     WHERE realm_id = :realm_id
    """,
    id_="origin",
)
# A second one, that came in between, ends the transaction: its key is taken.
_PIN = Query("""
    INSERT INTO pin (realm_id, origin, address, created_by, created_at, updated_at)
    SELECT :realm_id, :origin, :address, :created_by, now.at, now.at
      FROM (SELECT moment() AS at) now
""")
_OFFER = Query("""
    UPDATE pin
       SET offered = :address, offered_at = moment()
     WHERE realm_id = :realm_id AND origin = :origin AND address <> :address
       AND offered IS DISTINCT FROM :address
""")
_ACCEPT = Query(f"""
    UPDATE pin
       SET address = offered, offered = NULL, offered_at = NULL, created_by = :accepted_by,
           updated_at = moment()
     WHERE realm_id = :realm_id AND origin = :origin AND offered = :address
    RETURNING {columns(PinRow)}
""")
_FORGET = Query("""
    DELETE FROM pin
     WHERE realm_id = :realm_id AND origin = :origin
""")


async def get_pin(tx: Tx, realm_id: int, origin: str) -> PinRow | None:
    return made_or_none(PinRow, await _GET.row(tx, realm_id=realm_id, origin=origin))


async def lock_pin(tx: Tx, realm_id: int, origin: str) -> PinRow | None:
    """The pin, which stays as it is until the commit: a change knows what it replaces."""
    return made_or_none(PinRow, await _LOCK.row(tx, realm_id=realm_id, origin=origin))


class Bound(msgspec.Struct, frozen=True):
    """Where the directory and a pin say that a seller is paid."""

    listed: str | None
    pinned: str | None


async def bound(tx: Tx, purchase: PurchaseRow) -> tuple[Bound, bool]:
    """Of the seller of a purchase; and whether that is still open."""
    row = await _BOUND.one(
        tx,
        purchase_id=purchase.id,
        realm_id=purchase.realm_id,
        host=purchase.host,
        origin=purchase.origin,
    )
    return made(Bound, row), row["is_open"]


class Books(NamedTuple):
    """What the books say before a seller is asked: of the agent, of where the seller is paid, and
    the key that would sign."""

    agent: LockedAgent
    bound: Bound
    wallet_key: SealedKey


async def books(tx: Tx, realm_id: int, agent_id: str, host: str, origin: str) -> Books | None:
    """Locks nothing. None where there is no such agent."""
    row = await _BOOKS.row(tx, realm_id=realm_id, agent_id=agent_id, host=host, origin=origin)
    if row is None:
        return None
    key = made(SealedKey, row, address=row["key_address"])
    return Books(agent_of(row), made(Bound, row), key)


async def list_pins(
    tx: Tx, realm_id: int, before: tuple[datetime, str] | None, limit: int
) -> list[PinRow]:
    """Newest first."""
    rows = await _LIST.rows(tx, before, limit, realm_id=realm_id)
    return [made(PinRow, row) for row in rows]


async def pin(tx: Tx, realm_id: int, origin: str, address: str, created_by: str) -> None:
    """Raises UniqueViolationError when the origin is pinned already."""
    await _PIN.run(tx, realm_id=realm_id, origin=origin, address=address, created_by=created_by)


async def note_offer(tx: Tx, realm_id: int, origin: str, address: str) -> None:
    """The origin named another address than the one it is pinned to."""
    await _OFFER.run(tx, realm_id=realm_id, origin=origin, address=address)


async def accept(
    tx: Tx, realm_id: int, origin: str, address: str, accepted_by: str
) -> PinRow | None:
    """The address that it named since takes the place of the pinned one; None when it did not name
    this one last."""
    row = await _ACCEPT.row(
        tx, realm_id=realm_id, origin=origin, address=address, accepted_by=accepted_by
    )
    return made_or_none(PinRow, row)


async def forget(tx: Tx, realm_id: int, origin: str) -> bool:
    return await _FORGET.count(tx, realm_id=realm_id, origin=origin) == 1
