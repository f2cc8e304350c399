"""Queries on the audit log."""

from datetime import datetime

from bursar.db import Tx
from bursar.ids import new_id
from bursar.trail.model import LogFilter, LogRow


async def insert_trail(
    tx: Tx,
    realm_id: int | None,
    actor: str,
    request_id: str,
    action: str,
    subject: str,
    before: str | None,
    after: str | None,
) -> None:
    await tx.execute(
        "INSERT INTO audit_log"
        " (line_id, realm_id, actor, request_id, action, subject, before, after)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        new_id("log"),
        realm_id,
        actor,
        request_id,
        action,
        subject,
        before,
        after,
    )


_LOG_COLUMNS = "l.line_id, l.at, l.actor, l.request_id, l.action, l.subject, l.before, l.after"


async def list_log(
    tx: Tx, wanted: LogFilter, before: tuple[datetime, str] | None, limit: int
) -> list[LogRow]:
    """Newest first."""
    rows = await tx.fetch(
        f"SELECT {_LOG_COLUMNS} FROM audit_log l WHERE l.realm_id = $1"
        " AND ($2 OR l.action NOT LIKE 'key.%')"
        " AND ($3::text IS NULL OR l.actor = $3) AND ($4::text IS NULL OR l.action = $4)"
        " AND ($5::text IS NULL OR l.subject = $5)"
        " AND ($6::timestamptz IS NULL OR l.at >= $6) AND ($7::timestamptz IS NULL OR l.at < $7)"
        " AND ($8::timestamptz IS NULL OR (l.at, l.line_id) < ($8, $9::text))"
        " ORDER BY l.at DESC, l.line_id DESC LIMIT $10",
        wanted.realm_id,
        wanted.with_keys,
        wanted.actor,
        wanted.action,
        wanted.subject,
        wanted.start,
        wanted.end,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [LogRow(*row) for row in rows]


async def list_whole_log(tx: Tx, limit: int) -> list[tuple[str | None, str | None, LogRow]]:
    """(account, mode, line) of every realm and of the service itself, for the operator's
    command."""
    rows = await tx.fetch(
        f"SELECT a.name, r.mode, {_LOG_COLUMNS} FROM audit_log l"
        " LEFT JOIN realm r ON r.id = l.realm_id LEFT JOIN account a ON a.id = r.account_id"
        " ORDER BY l.id DESC LIMIT $1",
        limit,
    )
    return [(account, mode, LogRow(*line)) for account, mode, *line in rows]
