"""Queries as text that can be read, and pasted into psql: parameters have names, not numbers.

A query is written once, at the head of its store:

    _GET = Query(f'''
        SELECT {columns(KeyRow)} FROM api_key
         WHERE realm_id = :realm_id AND id = :key_id
    ''')

and asked by name: `row = await _GET.row(tx, realm_id=1, key_id="key_…")`. In psql it runs as it
stands after `\\set realm_id 1`.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bursar.db import Row, Tx

# `:name`, but neither the cast `::text` nor what stands between quotes.
_QUOTED = re.compile(r"('(?:[^']|'')*')")
_PARAMETER = re.compile(r"(?<!:):([a-z][a-z0-9_]*)")


class Query:
    """A statement with named parameters. A name that is missing or unknown raises TypeError."""

    __slots__ = ("names", "text")

    def __init__(self, text: str) -> None:
        names: dict[str, int] = {}

        def number(match: re.Match[str]) -> str:
            return f"${names.setdefault(match[1], len(names) + 1)}"

        pieces = _QUOTED.split(text)
        pieces[::2] = [_PARAMETER.sub(number, piece) for piece in pieces[::2]]
        self.text = "".join(pieces)
        self.names = tuple(names)

    async def rows(self, tx: Tx, /, **values: Any) -> list[Row]:
        return await tx.fetch(self.text, *self._in_order(values))

    async def row(self, tx: Tx, /, **values: Any) -> Row | None:
        return await tx.fetchrow(self.text, *self._in_order(values))

    async def value(self, tx: Tx, /, **values: Any) -> Any:
        """The first column of the first row; None when there is no row."""
        return await tx.fetchval(self.text, *self._in_order(values))

    async def run(self, tx: Tx, /, **values: Any) -> str:
        """PostgreSQL's own word on what was done, such as `UPDATE 3`."""
        return await tx.execute(self.text, *self._in_order(values))

    def _in_order(self, values: dict[str, Any]) -> list[Any]:
        if len(values) == len(self.names):
            try:
                return [values[name] for name in self.names]
            except KeyError:
                pass
        missing = sorted(set(self.names) - set(values))
        unknown = sorted(set(values) - set(self.names))
        raise TypeError(f"query parameters: missing {missing}, unknown {unknown}")


def columns(row: type, table: str = "", *, but: Sequence[str] = ()) -> str:
    """The columns that a row's struct is made of, in its order; `table` is their prefix."""
    names = list(row.__annotations__)
    prefix = f"{table}." if table else ""
    return ", ".join(prefix + name for name in names if name not in but)


# Lists, newest first ------------------------------------------------------------------------------


def page(created_at: str = "created_at", id_: str = "id") -> str:
    """The end of a list's query: rows older than the place where the page before ended."""
    return f"""
           AND (:before_at::timestamptz IS NULL
                OR ({created_at}, {id_}) < (:before_at, :before_id::text))
         ORDER BY {created_at} DESC, {id_} DESC
         LIMIT :limit
    """


def after(place: tuple[datetime, str] | None, limit: int) -> dict[str, Any]:
    """The parameters of `page`."""
    before_at, before_id = place or (None, None)
    return {"before_at": before_at, "before_id": before_id, "limit": limit}
