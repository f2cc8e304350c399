"""Queries on wallets, their sealed keys and deposits, and on wallets that are set aside."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final, Literal

from bursar.config import Mode
from bursar.custody.model import SealedKey
from bursar.db import Row, Tx, moment
from bursar.sql import Listing, Query, columns, made, made_or_none
from bursar.wallet.model import DepositRow, Moved, UnreadRow, WalletRow, WatchedWallet

# An agent's status is often read in the same row.
COLUMNS: Final = f"{columns(WalletRow, 'w', but=['status'])}, w.status AS wallet_status"

_INSERT = Query("""
    INSERT INTO wallet (agent_id, realm_id, address, mint, is_low)
    VALUES (:agent_id, :realm_id, :address, :mint, :is_low)
""")
_INSERT_KEY = Query("""
    INSERT INTO wallet_key (agent_id, address, key_version, master_version, sealed, provider)
    VALUES (:agent_id, :address, :key_version, :master_version, :sealed, :provider)
""")
_LOCK = Query("""
    SELECT FROM wallet
     WHERE agent_id = ANY(:agent_ids::text[])
     ORDER BY agent_id
       FOR NO KEY UPDATE
""")
_GET = Query(f"""
    SELECT {COLUMNS}, moment() AS as_of
      FROM wallet w
     WHERE w.agent_id = :agent_id AND w.realm_id = :realm_id
""")
_SET_LOW = Query("""
    UPDATE wallet
       SET is_low = :is_low
     WHERE agent_id = :agent_id
""")
_SET_FROZEN = Query("""
    UPDATE wallet
       SET is_frozen = :frozen
     WHERE agent_id = :agent_id
""")
_NOTE_STOP = Query("""
    INSERT INTO wallet_stop (agent_id, policy_version)
    VALUES (:agent_id, :policy_version)
        ON CONFLICT (agent_id) DO NOTHING
""")
_FORGET_STOP = Query("""
    DELETE FROM wallet_stop
     WHERE agent_id = :agent_id
    RETURNING policy_version
""")
_NOTE_CREDITED_SLOT = Query("""
    UPDATE wallet
       SET credited_slot = greatest(credited_slot, :slot)
     WHERE agent_id = :agent_id
""")


async def insert_wallet(tx: Tx, realm_id: int, key: SealedKey, mint: str, is_low: bool) -> None:
    await _INSERT.run(
        tx, agent_id=key.owner, realm_id=realm_id, address=key.address, mint=mint, is_low=is_low
    )
    await _INSERT_KEY.run(
        tx,
        agent_id=key.owner,
        address=key.address,
        key_version=key.key_version,
        master_version=key.master_version,
        sealed=key.sealed,
        provider=key.provider,
    )


async def lock_wallets(tx: Tx, agent_ids: Sequence[str]) -> None:
    """The lock of each agent, in id order so that no two holders wait for each other.

    What later statements read is as fresh as the lock; this one must read nothing.
    """
    await _LOCK.run(tx, agent_ids=agent_ids)


async def get_wallet(tx: Tx, realm_id: int, agent_id: str) -> tuple[WalletRow, datetime] | None:
    """The wallet, and the moment at which it was so."""
    row = await _GET.row(tx, realm_id=realm_id, agent_id=agent_id)
    return None if row is None else (wallet_of(row), row["as_of"])


async def set_low(tx: Tx, wallets: Sequence[WalletRow]) -> None:
    await _SET_LOW.run_each(tx, [{"agent_id": w.agent_id, "is_low": w.is_low} for w in wallets])


async def set_frozen(tx: Tx, agent_id: str, frozen: bool) -> None:
    """While a wallet is frozen, nothing is signed for it."""
    await _SET_FROZEN.run(tx, agent_id=agent_id, frozen=frozen)


async def note_stop(tx: Tx, agent_id: str, policy_version: int | None) -> None:
    """The wallet was frozen, which is not proven right yet; its policy too, by that version."""
    await _NOTE_STOP.run(tx, agent_id=agent_id, policy_version=policy_version)


async def forget_stop(tx: Tx, agent_id: str) -> int | None:
    """The version that the stop froze the policy with, if it did and was not proven right."""
    return await _FORGET_STOP.value(tx, agent_id=agent_id)


async def note_credited_slot(tx: Tx, agent_id: str, slot: int) -> None:
    """From now on a node has to know this slot for its word on the wallet's balance to count."""
    await _NOTE_CREDITED_SLOT.run(tx, agent_id=agent_id, slot=slot)


def wallet_of(row: Row) -> WalletRow:
    return made(WalletRow, row, status=row["wallet_status"])


# Against the chain --------------------------------------------------------------------------------

_WATCHED: Final = (
    "w.agent_id, w.realm_id, w.address, w.is_frozen, w.credits_posted::bigint AS credits_micros,"
    " w.debits_posted::bigint AS debits_micros, w.credited_slot"
)
_WATCH_THESE = Query(f"""
    SELECT {_WATCHED}
      FROM wallet w
     WHERE w.agent_id = ANY(:agent_ids::text[])
""")
_WATCH_AFTER = Query(f"""
    SELECT {_WATCHED}
      FROM wallet w
      JOIN realm r ON r.id = w.realm_id
     WHERE r.mode = :mode AND w.agent_id > :after
     ORDER BY w.agent_id
     LIMIT :limit
""")
# Each part has an index of its own: however many wallets are cold, none of them is read. The moment
# is a parameter because PostgreSQL looks for nothing by the clock in an index.
_HOT = Query("""
    WITH busy AS (
      SELECT w.agent_id FROM wallet w WHERE w.is_frozen
      UNION
      SELECT p.agent_id FROM payment p WHERE p.mode = :mode AND p.state IN ('waiting', 'live')
    ), lately AS (
      SELECT w.agent_id FROM wallet w
       WHERE w.active_on >= :day
      UNION
      SELECT d.agent_id FROM deposit d WHERE d.created_at > :since
      UNION
      SELECT a.id FROM realm r JOIN agent a ON a.realm_id = r.id
       WHERE r.mode = :mode AND a.created_at > :since
    ), hot AS (
      SELECT b.agent_id FROM busy b
      UNION
      SELECT l.agent_id FROM lately l JOIN agent a ON a.id = l.agent_id
       WHERE a.status <> 'terminated'
    )
    SELECT h.agent_id FROM hot h JOIN agent a ON a.id = h.agent_id
      JOIN realm r ON r.id = a.realm_id
     WHERE r.mode = :mode ORDER BY h.agent_id
""")


async def hot_wallets(tx: Tx, mode: Mode) -> list[str]:
    """Those on which something may move any time: frozen, with a payment on its way, or made,
    funded or spent from within a day by an agent that is not terminated."""
    since = await moment(tx) - timedelta(days=1)
    rows = await _HOT.rows(tx, mode=mode, since=since, day=since.date())
    return [row["agent_id"] for row in rows]


async def watched_wallets(tx: Tx, agent_ids: Sequence[str]) -> list[WatchedWallet]:
    return [made(WatchedWallet, row) for row in await _WATCH_THESE.rows(tx, agent_ids=agent_ids)]


async def watched_after(tx: Tx, mode: Mode, after: str, limit: int) -> list[WatchedWallet]:
    """Wallets of a mode in the order of their ids."""
    rows = await _WATCH_AFTER.rows(tx, mode=mode, after=after, limit=limit)
    return [made(WatchedWallet, row) for row in rows]


# Deposits -----------------------------------------------------------------------------------------

_INSERT_DEPOSIT = Query(f"""
    INSERT INTO deposit AS d (id, realm_id, agent_id, amount_micros, token_account, signature,
                              status, created_at)
    VALUES (:deposit_id, :realm_id, :agent_id, :amount_micros, :token_account, :signature,
            'pending', moment())
        ON CONFLICT (signature, token_account) DO UPDATE
       SET id = d.id
     WHERE d.status = 'pending'
    RETURNING {columns(DepositRow)}
""")
_FIND_DEPOSIT = Query(f"""
    SELECT {columns(DepositRow)}
      FROM deposit
     WHERE signature = :signature AND token_account = :token_account
""")
_CREDIT_DEPOSIT = Query(f"""
    UPDATE deposit
       SET status = 'credited', amount_micros = :amount_micros, sender = :sender,
           block_time = :block_time, credited_at = greatest(:at, created_at)
     WHERE id = :deposit_id AND status = 'pending'
    RETURNING {columns(DepositRow)}
""")
_GET_DEPOSIT = Query(f"""
    SELECT {columns(DepositRow)}
      FROM deposit
     WHERE id = :deposit_id AND realm_id = :realm_id
""")
_LIST_DEPOSITS = Listing(f"""
    SELECT {columns(DepositRow)}
      FROM deposit
     WHERE agent_id = :agent_id
""")
_LIST_ALL_DEPOSITS = Listing(f"""
    SELECT {columns(DepositRow)}
      FROM deposit
     WHERE realm_id = :realm_id
       AND agent_id = :agent_id
       AND created_at >= :made_from
       AND created_at < :made_to
""")


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
    row = await _INSERT_DEPOSIT.row(
        tx,
        deposit_id=deposit_id,
        realm_id=realm_id,
        agent_id=agent_id,
        amount_micros=amount_micros,
        token_account=token_account,
        signature=signature,
    )
    if row is None:  # it is there, and credited
        row = await _FIND_DEPOSIT.one(tx, signature=signature, token_account=token_account)
    return made(DepositRow, row)


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
    faucet may write the deposit down while the worker that credits it holds the wallet's lock."""
    row = await _CREDIT_DEPOSIT.row(
        tx,
        deposit_id=deposit_id,
        amount_micros=amount_micros,
        sender=sender,
        block_time=block_time,
        at=at,
    )
    return made_or_none(DepositRow, row)


async def get_deposit(tx: Tx, realm_id: int, deposit_id: str) -> DepositRow | None:
    row = await _GET_DEPOSIT.row(tx, realm_id=realm_id, deposit_id=deposit_id)
    return made_or_none(DepositRow, row)


async def list_deposits(
    tx: Tx, agent_id: str, before: tuple[datetime, str] | None, limit: int
) -> list[DepositRow]:
    rows = await _LIST_DEPOSITS.rows(tx, before, limit, agent_id=agent_id)
    return [made(DepositRow, row) for row in rows]


async def list_all_deposits(
    tx: Tx, wanted: Moved, before: tuple[datetime, str] | None, limit: int
) -> list[DepositRow]:
    rows = await _LIST_ALL_DEPOSITS.rows(tx, before, limit, **asdict(wanted))
    return [made(DepositRow, row) for row in rows]


# Transactions that may be deposits and could not be read ------------------------------------------

_LONGEST_PROBLEM: Final = 300

_INSERT_UNREAD = Query("""
    INSERT INTO unread_deposit (realm_id, agent_id, token_account, signature, problem)
    VALUES (:realm_id, :agent_id, :token_account, :signature, :problem)
        ON CONFLICT DO NOTHING
""")
_UNREAD_DUE = Query(f"""
    SELECT {columns(UnreadRow)}
      FROM unread_deposit
     WHERE agent_id = :agent_id AND dismissed_at IS NULL AND next_try_at <= clock_timestamp()
     ORDER BY next_try_at
     LIMIT :limit
""")
_AGENTS_WITH_UNREAD_DUE = Query("""
    SELECT DISTINCT d.agent_id
      FROM (SELECT u.agent_id
              FROM unread_deposit u
              JOIN realm r ON r.id = u.realm_id
             WHERE r.mode = :mode AND u.dismissed_at IS NULL
               AND u.next_try_at <= clock_timestamp()
             ORDER BY u.next_try_at
             LIMIT :limit) AS d
""")
_LIST_UNREAD = Query(f"""
    SELECT {columns(UnreadRow, "u")}
      FROM unread_deposit u
      JOIN realm r ON r.id = u.realm_id
     WHERE u.dismissed_at IS NULL AND (:mode::text IS NULL OR r.mode = :mode)
     ORDER BY u.noticed_at DESC, u.signature
     LIMIT :limit
""")
_COUNT_UNREAD = Query("""
    SELECT count(*)
      FROM unread_deposit u
      JOIN realm r ON r.id = u.realm_id
     WHERE r.mode = :mode AND u.dismissed_at IS NULL
""")
_WITH_UNREAD = Query("""
    SELECT DISTINCT agent_id
      FROM unread_deposit
     WHERE agent_id = ANY(:agent_ids) AND dismissed_at IS NULL
""")
# Each wait is twice the last, up to a day.
_PUT_OFF_UNREAD = Query("""
    UPDATE unread_deposit
       SET tries = tries + 1, problem = :problem,
           next_try_at = clock_timestamp()
                         + least(interval '30 seconds' * 2 ^ least(tries, 12), interval '1 day')
     WHERE signature = :signature AND token_account = :token_account
""")
_DELETE_UNREAD = Query("""
    DELETE FROM unread_deposit
     WHERE signature = :signature AND token_account = :token_account AND dismissed_at IS NULL
""")
_DISMISS_UNREAD = Query("""
    UPDATE unread_deposit
       SET dismissed_at = moment()
     WHERE signature = :signature AND token_account = :token_account AND dismissed_at IS NULL
""")


async def insert_unread(
    tx: Tx, *, realm_id: int, agent_id: str, token_account: str, signature: str, problem: str
) -> None:
    await _INSERT_UNREAD.run(
        tx,
        realm_id=realm_id,
        agent_id=agent_id,
        token_account=token_account,
        signature=signature,
        problem=problem[:_LONGEST_PROBLEM],
    )


async def unread_due(tx: Tx, agent_id: str, limit: int) -> list[UnreadRow]:
    rows = await _UNREAD_DUE.rows(tx, agent_id=agent_id, limit=limit)
    return [made(UnreadRow, row) for row in rows]


async def agents_with_unread_due(tx: Tx, mode: Mode, limit: int) -> list[str]:
    rows = await _AGENTS_WITH_UNREAD_DUE.rows(tx, mode=mode, limit=limit)
    return [row["agent_id"] for row in rows]


async def list_unread(tx: Tx, mode: Mode | None, limit: int) -> list[UnreadRow]:
    """Newest first; of both modes when none is named."""
    rows = await _LIST_UNREAD.rows(tx, mode=mode, limit=limit)
    return [made(UnreadRow, row) for row in rows]


async def count_unread(tx: Tx, mode: Mode) -> int:
    return await _COUNT_UNREAD.value(tx, mode=mode)


async def with_unread(tx: Tx, agent_ids: Sequence[str]) -> set[str]:
    """Those of these agents whose history has lines that nobody could read yet."""
    return {row["agent_id"] for row in await _WITH_UNREAD.rows(tx, agent_ids=agent_ids)}


async def put_off_unread(tx: Tx, signature: str, token_account: str, problem: str) -> None:
    await _PUT_OFF_UNREAD.run(
        tx,
        signature=signature,
        token_account=token_account,
        problem=problem[:_LONGEST_PROBLEM],
    )


async def delete_unread(tx: Tx, signature: str, token_account: str) -> bool:
    """It was read, or credited by hand. False when it is not among them, or was dismissed."""
    return await _DELETE_UNREAD.count(tx, signature=signature, token_account=token_account) == 1


async def dismiss_unread(tx: Tx, signature: str, token_account: str) -> bool:
    """False when it is not among them, or was dismissed before."""
    return await _DISMISS_UNREAD.count(tx, signature=signature, token_account=token_account) == 1


# Wallets whose commits raise ---------------------------------------------------------------------

Duty = Literal["settle", "expire", "deposit", "stop", "purchase"]
# How long until a wallet that is set aside is tried again: at first, and twice as long each time.
_FIRST_PAUSE_SECONDS: Final = 10
_MOST_DOUBLINGS: Final = 5

# Many failures of one round count as one try: the row changes only once its pause is over.
_SET_ASIDE = Query(f"""
    INSERT INTO quarantine AS q (agent_id, duty, problem, since, next_try_at)
    VALUES (:agent_id, :duty, :problem, moment(),
            clock_timestamp() + interval '{_FIRST_PAUSE_SECONDS} s')
        ON CONFLICT (agent_id, duty) DO UPDATE
       SET problem = excluded.problem, tries = q.tries + 1,
           next_try_at = clock_timestamp() + make_interval(
             secs => {_FIRST_PAUSE_SECONDS} * 2 ^ least(q.tries, {_MOST_DOUBLINGS}))
     WHERE q.next_try_at <= clock_timestamp()
""")
_RESTING = Query("""
    SELECT agent_id
      FROM quarantine
     WHERE agent_id = ANY(:agent_ids::text[]) AND duty = :duty AND next_try_at > clock_timestamp()
""")
_TAKE_BACK = Query("""
    DELETE FROM quarantine
     WHERE agent_id = ANY(:agent_ids::text[]) AND duty = :duty
    RETURNING agent_id
""")
_COUNT_SET_ASIDE = Query("""
    SELECT r.mode, count(DISTINCT q.agent_id) AS wallets
      FROM quarantine q
      JOIN wallet w ON w.agent_id = q.agent_id
      JOIN realm r ON r.id = w.realm_id
     GROUP BY r.mode
""")


async def set_aside(tx: Tx, agent_id: str, duty: Duty, problem: str) -> None:
    await _SET_ASIDE.run(tx, agent_id=agent_id, duty=duty, problem=problem)


async def resting(tx: Tx, agent_ids: Sequence[str], duty: Duty) -> set[str]:
    """Those of the wallets that are set aside and not to be tried yet."""
    rows = await _RESTING.rows(tx, agent_ids=agent_ids, duty=duty)
    return {row["agent_id"] for row in rows}


async def take_back(tx: Tx, agent_ids: Sequence[str], duty: Duty) -> list[str]:
    """Those of the wallets that were set aside and are no longer."""
    rows = await _TAKE_BACK.rows(tx, agent_ids=agent_ids, duty=duty)
    return [row["agent_id"] for row in rows]


async def count_set_aside(tx: Tx) -> dict[str, int]:
    """By mode; a mode without any is missing."""
    return {row["mode"]: row["wallets"] for row in await _COUNT_SET_ASIDE.rows(tx)}
