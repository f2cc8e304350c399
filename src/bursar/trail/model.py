"""A line of the audit log: who did what, and when."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LogRow:
    id: str
    created_at: datetime
    actor: str
    request_id: str
    action: str
    subject: str
    # JSON text, as it was written.
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class LogFilter:
    realm_id: int
    # Whether to include lines about keys.
    with_keys: bool
    actor: str | None
    action: str | None
    subject: str | None
    start: datetime | None
    end: datetime | None
