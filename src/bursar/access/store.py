"""Queries on accounts, realms, keys, console sessions and the answers kept for idempotency keys."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from bursar.access.model import Caller, IdempotencyKey, KeyRow, Scope, SessionRow
from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.sql import DAYS_AGO, Listing, Query, columns, made, sweeping

# Accounts ----------------------------------------------------------------------------------------

_ENSURE_ACCOUNT = Query("""
    INSERT INTO account (id, name)
    VALUES (:account_id, :account_name)
    ON CONFLICT (name) DO NOTHING
""")
_ENSURE_REALM = Query("""
    INSERT INTO realm (account_id, mode)
    SELECT id, :mode
      FROM account
     WHERE name = :account_name
    ON CONFLICT (account_id, mode) DO NOTHING
""")
_GET_REALM = Query("""
    SELECT r.id
      FROM realm r
      JOIN account a ON a.id = r.account_id
     WHERE a.name = :account_name
       AND r.mode = :mode
""")


async def ensure_realm(tx: Tx, account_id: str, account_name: str, mode: Mode) -> int:
    """The realm of the named account in a mode, both made if they are new."""
    await _ENSURE_ACCOUNT.run(tx, account_id=account_id, account_name=account_name)
    await _ENSURE_REALM.run(tx, account_name=account_name, mode=mode)
    return await _GET_REALM.value(tx, account_name=account_name, mode=mode)


# Keys --------------------------------------------------------------------------------------------

_KEY_COLUMNS = f"{columns(KeyRow, 'k', but=['mode'])}, r.mode"
_KEY = f"""
    SELECT {_KEY_COLUMNS}, k.realm_id
      FROM api_key k
      JOIN realm r ON r.id = k.realm_id
"""
_IN_FORCE = "k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())"
_INSERT_KEY = Query(f"""
    WITH k AS (
        INSERT INTO api_key (id, realm_id, scope, agent_id, name, hash, expires_at)
        VALUES (:key_id, :realm_id, :scope, :agent_id, :name, :key_hash, :expires_at)
        RETURNING *)
    SELECT {_KEY_COLUMNS}
      FROM k
      JOIN realm r ON r.id = k.realm_id
""")
_GET_KEY = Query(f"""
    {_KEY}
     WHERE k.id = :key_id
       AND k.realm_id = :realm_id
""")
_LIST_KEYS = Listing(
    f"""
    {_KEY}
     WHERE k.realm_id = :realm_id
    """,
    "k.created_at",
    "k.id",
)
_LIST_ALL_KEYS = Query(f"""
    SELECT {_KEY_COLUMNS}, a.name AS account
      FROM api_key k
      JOIN realm r ON r.id = k.realm_id
      JOIN account a ON a.id = r.account_id
     ORDER BY k.created_at DESC, k.id DESC
     LIMIT 10000
""")
_LOCK_KEY = Query(f"""
    {_KEY}
     WHERE k.id = :key_id
       AND (:realm_id::integer IS NULL OR k.realm_id = :realm_id)
       FOR NO KEY UPDATE OF k
""")
_REVOKE_KEY = Query("""
    UPDATE api_key
       SET revoked_at = moment()
     WHERE id = :key_id
       AND revoked_at IS NULL
    RETURNING revoked_at
""")
_REVOKE_KEYS_OF_AGENT = Query("""
    UPDATE api_key
       SET revoked_at = moment()
     WHERE agent_id = :agent_id
       AND revoked_at IS NULL
""")
# One array and not a row for each key: it is read several times a second, for all keys in use.
_STILL_VALID = Query(f"""
    SELECT coalesce(array_agg(k.id), '{{}}')
      FROM api_key k
     WHERE k.id = ANY(:key_ids)
       AND {_IN_FORCE}
""")
# In id order, so that two processes cannot deadlock.
_TOUCH_KEYS = Query("""
    UPDATE api_key
       SET last_used_at = moment()
     WHERE id IN (SELECT id
                    FROM api_key
                   WHERE id = ANY(:key_ids)
                   ORDER BY id
                     FOR NO KEY UPDATE)
""")


async def insert_key(
    tx: Tx,
    *,
    key_id: str,
    realm_id: int,
    scope: Scope,
    agent_id: str | None,
    name: str,
    key_hash: bytes,
    expires_at: datetime | None,
) -> KeyRow:
    row = await _INSERT_KEY.one(
        tx,
        key_id=key_id,
        realm_id=realm_id,
        scope=scope,
        agent_id=agent_id,
        name=name,
        key_hash=key_hash,
        expires_at=expires_at,
    )
    return _key(row)


async def get_key(tx: Tx, realm_id: int, key_id: str) -> KeyRow | None:
    row = await _GET_KEY.row(tx, realm_id=realm_id, key_id=key_id)
    return None if row is None else _key(row)


async def list_keys(
    tx: Tx, realm_id: int, before: tuple[datetime, str] | None, limit: int
) -> list[KeyRow]:
    return [_key(row) for row in await _LIST_KEYS.rows(tx, before, limit, realm_id=realm_id)]


async def list_all_keys(tx: Tx) -> list[tuple[str, KeyRow]]:
    """(account name, key) of every realm, for the operator's command."""
    return [(row["account"], _key(row)) for row in await _LIST_ALL_KEYS.rows(tx)]


async def lock_key(tx: Tx, realm_id: int | None, key_id: str) -> tuple[int, KeyRow] | None:
    """(realm, key); with `realm_id` None a key of any realm."""
    row = await _LOCK_KEY.row(tx, realm_id=realm_id, key_id=key_id)
    return None if row is None else (row["realm_id"], _key(row))


async def revoke_key(tx: Tx, key_id: str) -> datetime:
    return await _REVOKE_KEY.value(tx, key_id=key_id)


async def revoke_keys_of_agent(tx: Tx, agent_id: str) -> None:
    await _REVOKE_KEYS_OF_AGENT.run(tx, agent_id=agent_id)


async def still_valid(tx: Tx, key_ids: Sequence[str]) -> set[str]:
    """Which of these keys are neither revoked nor expired now."""
    return set(await _STILL_VALID.value(tx, key_ids=key_ids))


async def touch_keys(tx: Tx, key_ids: Sequence[str]) -> None:
    """Notes that the keys are in use."""
    await _TOUCH_KEYS.run(tx, key_ids=key_ids)


def _key(row: Row) -> KeyRow:
    return made(KeyRow, row, scope=Scope(row["scope"]))


# Callers and the sessions of the console ---------------------------------------------------------

_CALLER = """
    SELECT k.id AS key_id, k.realm_id, r.account_id, a.name AS account_name, r.mode, k.scope,
           k.agent_id, k.expires_at - clock_timestamp() AS time_left
      FROM api_key k
      JOIN realm r ON r.id = k.realm_id
      JOIN account a ON a.id = r.account_id
"""
_FIND_CALLER = Query(f"""
    {_CALLER}
     WHERE k.hash = :key_hash
       AND {_IN_FORCE}
""")
_SESSION_IN_FORCE = f"s.expires_at > clock_timestamp() AND {_IN_FORCE}"
# The use of a session is noted once a minute, and whenever it comes from somewhere else.
_USE_SESSION = Query(f"""
    WITH found AS (
        {_CALLER.replace("SELECT", "SELECT s.id AS session_id,", 1)}
          JOIN console_session s ON s.key_id = k.id
         WHERE s.token_hash = :token_hash
           AND {_SESSION_IN_FORCE}),
    used AS (
        UPDATE console_session s
           SET last_used_at = moment(),
               address = :address
          FROM found
         WHERE s.id = found.session_id
           AND (s.last_used_at < moment() - interval '1 minute' OR s.address <> :address))
    SELECT *
      FROM found
""")
_INSERT_SESSION = Query("""
    INSERT INTO console_session (id, token_hash, key_id, expires_at, address, browser)
    VALUES (:session_id, :token_hash, :key_id, moment() + make_interval(secs => :seconds),
            :address, :browser)
""")
_LIST_SESSIONS = Query(f"""
    SELECT {columns(SessionRow, "s", but=["key_name", "scope"])}, k.name AS key_name, k.scope
      FROM console_session s
      JOIN api_key k ON k.id = s.key_id
     WHERE k.realm_id = :realm_id
       AND (:key_id::text IS NULL OR k.id = :key_id)
       AND {_SESSION_IN_FORCE}
     ORDER BY s.created_at DESC, s.id DESC
     LIMIT :limit
""")
_END_SESSIONS = """
    DELETE FROM console_session s
     USING api_key k
     WHERE k.id = s.key_id
       AND k.realm_id = :realm_id
       AND (:key_id::text IS NULL OR k.id = :key_id)
"""
_END_SESSION = Query(f"{_END_SESSIONS} AND s.id = :session_id")
_END_OTHER_SESSIONS = Query(f"{_END_SESSIONS} AND s.id <> :kept_id")
_DROP_OLDEST_SESSIONS = Query("""
    DELETE FROM console_session
     WHERE token_hash IN (SELECT token_hash
                            FROM console_session
                           WHERE key_id = :key_id
                           ORDER BY created_at DESC
                          OFFSET :kept)
""")
_DELETE_SESSION = Query("DELETE FROM console_session WHERE token_hash = :token_hash")
_DELETE_ENDED_SESSIONS = sweeping(
    "console_session", "token_hash", "expires_at", "expires_at <= (SELECT clock_timestamp())"
)


async def find_caller(tx: Tx, key_hash: bytes) -> tuple[Caller, timedelta | None] | None:
    """The caller behind a key that is neither revoked nor expired, and the time until the key
    expires; None where it never does."""
    row = await _FIND_CALLER.row(tx, key_hash=key_hash)
    return None if row is None else (_caller(row), row["time_left"])


async def use_session(tx: Tx, token_hash: bytes, address: str) -> tuple[str, Caller] | None:
    """(session, caller) of a session that has not ended, whose key is in force at this moment."""
    row = await _USE_SESSION.row(tx, token_hash=token_hash, address=address)
    return None if row is None else (row["session_id"], _caller(row))


async def insert_session(
    tx: Tx,
    *,
    session_id: str,
    token_hash: bytes,
    key_id: str,
    seconds: int,
    address: str,
    browser: str,
) -> None:
    await _INSERT_SESSION.run(
        tx,
        session_id=session_id,
        token_hash=token_hash,
        key_id=key_id,
        seconds=seconds,
        address=address,
        browser=browser,
    )


async def list_sessions(tx: Tx, realm_id: int, key_id: str | None, limit: int) -> list[SessionRow]:
    """Newest first; of one key, or of all keys of the realm."""
    rows = await _LIST_SESSIONS.rows(tx, realm_id=realm_id, key_id=key_id, limit=limit)
    return [made(SessionRow, row) for row in rows]


async def end_session(tx: Tx, realm_id: int, key_id: str | None, session_id: str) -> bool:
    """Whether there was such a session."""
    count = await _END_SESSION.count(tx, realm_id=realm_id, key_id=key_id, session_id=session_id)
    return count == 1


async def end_other_sessions(tx: Tx, realm_id: int, key_id: str | None, kept_id: str) -> int:
    """How many were ended."""
    return await _END_OTHER_SESSIONS.count(tx, realm_id=realm_id, key_id=key_id, kept_id=kept_id)


async def drop_oldest_sessions(tx: Tx, key_id: str, kept: int) -> None:
    await _DROP_OLDEST_SESSIONS.run(tx, key_id=key_id, kept=kept)


async def delete_session(tx: Tx, token_hash: bytes) -> None:
    await _DELETE_SESSION.run(tx, token_hash=token_hash)


async def delete_ended_sessions(tx: Tx, limit: int) -> int:
    return await _DELETE_ENDED_SESSIONS.count(tx, limit=limit)


def _caller(row: Row) -> Caller:
    return made(Caller, row, scope=Scope(row["scope"]))


# Idempotency -------------------------------------------------------------------------------------

_LOCK_IDEMPOTENCY_KEY = Query("SELECT pg_advisory_xact_lock(hashtextextended(:place, 0))")
_GET_ANSWERS = Query("""
    SELECT i.realm_id, i.route, i.key, i.fingerprint, i.status, i.body
      FROM unnest(:realm_ids::int[], :routes::text[], :keys::text[]) AS k (realm_id, route, key)
      JOIN idempotency i USING (realm_id, route, key)
""")
_COMMIT_ON_STANDBYS = Query("SELECT pg_logical_emit_message(true, 'bursar', '')")
_INSERT_ANSWER = Query("""
    INSERT INTO idempotency (realm_id, route, key, fingerprint, status, body)
    VALUES (:realm_id, :route, :key, :fingerprint, :status, :body)
""")
_DELETE_ANSWERS = sweeping("idempotency", "ctid", "created_at", f"created_at < {DAYS_AGO}")


async def lock_idempotency_key(
    tx: Tx, realm_id: int, route: str, agent_id: str, key: str, wait_seconds: int
) -> None:
    """Holds the key until the transaction ends. Raises LockNotAvailableError when another
    transaction holds it all this time."""
    await tx.execute(f"SET LOCAL lock_timeout = '{wait_seconds}s'")
    await _LOCK_IDEMPOTENCY_KEY.run(tx, place=f"{realm_id}\n{route}\n{agent_id}\n{key}")
    await tx.execute("SET LOCAL lock_timeout TO DEFAULT")


async def get_answers(
    tx: Tx, keys: Sequence[tuple[int, str, str]]
) -> dict[tuple[int, str, str], tuple[bytes, int, bytes]]:
    """(fingerprint, status, body) stored for any of these (realm, route, key)."""
    realm_ids, routes, names = zip(*keys, strict=True)
    rows = await _GET_ANSWERS.rows(tx, realm_ids=realm_ids, routes=routes, keys=names)
    return {(row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in rows}


async def commit_on_standbys(tx: Tx) -> None:
    """Makes the end of this transaction wait, as a write would, until a synchronous standby has all
    that was committed before it. A transaction that only reads waits for none."""
    await _COMMIT_ON_STANDBYS.run(tx)


async def insert_answer(tx: Tx, key: IdempotencyKey, status: int, body: bytes) -> None:
    await _INSERT_ANSWER.run(
        tx,
        realm_id=key.realm_id,
        route=key.route,
        key=key.key,
        fingerprint=key.fingerprint,
        status=status,
        body=body,
    )


async def delete_answers(tx: Tx, older_than_days: int, limit: int) -> int:
    return await _DELETE_ANSWERS.count(tx, days=older_than_days, limit=limit)
