"""Keys, scopes and the caller that a key stands for."""

import hashlib
import re
import secrets
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

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
APPROVERS: Final = frozenset({Scope.ADMIN, Scope.APPROVER})
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
        """An agent key sees only its own agent; every other agent does not exist for it."""
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
class SessionRow:
    """A browser that is signed in to the console."""

    id: str
    key_id: str
    key_name: str
    scope: str
    created_at: datetime
    last_used_at: datetime
    address: str
    browser: str


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
