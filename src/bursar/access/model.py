"""Keys, scopes and the caller that a key stands for."""

import hashlib
import re
import secrets
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from bursar.clock import iso, iso_or_none
from bursar.config import Mode

_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_CHARACTERS: Final = 32  # 190 bits
_CHECKSUM_CHARACTERS: Final = 6
_KEY = re.compile(
    rf"bur_(test|live)_[0-9A-Za-z]{{{_SECRET_CHARACTERS + _CHECKSUM_CHARACTERS}}}", re.ASCII
)


class Scope(StrEnum):
    """What a key may do; `docs/concepts.md` has the table."""

    ADMIN = "admin"
    AGENT = "agent"
    APPROVER = "approver"
    READ = "read"


# Who may call a route.
ADMIN: Final = frozenset({Scope.ADMIN})
SPENDERS: Final = frozenset({Scope.ADMIN, Scope.AGENT})
STOP: Final = frozenset({Scope.ADMIN, Scope.APPROVER})
PEOPLE: Final = frozenset({Scope.ADMIN, Scope.APPROVER, Scope.READ})
ANYONE: Final = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking: one key, in one realm (an account in one mode)."""

    key_id: str
    realm_id: int
    account_id: str
    account_name: str
    mode: Mode
    scope: Scope
    agent_id: str | None

    def may_see_agent(self, agent_id: str) -> bool:
        """An agent key sees only its own agent; for any other id it is as if there were none."""
        return self.agent_id is None or self.agent_id == agent_id


class IdempotencyKey(msgspec.Struct, frozen=True):
    """Unique per realm, route and (for spends) agent; the fingerprint tells requests apart."""

    realm_id: int
    route: str
    agent_id: str
    key: str
    fingerprint: bytes

    @property
    def place(self) -> tuple[int, str, str, str]:
        return self.realm_id, self.route, self.agent_id, self.key


@dataclass(frozen=True, slots=True)
class KeyRow:
    id: str
    name: str
    scope: Scope
    agent_id: str | None
    mode: Mode
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made: the only moment its secret exists outside the caller's hands."""

    row: KeyRow
    secret: str = field(repr=False)


class Key(msgspec.Struct, rename="camel", kw_only=True):
    """An API key. The key itself is shown once, when it is made."""

    id: str
    name: str
    scope: Scope
    agent_id: str | None
    mode: Mode
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class CreatedKey(Key, rename="camel", kw_only=True):
    """A new API key, with the secret that is never shown again (null in a replay)."""

    key: str | None

    def __repr__(self) -> str:
        return f"CreatedKey(id={self.id!r}, …)"


class CategoryLimit(msgspec.Struct, rename="camel", kw_only=True):
    """How many requests of one category this key may make in any 60 seconds."""

    category: str
    requests_per_minute: int


class Me(Key, rename="camel", kw_only=True):
    """The calling key and its rate limits."""

    account: str
    limits: list[CategoryLimit]


@dataclass(frozen=True, slots=True)
class LogRow:
    id: str
    created_at: datetime
    actor: str
    request_id: str
    action: str
    subject: str
    # The JSON as it was written.
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class LogFilter:
    realm_id: int
    # Whether lines about keys are among them.
    with_keys: bool
    actor: str | None
    action: str | None
    subject: str | None
    start: datetime | None
    end: datetime | None


class LogLine(msgspec.Struct, rename="camel", kw_only=True):
    """Who did what: `before` and `after` are its subject as the API showed it then."""

    id: str
    created_at: str
    actor: str
    request_id: str
    action: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def show_log_line(row: LogRow) -> LogLine:
    return LogLine(
        id=row.id,
        created_at=iso(row.created_at),
        actor=row.actor,
        request_id=row.request_id,
        action=row.action,
        subject=row.subject,
        before=None if row.before is None else msgspec.json.decode(row.before),
        after=None if row.after is None else msgspec.json.decode(row.after),
    )


def show_key(row: KeyRow) -> Key:
    return Key(**key_fields(row))


def key_fields(row: KeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "scope": row.scope,
        "agent_id": row.agent_id,
        "mode": row.mode,
        "created_at": iso(row.created_at),
        "expires_at": iso_or_none(row.expires_at),
        "last_used_at": iso_or_none(row.last_used_at),
        "revoked_at": iso_or_none(row.revoked_at),
    }


def new_secret(mode: Mode) -> str:
    body = "".join(secrets.choice(_BASE62) for _ in range(_SECRET_CHARACTERS))
    prefix = f"bur_{mode}_"
    return prefix + body + _checksum(prefix + body)


def well_formed(key: str) -> bool:
    """Whether form and checksum are right: a mistyped key is refused without a look-up."""
    if _KEY.fullmatch(key) is None:
        return False
    return _checksum(key[:-_CHECKSUM_CHARACTERS]) == key[-_CHECKSUM_CHARACTERS:]


def key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("ascii")).digest()


def _checksum(text: str) -> str:
    value = zlib.crc32(text.encode("ascii"))
    digits: list[str] = []
    for _ in range(_CHECKSUM_CHARACTERS):
        value, digit = divmod(value, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
