"""How a key shows itself."""

from typing import Any

import msgspec

from bursar.access.model import KeyRow, Scope
from bursar.clock import iso, iso_or_none
from bursar.config import Mode
from bursar.stop.view import Stopped


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


class KeyChanged(Key, rename="camel", kw_only=True):
    """A key that was made or revoked, and who did it. It holds no secret."""

    changed_by: str


class CategoryLimit(msgspec.Struct, rename="camel", kw_only=True):
    """How many requests of one category this key may make in any 60 seconds."""

    category: str
    requests_per_minute: int


class Me(Key, rename="camel", kw_only=True):
    """The calling key, its rate limits, and whether its account is stopped."""

    account: str
    limits: list[CategoryLimit]
    stop: Stopped | None


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
