"""Queries on sealed keys and secrets, and on which master keys are in force."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, Literal

from bursar.advisory import MASTER_KEYS
from bursar.config import Mode
from bursar.custody.model import SealedKey, SealedSecret
from bursar.db import Tx
from bursar.sql import Query, columns, made, made_or_none

# Keys --------------------------------------------------------------------------------------------

SealedTable = Literal["wallet_key", "system_key"]
SEALED_TABLES: Final[tuple[SealedTable, ...]] = ("wallet_key", "system_key")
SecretTable = Literal["webhook_secret", "purchase_secret"]
SECRET_TABLES: Final[tuple[SecretTable, ...]] = ("webhook_secret", "purchase_secret")
_OWNER: Final = {
    "wallet_key": "agent_id",
    "system_key": "owner",
    "webhook_secret": "owner",
    "purchase_secret": "owner",
}

_WALLET_KEYS = Query(f"""
    SELECT agent_id AS owner, {columns(SealedKey, but=["owner"])}
      FROM wallet_key
     WHERE agent_id = ANY(:agent_ids::text[])
""")
_SYSTEM_KEY = Query(f"SELECT {columns(SealedKey)} FROM system_key WHERE owner = :owner")
_INSERT_SYSTEM_KEY = Query(f"""
    INSERT INTO system_key ({columns(SealedKey)})
    VALUES (:owner, :address, :key_version, :master_version, :sealed, :provider)
    ON CONFLICT (owner) DO NOTHING
""")


async def wallet_keys(tx: Tx, agent_ids: Sequence[str]) -> dict[str, SealedKey]:
    """By agent; an agent without a key is left out."""
    rows = await _WALLET_KEYS.rows(tx, agent_ids=agent_ids)
    return {row["owner"]: made(SealedKey, row) for row in rows}


async def fee_payer_key(tx: Tx, mode: Mode) -> SealedKey | None:
    return made_or_none(SealedKey, await _SYSTEM_KEY.row(tx, owner=fee_payer_owner(mode)))


async def insert_system_key(tx: Tx, key: SealedKey) -> None:
    """Does nothing when the owner has a key: of two processes that start at once, one makes it."""
    await _INSERT_SYSTEM_KEY.run(tx, **asdict(key))


def fee_payer_owner(mode: Mode) -> str:
    return f"fee_payer:{mode}"


# Master keys -------------------------------------------------------------------------------------


_LOCK = Query("SELECT pg_advisory_xact_lock(:number)")
_ADD = Query("INSERT INTO master_key (version) VALUES (:version) ON CONFLICT DO NOTHING")
_VERSIONS = Query("SELECT version FROM master_key")
_IN_USE = Query("""
    SELECT version
      FROM master_key m
     WHERE EXISTS (SELECT FROM wallet_key k WHERE k.master_version = m.version)
        OR EXISTS (SELECT FROM system_key k WHERE k.master_version = m.version)
        OR EXISTS (SELECT FROM webhook_secret k WHERE k.master_version = m.version)
        OR EXISTS (SELECT FROM purchase_secret k WHERE k.master_version = m.version)
""")
_RETIRE = Query("DELETE FROM master_key WHERE version <> :newest")


async def lock_masters(tx: Tx) -> None:
    """Processes that start at once look at the master keys one after the other."""
    await _LOCK.run(tx, number=MASTER_KEYS)


async def add_master(tx: Tx, version: int) -> None:
    await _ADD.run(tx, version=version)


async def master_versions(tx: Tx) -> set[int]:
    return {row["version"] for row in await _VERSIONS.rows(tx)}


async def masters_in_use(tx: Tx) -> set[int]:
    """Versions of the master keys that something is sealed with."""
    return {row["version"] for row in await _IN_USE.rows(tx)}


async def retire_masters(tx: Tx, newest: int) -> None:
    """All but the newest. Raises asyncpg.ForeignKeyViolationError when one is still in use."""
    await _RETIRE.run(tx, newest=newest)


# Sealing again -----------------------------------------------------------------------------------


def _of_other_masters(table: str, kind: type) -> Query:
    return Query(f"""
        SELECT {_OWNER[table]} AS owner, {columns(kind, but=["owner"])}
          FROM {table}
         WHERE master_version IN (SELECT version FROM master_key WHERE version <> :newest)
         LIMIT :limit
           FOR UPDATE SKIP LOCKED
    """)


def _store_resealed(table: str) -> Query:
    return Query(f"""
        UPDATE {table} k
           SET master_version = s.master_version,
               sealed = s.sealed
          FROM unnest(:owners::text[], :master_versions::integer[], :sealed::bytea[])
               AS s (owner, master_version, sealed)
         WHERE k.{_OWNER[table]} = s.owner
    """)


_KEYS = {table: _of_other_masters(table, SealedKey) for table in SEALED_TABLES}
_SECRETS = {table: _of_other_masters(table, SealedSecret) for table in SECRET_TABLES}
_STORE = {table: _store_resealed(table) for table in _OWNER}


async def keys_of_other_masters(
    tx: Tx, table: SealedTable, newest: int, limit: int
) -> list[SealedKey]:
    """Locked until the transaction ends. Keys that another transaction holds are left for later."""
    rows = await _KEYS[table].rows(tx, newest=newest, limit=limit)
    return [made(SealedKey, row) for row in rows]


async def secrets_of_other_masters(
    tx: Tx, table: SecretTable, newest: int, limit: int
) -> list[SealedSecret]:
    """As `keys_of_other_masters`, for secrets that are no keys."""
    rows = await _SECRETS[table].rows(tx, newest=newest, limit=limit)
    return [made(SealedSecret, row) for row in rows]


async def store_resealed(tx: Tx, table: SealedTable, keys: Sequence[SealedKey]) -> None:
    await _store(tx, table, keys)


async def store_resealed_secrets(
    tx: Tx, table: SecretTable, secrets: Sequence[SealedSecret]
) -> None:
    await _store(tx, table, secrets)


async def _store(tx: Tx, table: str, sealed: Sequence[SealedKey | SealedSecret]) -> None:
    await _STORE[table].run(
        tx,
        owners=[item.owner for item in sealed],
        master_versions=[item.master_version for item in sealed],
        sealed=[item.sealed for item in sealed],
    )
