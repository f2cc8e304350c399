"""Sessions of the console: a random token in the browser stands for a key, for some hours.

The key itself is not kept: a session is the hash of its token and the id of its key. A key that is
revoked or expires ends its sessions with the next request, for every request looks it up.
"""

import hashlib
import hmac
import secrets
from typing import Final

from bursar.access import store
from bursar.access.model import Caller
from bursar.db import Tx
from bursar.trail.trail import leave_trail

SESSION_SECONDS: Final = 12 * 3600
# Browsers that one key can be signed in with; the oldest makes room.
_MOST_SESSIONS: Final = 20
_TOKEN_BYTES: Final = 32


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def form_token(token: str) -> str:
    """What every form of this browser carries. Another site can make the browser send its cookie,
    but can read neither that nor this."""
    return hmac.digest(token.encode(), b"form", "sha256").hex()


def is_form_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), form_token(token).encode())


async def begin(tx: Tx, caller: Caller, request_id: str) -> str:
    """A new session of the caller's key; returns its token, which is kept nowhere else."""
    token = new_token()
    await store.insert_session(tx, _hash(token), caller.key_id, SESSION_SECONDS)
    await store.drop_oldest_sessions(tx, caller.key_id, _MOST_SESSIONS)
    await leave_trail(
        tx,
        realm_id=caller.realm_id,
        actor=caller.key_id,
        request_id=request_id,
        action="console.signed_in",
        subject=caller.key_id,
    )
    return token


async def caller_of(tx: Tx, token: str) -> Caller | None:
    """Who is signed in with this token; None when nobody is, or no longer."""
    return await store.find_session_caller(tx, _hash(token))


async def end(tx: Tx, token: str) -> None:
    await store.delete_session(tx, _hash(token))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
