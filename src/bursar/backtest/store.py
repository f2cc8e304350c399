"""Queries on backtests and drafts, and on the history that they replay."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from bursar.backtest.model import Asked, BacktestRow
from bursar.backtest.report import Change
from bursar.db import Row, Tx
from bursar.policy.engine import Rule
from bursar.sql import DAYS_AGO, Query, columns, made, sweeping

_encode = msgspec.json.Encoder().encode
_asked = msgspec.json.Decoder(Asked).decode

_INSERT = Query(f"""
    INSERT INTO backtest (id, realm_id, asked, starts_at, ends_at, created_by)
    VALUES (:backtest_id, :realm_id, :asked, :starts_at, :ends_at, :created_by)
    RETURNING {columns(BacktestRow)}
""")
_GET = Query(f"""
    SELECT {columns(BacktestRow)}
      FROM backtest
     WHERE id = :backtest_id AND realm_id = :realm_id
""")
# Until the commit no other request of the account counts them.
_LOCK_REALM = Query("SELECT FROM realm WHERE id = :realm_id FOR NO KEY UPDATE")
_OPEN = Query("""
    SELECT count(*)
      FROM backtest
     WHERE realm_id = :realm_id AND status IN ('queued', 'running')
""")
_CHANGES = Query(f"""
    SELECT {columns(Change)}, number
      FROM backtest_change
     WHERE backtest_id = :backtest_id AND number > :after
     ORDER BY number
     LIMIT :limit
""")
# Those that nobody has, or whose worker is gone; the oldest first.
_CLAIM = Query(f"""
    UPDATE backtest
       SET status = 'running', holder = :holder, tries = tries + 1, percent = 0,
           leased_until = clock_timestamp() + make_interval(secs => :lease_seconds)
     WHERE id = (SELECT id
                   FROM backtest
                  WHERE status = 'queued'
                     OR status = 'running' AND leased_until < clock_timestamp()
                  ORDER BY created_at
                  LIMIT 1
                    FOR UPDATE SKIP LOCKED)
    RETURNING {columns(BacktestRow)}, tries
""")
_FORGET_CHANGES = Query("DELETE FROM backtest_change WHERE backtest_id = :backtest_id")
_PROGRESS = Query("""
    UPDATE backtest
       SET percent = :percent,
           leased_until = clock_timestamp() + make_interval(secs => :lease_seconds)
     WHERE id = :backtest_id AND holder = :holder AND status = 'running'
""")
_GIVE_BACK = Query("""
    UPDATE backtest
       SET status = 'queued', holder = NULL, leased_until = NULL, percent = 0, tries = tries - 1
     WHERE holder = :holder AND status = 'running'
""")
_FINISH = Query("""
    UPDATE backtest
       SET status = CASE WHEN :problem::text IS NULL THEN 'done' ELSE 'failed' END,
           problem = :problem, result = :result, percent = 100, holder = NULL, leased_until = NULL,
           finished_at = moment()
     WHERE id = :backtest_id AND holder = :holder AND status = 'running'
""")
_FORGET = sweeping(
    "backtest", "id", "created_at", f"created_at < {DAYS_AGO} AND status IN ('done', 'failed')"
)


async def insert_backtest(
    tx: Tx,
    backtest_id: str,
    realm_id: int,
    asked: Asked,
    starts_at: datetime,
    ends_at: datetime,
    created_by: str,
) -> BacktestRow:
    row = await _INSERT.one(
        tx,
        backtest_id=backtest_id,
        realm_id=realm_id,
        asked=_encode(asked).decode(),
        starts_at=starts_at,
        ends_at=ends_at,
        created_by=created_by,
    )
    return _backtest(row)


async def get_backtest(tx: Tx, realm_id: int, backtest_id: str) -> BacktestRow | None:
    row = await _GET.row(tx, realm_id=realm_id, backtest_id=backtest_id)
    return None if row is None else _backtest(row)


async def count_open(tx: Tx, realm_id: int) -> int:
    """How many wait or run. Until the commit the account gets no other."""
    await _LOCK_REALM.run(tx, realm_id=realm_id)
    return await _OPEN.value(tx, realm_id=realm_id)


async def changes(tx: Tx, backtest_id: str, after: int, limit: int) -> list[tuple[int, Change]]:
    """With their numbers, from 1 on."""
    rows = await _CHANGES.rows(tx, backtest_id=backtest_id, after=after, limit=limit)
    return [(row["number"], made(Change, row, rule=Rule(row["rule"]))) for row in rows]


async def claim(tx: Tx, holder: str, lease_seconds: float) -> tuple[BacktestRow, int] | None:
    """The next to run, and how often one was begun; what an earlier worker found is forgotten."""
    row = await _CLAIM.row(tx, holder=holder, lease_seconds=lease_seconds)
    if row is None:
        return None
    await _FORGET_CHANGES.run(tx, backtest_id=row["id"])
    return _backtest(row), row["tries"]


async def note_progress(
    tx: Tx,
    backtest_id: str,
    holder: str,
    percent: int,
    lease_seconds: float,
    found: Sequence[tuple[int, Change]],
) -> bool:
    """False when another worker has taken it over, or it is gone."""
    held = await _PROGRESS.count(
        tx, backtest_id=backtest_id, holder=holder, percent=percent, lease_seconds=lease_seconds
    )
    if held and found:
        await tx.copy_records_to_table(
            "backtest_change",
            columns=["backtest_id", "number", *Change.__struct_fields__],
            records=[
                (backtest_id, number, *msgspec.structs.astuple(change)) for number, change in found
            ],
        )
    return held > 0


async def give_back(tx: Tx, holder: str) -> None:
    """What this worker has waits again, as if it had not begun with it."""
    await _GIVE_BACK.run(tx, holder=holder)


async def finish(
    tx: Tx, backtest_id: str, holder: str, *, result: bytes | None, problem: str | None
) -> None:
    await _FINISH.run(
        tx,
        backtest_id=backtest_id,
        holder=holder,
        result=None if result is None else result.decode(),
        problem=problem,
    )


async def forget_backtests(tx: Tx, days: int, limit: int) -> int:
    return await _FORGET.count(tx, days=days, limit=limit)


def _backtest(row: Row) -> BacktestRow:
    result = row["result"]
    return made(
        BacktestRow,
        row,
        asked=_asked(row["asked"]),
        result=None if result is None else result.encode(),
    )
