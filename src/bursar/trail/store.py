"""Queries on the audit log."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from bursar.db import Tx
from bursar.ids import new_id
from bursar.sql import Listing, Query, columns, made
from bursar.trail.model import LogFilter, LogRow

_LINE = f"""l.line_id AS id, l.at AS created_at,
           {columns(LogRow, "l", but=["id", "created_at"])}"""
_INSERT = Query("""
    INSERT INTO audit_log
           (line_id, realm_id, actor, request_id, action, subject, before, after)
    VALUES (:line_id, :realm_id, :actor, :request_id, :action, :subject, :before, :after)
""")
_LIST = Listing(
    f"""
    SELECT {_LINE}
      FROM audit_log l
     WHERE l.realm_id = :realm_id
       AND (:with_keys OR l.action NOT LIKE 'key.%')
       AND l.actor = :actor
       AND l.action = :action
       AND l.subject = :subject
       AND l.at >= :start
       AND l.at < :end
    """,
    "l.at",
    "l.line_id",
)
_LIST_WHOLE = Query(f"""
    SELECT {_LINE}, a.name AS account, r.mode
      FROM audit_log l
      LEFT JOIN realm r ON r.id = l.realm_id
      LEFT JOIN account a ON a.id = r.account_id
     ORDER BY l.id DESC
     LIMIT :limit
""")


async def insert_trail(
    tx: Tx,
    realm_id: int | None,
    actor: str,
    request_id: str,
    lines: Sequence[tuple[str, str, str | None, str | None]],
) -> None:
    """Lines of (action, subject, before, after)."""
    await _INSERT.run_each(
        tx,
        [
            {
                "line_id": new_id("log"),
                "realm_id": realm_id,
                "actor": actor,
                "request_id": request_id,
                "action": action,
                "subject": subject,
                "before": before,
                "after": after,
            }
            for action, subject, before, after in lines
        ],
    )


async def list_log(
    tx: Tx, wanted: LogFilter, before: tuple[datetime, str] | None, limit: int
) -> list[LogRow]:
    return [made(LogRow, row) for row in await _LIST.rows(tx, before, limit, **asdict(wanted))]


async def list_whole_log(tx: Tx, limit: int) -> list[tuple[str | None, str | None, LogRow]]:
    """(account, mode, line) of every realm and of the service itself, for the operator's
    command."""
    rows = await _LIST_WHOLE.rows(tx, limit=limit)
    return [(row["account"], row["mode"], made(LogRow, row)) for row in rows]
