"""Queries on wallets, their sealed keys, withdrawals and deposits."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

from bursar.config import Mode
from bursar.custody.model import SealedKey
from bursar.db import Row, Tx
from bursar.errors import present
from bursar.wallet.model import DepositRow, UnreadRow, WalletRow

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


async def hold_wallet(tx: Tx, agent_id: str, held: bool) -> None:
    await tx.execute("UPDATE wallet SET held = $2 WHERE agent_id = $1", agent_id, held)


async def note_stop(tx: Tx, agent_id: str, policy_version: int | None) -> None:
    await tx.execute(
        "INSERT INTO wallet_stop (agent_id, policy_version) VALUES ($1, $2)"
        " ON CONFLICT (agent_id) DO NOTHING",
        agent_id,
        policy_version,
    )


async def forget_stop(tx: Tx, agent_id: str) -> int | None:
    """The version that the stop froze the policy with, if it did and was not proven right."""
    return await tx.fetchval(
        "DELETE FROM wallet_stop WHERE agent_id = $1 RETURNING policy_version", agent_id
    )


async def held_wallets(tx: Tx, mode: Mode) -> list[str]:
    rows = await tx.fetch(
        "SELECT w.agent_id FROM wallet w JOIN realm r ON r.id = w.realm_id"
        " WHERE r.mode = $1 AND w.held",
        mode,
    )
    return [row["agent_id"] for row in rows]


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


# Withdrawals --------------------------------------------------------------------------------------


# Deposits -----------------------------------------------------------------------------------------

_DEPOSIT = ", ".join(DepositRow.__struct_fields__)


async def insert_deposit(
    tx: Tx,
    *,
    deposit_id: str,
    realm_id: int,
    agent_id: str,
    amount_micros: int,
    token_account: str,
    signature: str,
) -> DepositRow:
    """A deposit that is known of but not credited; the one that is there, if there is one."""
    row = await tx.fetchrow(
        "INSERT INTO deposit AS d (id, realm_id, agent_id, amount_micros, token_account, signature,"
        " status, created_at) VALUES ($1, $2, $3, $4, $5, $6, 'pending', moment())"
        " ON CONFLICT (signature, token_account) DO UPDATE SET id = d.id WHERE d.status = 'pending'"
        f" RETURNING {_DEPOSIT}",
        deposit_id,
        realm_id,
        agent_id,
        amount_micros,
        token_account,
        signature,
    )
    if row is None:
        row = await tx.fetchrow(
            f"SELECT {_DEPOSIT} FROM deposit WHERE signature = $1 AND token_account = $2",
            signature,
            token_account,
        )
    row = present(row, "the statement returns a row")
    return _deposit(row)


async def credit_deposit(
    tx: Tx,
    deposit_id: str,
    *,
    amount_micros: int,
    sender: str | None,
    block_time: int | None,
    at: datetime,
) -> DepositRow | None:
    """pending -> credited; None when it was credited before. Never before it was noticed: the
    faucet may write it down while the one who credits it holds the wallet's lock."""
    row = await tx.fetchrow(
        "UPDATE deposit SET status = 'credited', amount_micros = $2, sender = $3, block_time = $4,"
        " credited_at = greatest($5, created_at) WHERE id = $1 AND status = 'pending'"
        f" RETURNING {_DEPOSIT}",
        deposit_id,
        amount_micros,
        sender,
        block_time,
        at,
    )
    return None if row is None else _deposit(row)


async def get_deposit(tx: Tx, realm_id: int, deposit_id: str) -> DepositRow | None:
    row = await tx.fetchrow(
        f"SELECT {_DEPOSIT} FROM deposit WHERE id = $2 AND realm_id = $1", realm_id, deposit_id
    )
    return None if row is None else _deposit(row)


async def list_deposits(
    tx: Tx, agent_id: str, before: tuple[datetime, str] | None, limit: int
) -> list[DepositRow]:
    rows = await tx.fetch(
        f"SELECT {_DEPOSIT} FROM deposit WHERE agent_id = $1"
        " AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3::text))"
        " ORDER BY created_at DESC, id DESC LIMIT $4",
        agent_id,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [_deposit(row) for row in rows]


async def note_credited_slot(tx: Tx, agent_id: str, slot: int) -> None:
    """Whoever says from now on what the wallet holds must know of this slot."""
    await tx.execute(
        "UPDATE wallet SET credited_slot = greatest(credited_slot, $2) WHERE agent_id = $1",
        agent_id,
        slot,
    )


# Deposits that nobody could read ------------------------------------------------------------------

_UNREAD = ", ".join(f"u.{name}" for name in UnreadRow.__struct_fields__)
_LONGEST_PROBLEM: Final = 300


async def insert_unread(
    tx: Tx, *, realm_id: int, agent_id: str, token_account: str, signature: str, problem: str
) -> None:
    await tx.execute(
        "INSERT INTO unread_deposit (realm_id, agent_id, token_account, signature, problem)"
        " VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        realm_id,
        agent_id,
        token_account,
        signature,
        problem[:_LONGEST_PROBLEM],
    )


async def unread_due(tx: Tx, agent_id: str, limit: int) -> list[UnreadRow]:
    rows = await tx.fetch(
        f"SELECT {_UNREAD} FROM unread_deposit u WHERE u.agent_id = $1 AND u.dismissed_at IS NULL"
        " AND u.next_try_at <= clock_timestamp() ORDER BY u.next_try_at LIMIT $2",
        agent_id,
        limit,
    )
    return [UnreadRow(**dict(row.items())) for row in rows]


async def agents_with_unread_due(tx: Tx, mode: Mode, limit: int) -> list[str]:
    rows = await tx.fetch(
        "SELECT DISTINCT d.agent_id FROM (SELECT u.agent_id FROM unread_deposit u"
        " JOIN realm r ON r.id = u.realm_id WHERE r.mode = $1 AND u.dismissed_at IS NULL"
        " AND u.next_try_at <= clock_timestamp() ORDER BY u.next_try_at LIMIT $2) AS d",
        mode,
        limit,
    )
    return [row["agent_id"] for row in rows]


async def list_unread(tx: Tx, mode: Mode | None, limit: int) -> list[UnreadRow]:
    """Newest first; of both modes when none is named."""
    rows = await tx.fetch(
        f"SELECT {_UNREAD} FROM unread_deposit u JOIN realm r ON r.id = u.realm_id"
        " WHERE u.dismissed_at IS NULL AND ($1::text IS NULL OR r.mode = $1)"
        " ORDER BY u.noticed_at DESC, u.signature LIMIT $2",
        mode,
        limit,
    )
    return [UnreadRow(**dict(row.items())) for row in rows]


async def count_unread(tx: Tx, mode: Mode) -> int:
    return await tx.fetchval(
        "SELECT count(*) FROM unread_deposit u JOIN realm r ON r.id = u.realm_id"
        " WHERE r.mode = $1 AND u.dismissed_at IS NULL",
        mode,
    )


async def put_off_unread(tx: Tx, signature: str, token_account: str, problem: str) -> None:
    """Each wait is twice the last, up to a day."""
    await tx.execute(
        "UPDATE unread_deposit SET tries = tries + 1, problem = $3, next_try_at = clock_timestamp()"
        " + least(interval '30 seconds' * 2 ^ least(tries, 12), interval '1 day')"
        " WHERE signature = $1 AND token_account = $2",
        signature,
        token_account,
        problem[:_LONGEST_PROBLEM],
    )


async def delete_unread(tx: Tx, signature: str, token_account: str) -> bool:
    """It was read, or credited by hand. False when it is not among them, or was dismissed."""
    status = await tx.execute(
        "DELETE FROM unread_deposit WHERE signature = $1 AND token_account = $2"
        " AND dismissed_at IS NULL",
        signature,
        token_account,
    )
    return status == "DELETE 1"


async def dismiss_unread(tx: Tx, signature: str, token_account: str) -> bool:
    status = await tx.execute(
        "UPDATE unread_deposit SET dismissed_at = moment()"
        " WHERE signature = $1 AND token_account = $2 AND dismissed_at IS NULL",
        signature,
        token_account,
    )
    return status == "UPDATE 1"


def _deposit(row: Row) -> DepositRow:
    return DepositRow(**dict(row.items()))


# Wallets whose commits raise ---------------------------------------------------------------------

Duty = Literal["settle", "expire", "deposit"]
# How long until a wallet that is set aside is tried again: at first, and twice as long each time.
_FIRST_PAUSE_SECONDS: Final = 10
_MOST_DOUBLINGS: Final = 5


async def set_aside(tx: Tx, agent_id: str, duty: Duty, problem: str) -> None:
    """Many that fail in one round count as one try."""
    await tx.execute(
        "INSERT INTO quarantine AS q (agent_id, duty, problem, since, next_try_at)"
        f" VALUES ($1, $2, $3, moment(), clock_timestamp() + interval '{_FIRST_PAUSE_SECONDS} s')"
        " ON CONFLICT (agent_id, duty) DO UPDATE SET problem = excluded.problem,"
        " tries = q.tries + 1, next_try_at = clock_timestamp() + make_interval(secs =>"
        f" {_FIRST_PAUSE_SECONDS} * 2 ^ least(q.tries, {_MOST_DOUBLINGS}))"
        " WHERE q.next_try_at <= clock_timestamp()",
        agent_id,
        duty,
        problem,
    )


async def resting(tx: Tx, agent_ids: Sequence[str], duty: Duty) -> set[str]:
    """Those of the wallets that are set aside and not to be tried yet."""
    rows = await tx.fetch(
        "SELECT agent_id FROM quarantine WHERE agent_id = ANY($1::text[]) AND duty = $2"
        " AND next_try_at > clock_timestamp()",
        agent_ids,
        duty,
    )
    return {row["agent_id"] for row in rows}


async def take_back(tx: Tx, agent_ids: Sequence[str], duty: Duty) -> list[str]:
    """Those of the wallets that were set aside and are no longer."""
    rows = await tx.fetch(
        "DELETE FROM quarantine WHERE agent_id = ANY($1::text[]) AND duty = $2 RETURNING agent_id",
        agent_ids,
        duty,
    )
    return [row["agent_id"] for row in rows]


async def count_set_aside(tx: Tx) -> dict[str, int]:
    """By mode; a mode without any is missing."""
    rows = await tx.fetch(
        "SELECT r.mode, count(DISTINCT q.agent_id) AS wallets FROM quarantine q"
        " JOIN wallet w ON w.agent_id = q.agent_id JOIN realm r ON r.id = w.realm_id GROUP BY 1"
    )
    return {row["mode"]: row["wallets"] for row in rows}
