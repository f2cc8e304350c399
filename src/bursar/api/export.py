"""Streams lists as CSV. Cells are quoted so that no spreadsheet runs them as formulas."""

import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from bursar.api.call import Call, Stream, created
from bursar.db import Tx
from bursar.form.cursor import Place

T = TypeVar("T")

ROWS: Final = 500
# A spreadsheet would run a cell that starts so as a formula.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def export_csv(
    call: Call,
    filename: str,
    columns: Sequence[str],
    read: Callable[[Tx, Place | None, int], Awaitable[Sequence[T]]],
    show: Callable[[T], Any],
) -> Stream:
    """All rows of a list. `read` gives at most so many rows from a place on."""

    async def page(start: Place | None, limit: int) -> Sequence[T]:
        async with call.services.db.connection() as tx:
            return await read(tx, start, limit)

    return Stream("text/csv; charset=utf-8", filename, _csv(columns, page, show))


async def _csv(
    columns: Sequence[str],
    read: Callable[[Place | None, int], Awaitable[Sequence[T]]],
    show: Callable[[T], Any],
) -> AsyncIterator[bytes]:
    """Reads page by page, each on its own: a slow reader costs neither memory nor a transaction."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(columns)
    start: Place | None = None
    while True:
        rows = await read(start, ROWS)
        shown = (msgspec.to_builtins(show(row)) for row in rows)
        writer.writerows([_cell(row[name]) for name in columns] for row in shown)
        yield buffer.getvalue().encode()
        if len(rows) < ROWS:
            return
        start = created(rows[-1])
        buffer.seek(0)
        buffer.truncate()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = msgspec.json.encode(value).decode() if isinstance(value, Mapping) else str(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
