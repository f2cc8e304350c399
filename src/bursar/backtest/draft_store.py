"""Queries on drafts."""

from datetime import datetime
from typing import Final

import msgspec

from bursar.backtest.model import DraftRow
from bursar.db import Row, Tx
from bursar.policy.model import PolicyChange
from bursar.sql import Query, columns, made

_encode = msgspec.json.Encoder().encode
_change = msgspec.json.Decoder(PolicyChange).decode

# Drafts that one round of the worker looks at.
_AT_ONCE: Final = 1_000

_PUT = Query(f"""
    INSERT INTO draft (agent_id, realm_id, id, base_version, change, created_by, since,
                       followed_until)
    VALUES (:agent_id, :realm_id, :draft_id, :base_version, :change, :created_by, :since, :since)
        ON CONFLICT (agent_id) DO UPDATE
       SET id = excluded.id, base_version = excluded.base_version, change = excluded.change,
           created_by = excluded.created_by, since = excluded.since,
           followed_until = excluded.since, decided = 0, differing = 0, differences = '[]'
    RETURNING {columns(DraftRow)}
""")
_GET = Query(f"""
    SELECT {columns(DraftRow)}
      FROM draft
     WHERE agent_id = :agent_id AND realm_id = :realm_id
""")
_DELETE = Query("DELETE FROM draft WHERE agent_id = :agent_id AND realm_id = :realm_id")
# Until the commit no other request of the account counts them.
_LOCK_REALM = Query("SELECT FROM realm WHERE id = :realm_id FOR NO KEY UPDATE")
_COUNT = Query("""
    SELECT count(*)
      FROM draft
     WHERE realm_id = :realm_id AND agent_id <> :but
""")
_LIST = Query(f"""
    SELECT {columns(DraftRow)}
      FROM draft
     ORDER BY followed_until
     LIMIT :limit
""")
_NOTE = Query("""
    UPDATE draft
       SET followed_until = :followed_until, decided = :decided, differing = :differing,
           differences = :differences
     WHERE id = :draft_id
""")


async def put_draft(
    tx: Tx,
    agent_id: str,
    realm_id: int,
    draft_id: str,
    base_version: int,
    change: PolicyChange,
    created_by: str,
    since: datetime,
) -> DraftRow:
    """In place of the one that the agent has, if it has one."""
    row = await _PUT.one(
        tx,
        agent_id=agent_id,
        realm_id=realm_id,
        draft_id=draft_id,
        base_version=base_version,
        change=_encode(change).decode(),
        created_by=created_by,
        since=since,
    )
    return _draft(row)


async def get_draft(tx: Tx, realm_id: int, agent_id: str) -> DraftRow | None:
    row = await _GET.row(tx, realm_id=realm_id, agent_id=agent_id)
    return None if row is None else _draft(row)


async def delete_draft(tx: Tx, realm_id: int, agent_id: str) -> bool:
    """False when there was none."""
    return await _DELETE.count(tx, realm_id=realm_id, agent_id=agent_id) > 0


async def count_others(tx: Tx, realm_id: int, agent_id: str) -> int:
    """Drafts of the account's other agents. Until the commit it gets no other."""
    await _LOCK_REALM.run(tx, realm_id=realm_id)
    return await _COUNT.value(tx, realm_id=realm_id, but=agent_id)


async def list_drafts(tx: Tx) -> list[DraftRow]:
    """Of all accounts, those followed least far first."""
    return [_draft(row) for row in await _LIST.rows(tx, limit=_AT_ONCE)]


async def note_followed(
    tx: Tx,
    draft_id: str,
    followed_until: datetime,
    decided: int,
    differing: int,
    differences: bytes,
) -> bool:
    """False when it was written anew meanwhile, or is gone."""
    noted = await _NOTE.count(
        tx,
        draft_id=draft_id,
        followed_until=followed_until,
        decided=decided,
        differing=differing,
        differences=differences.decode(),
    )
    return noted > 0


def _draft(row: Row) -> DraftRow:
    return made(
        DraftRow, row, change=_change(row["change"]), differences=row["differences"].encode()
    )
