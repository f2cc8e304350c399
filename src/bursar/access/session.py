"""Sessions of the console: a random token in the browser stands for a key, for some hours.

The key itself is not kept: a session is the hash of its token and the id of its key. Every request
looks both up, so a session is over with the next request once it was ended in any process, or its
key was revoked or has expired.
"""

import hashlib
import hmac
import secrets
from typing import Final

from bursar.access import store
from bursar.access.model import Caller, Scope, SessionRow
from bursar.db import Tx
from bursar.errors import not_found
from bursar.ids import new_id
from bursar.trail.trail import leave_trail

SESSION_SECONDS: Final = 12 * 3600
# Sessions that one key may have; a further one ends the oldest.
_MOST_SESSIONS: Final = 20
# Sessions that a page lists, the newest first. Ending all others also ends those not listed.
_MOST_LISTED: Final = 100
_MOST_BROWSER_CHARACTERS: Final = 200
_TOKEN_BYTES: Final = 32


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def form_token(token: str) -> str:
    """The token that every form of this session carries. Another site can make the browser send its
    cookie, but cannot read the cookie or this token."""
    return hmac.digest(token.encode(), b"form", "sha256").hex()


def is_form_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), form_token(token).encode())


async def begin(tx: Tx, caller: Caller, request_id: str, *, address: str, browser: str) -> str:
    """A new session of the caller's key; returns its token, which is kept nowhere else."""
    token = new_token()
    await store.insert_session(
        tx,
        session_id=new_id("ses"),
        token_hash=_hash(token),
        key_id=caller.key_id,
        seconds=SESSION_SECONDS,
        address=address,
        browser="".join(filter(str.isprintable, browser))[:_MOST_BROWSER_CHARACTERS],
    )
    await store.drop_oldest_sessions(tx, caller.key_id, _MOST_SESSIONS)
    await _leave_trail(tx, caller, request_id, "console.signed_in", caller.key_id)
    return token


async def find(tx: Tx, token: str, address: str) -> tuple[str, Caller] | None:
    """(session, caller) of this token, and notes that it was used from this address; None when the
    session does not exist or is over."""
    return await store.use_session(tx, _hash(token), address)


async def end(tx: Tx, token: str) -> None:
    await store.delete_session(tx, _hash(token))


# From another session -----------------------------------------------------------------------------


async def listed(tx: Tx, caller: Caller) -> list[SessionRow]:
    """The sessions that the caller may see and end, newest first."""
    return await store.list_sessions(tx, caller.realm_id, _only(caller), _MOST_LISTED)


async def end_one(tx: Tx, caller: Caller, request_id: str, session_id: str) -> None:
    if not await store.end_session(tx, caller.realm_id, _only(caller), session_id):
        raise not_found("session")
    await _leave_trail(tx, caller, request_id, "console.session_ended", session_id)


async def end_others(tx: Tx, caller: Caller, request_id: str, kept_id: str) -> None:
    ended = await store.end_other_sessions(tx, caller.realm_id, _only(caller), kept_id)
    await _leave_trail(
        tx, caller, request_id, "console.other_sessions_ended", kept_id, {"count": ended}
    )


def _only(caller: Caller) -> str | None:
    """An admin key sees the sessions of all keys of its account and mode, any other key only its
    own."""
    return None if caller.scope is Scope.ADMIN else caller.key_id


async def _leave_trail(
    tx: Tx,
    caller: Caller,
    request_id: str,
    action: str,
    subject: str,
    after: dict[str, int] | None = None,
) -> None:
    await leave_trail(
        tx,
        realm_id=caller.realm_id,
        actor=caller.key_id,
        request_id=request_id,
        action=action,
        subject=subject,
        after=after,
    )


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
