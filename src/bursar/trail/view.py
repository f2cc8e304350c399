"""How a line of the audit log shows itself."""

from typing import Any

import msgspec

from bursar.clock import iso
from bursar.trail.model import LogRow


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
