"""Queries on wallets and their sealed keys."""

from collections.abc import Sequence
from datetime import datetime

from bursar.custody.model import SealedKey
from bursar.db import Row, Tx
from bursar.wallet.model import WalletRow

COLUMNS = (
    "w.agent_id, w.address, w.mint, w.status AS wallet_status, w.credits_posted, w.debits_posted,"
    " w.debits_pending, w.is_low, w.last_funded_at"
)


async def insert_wallet(tx: Tx, realm_id: int, key: SealedKey, mint: str, is_low: bool) -> None:
    await tx.execute(
        "INSERT INTO wallet (agent_id, realm_id, address, mint, is_low)"
        " VALUES ($1, $2, $3, $4, $5)",
        key.owner,
        realm_id,
        key.address,
        mint,
        is_low,
    )
    await tx.execute(
        "INSERT INTO wallet_key (agent_id, address, key_version, master_version, sealed, provider)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        key.owner,
        key.address,
        key.key_version,
        key.master_version,
        key.sealed,
        key.provider,
    )


async def lock_wallets(tx: Tx, agent_ids: Sequence[str]) -> None:
    """The lock of each agent, in id order so that no two holders wait for each other.

    What is read in later statements is as fresh as the lock; never read it in this one.
    """
    await tx.execute(
        "SELECT FROM wallet WHERE agent_id = ANY($1::text[]) ORDER BY agent_id FOR NO KEY UPDATE",
        agent_ids,
    )


async def get_wallet(tx: Tx, realm_id: int, agent_id: str) -> tuple[WalletRow, datetime] | None:
    """The wallet, and the moment it was so."""
    row = await tx.fetchrow(
        f"SELECT {COLUMNS}, moment() AS as_of FROM wallet w"
        " WHERE w.agent_id = $2 AND w.realm_id = $1",
        realm_id,
        agent_id,
    )
    return None if row is None else (wallet_of(row), row["as_of"])


async def set_low(tx: Tx, agent_id: str, is_low: bool) -> None:
    await tx.execute("UPDATE wallet SET is_low = $2 WHERE agent_id = $1", agent_id, is_low)


def wallet_of(row: Row) -> WalletRow:
    return WalletRow(
        agent_id=row["agent_id"],
        address=row["address"],
        mint=row["mint"],
        status=row["wallet_status"],
        credits_posted=row["credits_posted"],
        debits_posted=row["debits_posted"],
        debits_pending=row["debits_pending"],
        is_low=row["is_low"],
        last_funded_at=row["last_funded_at"],
    )
