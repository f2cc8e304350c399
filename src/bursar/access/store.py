"""Queries on accounts, realms, keys, console sessions, kept answers and the trail."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from bursar.access.model import Caller, KeyRow, Scope, SessionRow
from bursar.config import Mode
from bursar.db import Row, Tx
from bursar.errors import present
from bursar.sql import Query

_KEY_COLUMNS = (
    "k.id, k.name, k.scope, k.agent_id, r.mode, k.created_at, k.expires_at, k.last_used_at,"
    " k.revoked_at"
)


async def ensure_realm(tx: Tx, account_id: str, account_name: str, mode: Mode) -> int:
    """The realm of the named account in a mode, both made if they are new."""
    await tx.execute(
        "INSERT INTO account (id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
        account_id,
        account_name,
    )
    await tx.execute(
        "INSERT INTO realm (account_id, mode) SELECT id, $2 FROM account WHERE name = $1"
        " ON CONFLICT (account_id, mode) DO NOTHING",
        account_name,
        mode,
    )
    return await tx.fetchval(
        "SELECT r.id FROM realm r JOIN account a ON a.id = r.account_id"
        " WHERE a.name = $1 AND r.mode = $2",
        account_name,
        mode,
    )


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
    row = await tx.fetchrow(
        "WITH k AS (INSERT INTO api_key (id, realm_id, scope, agent_id, name, hash, expires_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING *)"
        f" SELECT {_KEY_COLUMNS} FROM k JOIN realm r ON r.id = k.realm_id",
        key_id,
        realm_id,
        scope,
        agent_id,
        name,
        key_hash,
        expires_at,
    )
    row = present(row, "the statement returns a row")
    return _key(row)


async def get_key(tx: Tx, realm_id: int, key_id: str) -> KeyRow | None:
    row = await tx.fetchrow(
        f"SELECT {_KEY_COLUMNS} FROM api_key k JOIN realm r ON r.id = k.realm_id"
        " WHERE k.id = $2 AND k.realm_id = $1",
        realm_id,
        key_id,
    )
    return None if row is None else _key(row)


async def list_keys(
    tx: Tx, realm_id: int, before: tuple[datetime, str] | None, limit: int
) -> list[KeyRow]:
    rows = await tx.fetch(
        f"SELECT {_KEY_COLUMNS} FROM api_key k JOIN realm r ON r.id = k.realm_id"
        " WHERE k.realm_id = $1"
        " AND ($2::timestamptz IS NULL OR (k.created_at, k.id) < ($2, $3::text))"
        " ORDER BY k.created_at DESC, k.id DESC LIMIT $4",
        realm_id,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [_key(row) for row in rows]


async def list_all_keys(tx: Tx) -> list[tuple[str, KeyRow]]:
    """(account name, key) of every realm, for the operator's command."""
    rows = await tx.fetch(
        f"SELECT a.name AS account, {_KEY_COLUMNS} FROM api_key k"
        " JOIN realm r ON r.id = k.realm_id JOIN account a ON a.id = r.account_id"
        " ORDER BY k.created_at DESC, k.id DESC LIMIT 10000"
    )
    return [(row["account"], _key(row)) for row in rows]


async def lock_key(tx: Tx, realm_id: int | None, key_id: str) -> tuple[int, KeyRow] | None:
    """(realm, key), in any realm where none is given."""
    row = await tx.fetchrow(
        f"SELECT k.realm_id, {_KEY_COLUMNS} FROM api_key k JOIN realm r ON r.id = k.realm_id"
        " WHERE k.id = $1 AND ($2::integer IS NULL OR k.realm_id = $2)"
        " FOR NO KEY UPDATE OF k",
        key_id,
        realm_id,
    )
    return None if row is None else (row["realm_id"], _key(row))


async def revoke_key(tx: Tx, key_id: str) -> datetime:
    return await tx.fetchval(
        "UPDATE api_key SET revoked_at = moment() WHERE id = $1 AND revoked_at IS NULL"
        " RETURNING revoked_at",
        key_id,
    )


async def revoke_keys_of_agent(tx: Tx, agent_id: str) -> None:
    await tx.execute(
        "UPDATE api_key SET revoked_at = moment() WHERE agent_id = $1 AND revoked_at IS NULL",
        agent_id,
    )


_CALLER = (
    "SELECT k.id, k.realm_id, r.account_id, a.name AS account_name, r.mode, k.scope, k.agent_id,"
    " k.expires_at - clock_timestamp() AS time_left"
    " FROM api_key k JOIN realm r ON r.id = k.realm_id JOIN account a ON a.id = r.account_id"
)
_IN_FORCE = "k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())"


async def find_caller(tx: Tx, key_hash: bytes) -> tuple[Caller, timedelta | None] | None:
    """The caller behind a key that is neither revoked nor expired, and how long it still has."""
    row = await tx.fetchrow(f"{_CALLER} WHERE k.hash = $1 AND {_IN_FORCE}", key_hash)
    return None if row is None else (_caller(row), row["time_left"])


_SESSION_IN_FORCE = f"s.expires_at > clock_timestamp() AND {_IN_FORCE}"
# The use of a session is noted once a minute, and whenever it comes from somewhere else.
_USE_SESSION = Query(f"""
    WITH found AS ({_CALLER.replace("SELECT", "SELECT s.id AS session_id,", 1)}
        JOIN console_session s ON s.key_id = k.id
        WHERE s.token_hash = :token_hash AND {_SESSION_IN_FORCE}),
    used AS (UPDATE console_session s SET last_used_at = moment(), address = :address
        FROM found WHERE s.id = found.session_id
         AND (s.last_used_at < moment() - interval '1 minute' OR s.address <> :address))
    SELECT * FROM found
""")
_INSERT_SESSION = Query("""
    INSERT INTO console_session (id, token_hash, key_id, expires_at, address, browser)
    VALUES (:session_id, :token_hash, :key_id, moment() + make_interval(secs => :seconds),
            :address, :browser)
""")
_LIST_SESSIONS = Query(f"""
    SELECT s.id, s.key_id, k.name AS key_name, k.scope, s.created_at, s.last_used_at, s.address,
           s.browser
      FROM console_session s JOIN api_key k ON k.id = s.key_id
     WHERE k.realm_id = :realm_id AND (:key_id::text IS NULL OR k.id = :key_id)
       AND {_SESSION_IN_FORCE}
     ORDER BY s.created_at DESC, s.id DESC LIMIT :limit
""")
_OF_REALM = """
    DELETE FROM console_session s USING api_key k
     WHERE k.id = s.key_id AND k.realm_id = :realm_id AND (:key_id::text IS NULL OR k.id = :key_id)
"""
_END_SESSION = Query(f"{_OF_REALM} AND s.id = :session_id RETURNING s.id")
_END_OTHER_SESSIONS = Query(f"{_OF_REALM} AND s.id <> :kept_id")


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
    return [SessionRow(*row) for row in rows]


async def end_session(tx: Tx, realm_id: int, key_id: str | None, session_id: str) -> bool:
    """Whether there was such a session."""
    ended = await _END_SESSION.value(tx, realm_id=realm_id, key_id=key_id, session_id=session_id)
    return ended is not None


async def end_other_sessions(tx: Tx, realm_id: int, key_id: str | None, kept_id: str) -> int:
    """How many were ended."""
    status = await _END_OTHER_SESSIONS.run(tx, realm_id=realm_id, key_id=key_id, kept_id=kept_id)
    return int(status.rpartition(" ")[2])


async def drop_oldest_sessions(tx: Tx, key_id: str, kept: int) -> None:
    await tx.execute(
        "DELETE FROM console_session WHERE token_hash IN (SELECT token_hash FROM console_session"
        " WHERE key_id = $1 ORDER BY created_at DESC OFFSET $2)",
        key_id,
        kept,
    )


async def delete_session(tx: Tx, token_hash: bytes) -> None:
    await tx.execute("DELETE FROM console_session WHERE token_hash = $1", token_hash)


async def delete_ended_sessions(tx: Tx, limit: int) -> int:
    status = await tx.execute(
        "DELETE FROM console_session WHERE token_hash IN (SELECT token_hash FROM console_session"
        " WHERE expires_at <= clock_timestamp() LIMIT $1)",
        limit,
    )
    return int(status.rpartition(" ")[2])


def _caller(row: Row) -> Caller:
    return Caller(
        key_id=row["id"],
        realm_id=row["realm_id"],
        account_id=row["account_id"],
        account_name=row["account_name"],
        mode=row["mode"],
        scope=Scope(row["scope"]),
        agent_id=row["agent_id"],
    )


async def still_valid(tx: Tx, key_ids: Sequence[str]) -> set[str]:
    """Which of these keys are neither revoked nor expired now."""
    rows = await tx.fetch(
        "SELECT id FROM api_key WHERE id = ANY($1) AND revoked_at IS NULL"
        " AND (expires_at IS NULL OR expires_at > clock_timestamp())",
        key_ids,
    )
    return {row["id"] for row in rows}


async def touch_keys(tx: Tx, key_ids: Sequence[str]) -> None:
    """Notes that the keys are in use. In id order, so that two processes cannot deadlock."""
    await tx.execute(
        "UPDATE api_key SET last_used_at = moment() WHERE id IN"
        " (SELECT id FROM api_key WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE)",
        key_ids,
    )


def _key(row: Row) -> KeyRow:
    return KeyRow(
        id=row["id"],
        name=row["name"],
        scope=Scope(row["scope"]),
        agent_id=row["agent_id"],
        mode=row["mode"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )


async def lock_idempotency_key(
    tx: Tx, realm_id: int, route: str, agent_id: str, key: str, wait_seconds: int
) -> None:
    """Holds the key until the transaction ends; LockNotAvailableError when another does."""
    await tx.execute(f"SET LOCAL lock_timeout = '{wait_seconds}s'")
    await tx.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
        f"{realm_id}\n{route}\n{agent_id}\n{key}",
    )
    await tx.execute("SET LOCAL lock_timeout TO DEFAULT")


async def get_answers(
    tx: Tx, keys: Sequence[tuple[int, str, str, str]]
) -> dict[tuple[int, str, str, str], tuple[bytes, int, bytes]]:
    """(fingerprint, status, body) stored for any of these (realm, route, agent, key)."""
    columns = list(zip(*keys, strict=True))
    rows = await tx.fetch(
        "SELECT i.realm_id, i.route, i.agent_id, i.key, i.fingerprint, i.status, i.body, e.data"
        " FROM unnest($1::int[], $2::text[], $3::text[], $4::text[])"
        " AS k (realm_id, route, agent_id, key)"
        " JOIN idempotency i USING (realm_id, route, agent_id, key)"
        " LEFT JOIN event e ON e.id = i.event_id",
        *columns,
    )
    return {
        (row["realm_id"], row["route"], row["agent_id"], row["key"]): (
            row["fingerprint"],
            row["status"],
            row["body"] or b'{"data":%s}' % row["data"].encode(),
        )
        for row in rows
    }


async def commit_on_standbys(tx: Tx) -> None:
    """Makes the end of this transaction wait, as a write would, until a synchronous standby has all
    that was committed before it. A transaction that only reads waits for none."""
    await tx.execute("SELECT pg_logical_emit_message(true, 'bursar', '')")


async def insert_answer(tx: Tx, answer: tuple[int, str, str, str, bytes, int, bytes]) -> None:
    """(realm, route, agent, key, fingerprint, status, body)."""
    await tx.execute(
        "INSERT INTO idempotency (realm_id, route, agent_id, key, fingerprint, status, body)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7)",
        *answer,
    )


async def delete_answers(tx: Tx, older_than_days: int, limit: int) -> int:
    status = await tx.execute(
        "DELETE FROM idempotency WHERE ctid IN (SELECT ctid FROM idempotency"
        " WHERE created_at < clock_timestamp() - make_interval(days => $1) LIMIT $2)",
        older_than_days,
        limit,
    )
    return int(status.rpartition(" ")[2])
