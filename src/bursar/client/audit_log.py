"""The audit log: who did what in the account."""

from bursar.client.codec import When, when_text
from bursar.client.endpoint import Carrier, Request, Resource, download, listing
from bursar.client.model import LogLine


class AuditLog(Resource[Carrier]):
    @listing("GET /v1/audit-log", LogLine)
    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        from_: When | None = None,
        to: When | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Request:
        """Lines, newest first. `actor` is the id of a key; they are kept for ever."""
        filters = _filters(actor, action, subject, from_, to)
        return Request(query={**filters, "limit": limit, "after": after})

    @download("GET /v1/audit-log/export")
    def export(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        from_: When | None = None,
        to: When | None = None,
    ) -> Request:
        """The same lines as CSV with a header line: bytes, piece by piece."""
        return Request(query=_filters(actor, action, subject, from_, to))


def _filters(
    actor: str | None,
    action: str | None,
    subject: str | None,
    from_: When | None,
    to: When | None,
) -> dict[str, object]:
    return {
        "actor": actor,
        "action": action,
        "subject": subject,
        "from": None if from_ is None else when_text(from_),
        "to": None if to is None else when_text(to),
    }
