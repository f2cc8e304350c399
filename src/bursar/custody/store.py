"""Queries on sealed keys and on which master keys are in force."""

from collections.abc import Sequence
from typing import Final, Literal

from bursar.config import Mode
from bursar.custody.model import SealedKey, SealedSecret
from bursar.db import Row, Tx

_COLUMNS: Final = "address, key_version, master_version, sealed, provider"
# Any fixed number; it names "the master keys" among advisory locks.
_LOCK: Final = 17_483

SealedTable = Literal["wallet_key", "system_key"]
SEALED_TABLES: Final[tuple[SealedTable, ...]] = ("wallet_key", "system_key")
_OWNER: Final = {"wallet_key": "agent_id", "system_key": "owner"}


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


async def insert_system_key(tx: Tx, key: SealedKey) -> None:
    """Nothing when the owner has one already: of two processes that start at once one wins."""
    await tx.execute(
        f"INSERT INTO system_key (owner, {_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)"
        " ON CONFLICT (owner) DO NOTHING",
        key.owner,
        key.address,
        key.key_version,
        key.master_version,
        key.sealed,
        key.provider,
    )


# Master keys -------------------------------------------------------------------------------------


async def lock_masters(tx: Tx) -> None:
    """Processes that start at once look at the master keys one after the other."""
    await tx.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)


async def add_master(tx: Tx, version: int) -> None:
    await tx.execute("INSERT INTO master_key (version) VALUES ($1) ON CONFLICT DO NOTHING", version)


async def master_versions(tx: Tx) -> set[int]:
    return {row["version"] for row in await tx.fetch("SELECT version FROM master_key")}


async def masters_in_use(tx: Tx) -> set[int]:
    """Those that something is sealed with."""
    rows = await tx.fetch(
        "SELECT version FROM master_key m"
        " WHERE EXISTS (SELECT FROM wallet_key k WHERE k.master_version = m.version)"
        " OR EXISTS (SELECT FROM system_key k WHERE k.master_version = m.version)"
        " OR EXISTS (SELECT FROM webhook_secret k WHERE k.master_version = m.version)"
    )
    return {row["version"] for row in rows}


async def retire_masters(tx: Tx, newest: int) -> None:
    """All but the newest. Raises asyncpg.ForeignKeyViolationError when one is still in use."""
    await tx.execute("DELETE FROM master_key WHERE version <> $1", newest)


async def keys_of_other_masters(
    tx: Tx, table: SealedTable, newest: int, limit: int
) -> list[SealedKey]:
    """Locked until the transaction ends; those that somebody else holds are left for later."""
    rows = await tx.fetch(
        f"SELECT {_OWNER[table]} AS owner, {_COLUMNS} FROM {table}"
        " WHERE master_version IN (SELECT version FROM master_key WHERE version <> $1)"
        " LIMIT $2 FOR UPDATE SKIP LOCKED",
        newest,
        limit,
    )
    return [_key(row) for row in rows]


async def store_resealed(tx: Tx, table: SealedTable, keys: Sequence[SealedKey]) -> None:
    await tx.execute(
        f"UPDATE {table} k SET master_version = s.master_version, sealed = s.sealed"
        " FROM unnest($1::text[], $2::integer[], $3::bytea[]) AS s (owner, master_version, sealed)"
        f" WHERE k.{_OWNER[table]} = s.owner",
        [key.owner for key in keys],
        [key.master_version for key in keys],
        [key.sealed for key in keys],
    )


async def secrets_of_other_masters(tx: Tx, newest: int, limit: int) -> list[SealedSecret]:
    """As `keys_of_other_masters`, for the secrets of webhooks."""
    rows = await tx.fetch(
        "SELECT owner, master_version, sealed FROM webhook_secret"
        " WHERE master_version IN (SELECT version FROM master_key WHERE version <> $1)"
        " LIMIT $2 FOR UPDATE SKIP LOCKED",
        newest,
        limit,
    )
    return [SealedSecret(*row) for row in rows]


async def store_resealed_secrets(tx: Tx, secrets: Sequence[SealedSecret]) -> None:
    await tx.execute(
        "UPDATE webhook_secret k SET master_version = s.master_version, sealed = s.sealed"
        " FROM unnest($1::text[], $2::integer[], $3::bytea[]) AS s (owner, master_version, sealed)"
        " WHERE k.owner = s.owner",
        [secret.owner for secret in secrets],
        [secret.master_version for secret in secrets],
        [secret.sealed for secret in secrets],
    )


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
