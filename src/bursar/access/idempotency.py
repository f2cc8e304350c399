"""One purchase, one payment: the answer to a POST is stored in the commit of its effect."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, cast

import asyncpg
import msgspec

from bursar.access import store
from bursar.access.model import IdempotencyKey
from bursar.db import Tx
from bursar.errors import ApiError, ErrorCode, Fault

KEY_PATTERN: Final = r"[\x20-\x7e]{1,255}"
_KEY = re.compile(KEY_PATTERN, re.ASCII)
# How long a second request waits for the first one with the same key.
WAIT_SECONDS: Final = 5
_encode = msgspec.json.Encoder(order="deterministic").encode


class StoredAnswer(msgspec.Struct, frozen=True):
    fingerprint: bytes
    status: int
    body: bytes


def read_key(header: str | None, faults: list[Fault]) -> str | None:
    """The header's value; a fault when it is not 1 to 255 printable characters."""
    if header is not None and _KEY.fullmatch(header) is None:
        faults.append(
            Fault("Idempotency-Key", "Idempotency-Key must be 1 to 255 printable ASCII characters.")
        )
    return header


def fingerprint(method: str, path: str, agent_id: str, body: dict[str, Any]) -> bytes:
    canonical = _encode([method, path, agent_id, _without_defaults(body)])
    return hashlib.sha256(canonical).digest()


def _without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not null, false or empty. Leaving such a field out means the same,
    because no field of a POST has another default."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        said = value
        if isinstance(value, dict):
            said = _without_defaults(cast("dict[str, Any]", value))
        if said or (said is not False and isinstance(said, str | int)):
            kept[name] = said
    return kept


def matching(stored: StoredAnswer, key: IdempotencyKey) -> StoredAnswer:
    """The stored answer, if its request was the same as this one; raises ApiError (422)
    otherwise."""
    if stored.fingerprint != key.fingerprint:
        raise ApiError(
            ErrorCode.IDEMPOTENCY_KEY_REUSED,
            "This Idempotency-Key was used for a different request. Use a new key for a new"
            " request; repeat a request unchanged to get its answer again.",
            param="Idempotency-Key",
        )
    return stored


async def claim(tx: Tx, key: IdempotencyKey) -> StoredAnswer | None:
    """Waits for a running request with the same key, then returns the answer it stored, if any.

    Locks the key until the transaction ends, so that two requests with it never run at once.
    """
    try:
        await store.lock_idempotency_key(tx, *key.place, WAIT_SECONDS)
    except asyncpg.LockNotAvailableError:
        raise in_progress() from None
    stored = (await find(tx, [key])).get(key.place)
    return None if stored is None else matching(stored, key)


async def find(
    tx: Tx, keys: Sequence[IdempotencyKey]
) -> dict[tuple[int, str, str, str], StoredAnswer]:
    """The answers stored for these keys. Locks nothing: spends hold their wallets' locks already,
    and `api/once.py` claims the key before it stores an answer.

    A stored answer may be missing on the standby, because the request that wrote it gave up waiting
    for that. So this transaction waits for a standby before the answer is sent to the client.
    """
    rows = await store.get_answers(tx, [(key.realm_id, key.route, key.key) for key in keys])
    if rows:
        await wait_for_standbys(tx)
    return {
        key.place: StoredAnswer(*rows[place])
        for key in keys
        if (place := (key.realm_id, key.route, key.key)) in rows
    }


async def wait_for_standbys(tx: Tx) -> None:
    """Makes the end of this transaction wait until a synchronous standby has all that was committed
    before."""
    await store.commit_on_standbys(tx)


async def record(tx: Tx, key: IdempotencyKey, status: int, body: bytes) -> None:
    """Stores the answer in the transaction that has the effect."""
    await store.insert_answer(tx, key, status, body)


def in_progress() -> ApiError:
    return ApiError(
        ErrorCode.IDEMPOTENCY_IN_PROGRESS,
        "The first request with this Idempotency-Key is still running. Try again in a second;"
        " you will get its answer.",
        param="Idempotency-Key",
        headers={"Retry-After": "1"},
    )
