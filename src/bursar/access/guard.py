"""Who is calling: keys looked up in the database, remembered for less than a second."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from bursar.access import store
from bursar.access.model import Caller, key_hash, well_formed
from bursar.clock import Clock
from bursar.db import OUT_OF_REACH, ROLLED_BACK, Database
from bursar.errors import ApiError, ErrorCode

# A revoked key must stop working within a second in every process. All remembered keys are checked
# again in one query every 0.3 s; a key that could not be checked (the database is away) is not
# trusted beyond 0.9 s.
_RECHECK_SECONDS: Final = 0.3
_TRUST_NS: Final = 900_000_000
# A key that was not used for this long is forgotten. Until then re-checking it costs far less than
# looking it up at its next use.
_KEEP_NS: Final = 10_000_000_000
_TOUCH_EVERY_NS: Final = 60_000_000_000
_MICROSECOND: Final = timedelta(microseconds=1)

_log = structlog.get_logger()


@dataclass(slots=True)
class _Entry:
    caller: Caller
    checked_ns: int
    # When the key itself expires: from then on it is refused however recently it was checked. None:
    # never.
    expires_ns: int | None
    used_ns: int
    touched_ns: int

    def is_trusted(self, now_ns: int) -> bool:
        alive = self.expires_ns is None or now_ns < self.expires_ns
        return alive and now_ns - self.checked_ns < _TRUST_NS


class Guard:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        # By hash: the keys themselves are not kept in memory.
        self._entries: dict[bytes, _Entry] = {}

    async def authenticate(self, authorization: str | None) -> Caller:
        """The caller that an `Authorization` header names. Every kind of bad key gets the same
        answer."""
        scheme, _, key = (authorization or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key.isascii():
            raise _unauthorized()
        digest = key_hash(key)
        entry = self._entries.get(digest)
        now = self._clock.monotonic_ns()
        if entry is not None and entry.is_trusted(now):
            entry.used_ns = now
            return entry.caller
        # A remembered key was well-formed, so only an unknown one is checked for its form.
        if not well_formed(key):
            raise _unauthorized()
        async with self._db.connection() as tx:
            found = await store.find_caller(tx, digest)
        if found is None:
            self._entries.pop(digest, None)
            raise _unauthorized()
        caller, left = found
        self._entries[digest] = _Entry(
            caller,
            checked_ns=now,
            expires_ns=None if left is None else now + left // _MICROSECOND * 1_000,
            used_ns=now,
            touched_ns=now - _TOUCH_EVERY_NS,
        )
        return caller

    def forget(self, key_id: str) -> None:
        """Forgets a key that this process revoked, so that it is refused from the answer on."""
        self._drop(lambda entry: entry.caller.key_id == key_id)

    def forget_agent(self, agent_id: str) -> None:
        self._drop(lambda entry: entry.caller.agent_id == agent_id)

    async def recheck_forever(self) -> None:
        while True:
            await asyncio.sleep(_RECHECK_SECONDS)
            try:
                await self._recheck()
            except (*OUT_OF_REACH, *ROLLED_BACK) as problem:
                _log.warning("keys_not_rechecked", problem=type(problem).__name__)

    async def _recheck(self) -> None:
        started = self._clock.monotonic_ns()
        entries = list(self._entries.items())
        if not entries:
            return
        async with self._db.connection() as tx:
            valid = await store.still_valid(tx, [entry.caller.key_id for _, entry in entries])
        to_touch: list[str] = []
        for digest, entry in entries:
            if entry.caller.key_id not in valid or started - entry.used_ns > _KEEP_NS:
                self._entries.pop(digest, None)
                continue
            entry.checked_ns = started
            if entry.used_ns - entry.touched_ns >= _TOUCH_EVERY_NS:
                entry.touched_ns = started
                to_touch.append(entry.caller.key_id)
        if to_touch:
            async with self._db.connection() as tx:
                await store.touch_keys(tx, to_touch)

    def _drop(self, condemned: Callable[[_Entry], bool]) -> None:
        self._entries = {d: entry for d, entry in self._entries.items() if not condemned(entry)}


def _unauthorized() -> ApiError:
    return ApiError(
        ErrorCode.UNAUTHORIZED,
        "Send a valid API key as 'Authorization: Bearer bur_…'."
        " Make one with 'bursar keys create'.",
        headers={"WWW-Authenticate": "Bearer"},
    )
