"""Queries on sealed keys and on which master keys are in force."""

from collections.abc import Sequence

from bursar.config import Mode
from bursar.custody.model import SealedKey
from bursar.db import Row, Tx

_COLUMNS = "address, key_version, master_version, sealed, provider"


async def wallet_keys(tx: Tx, agent_ids: Sequence[str]) -> dict[str, SealedKey]:
    """By agent; an agent without a key is left out."""
    rows = await tx.fetch(
        f"SELECT agent_id AS owner, {_COLUMNS} FROM wallet_key WHERE agent_id = ANY($1::text[])",
        agent_ids,
    )
    return {row["owner"]: _key(row) for row in rows}


async def fee_payer_key(tx: Tx, mode: Mode) -> SealedKey | None:
    row = await tx.fetchrow(
        f"SELECT owner, {_COLUMNS} FROM system_key WHERE owner = $1", fee_payer_owner(mode)
    )
    return None if row is None else _key(row)


def fee_payer_owner(mode: Mode) -> str:
    return f"fee_payer:{mode}"


def _key(row: Row) -> SealedKey:
    return SealedKey(
        owner=row["owner"],
        address=row["address"],
        key_version=row["key_version"],
        master_version=row["master_version"],
        sealed=row["sealed"],
        provider=row["provider"],
    )
