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
from collections.abc import Sequence, Set
from datetime import datetime
from typing import Any, Final, TypeVar

from bursar.db import Row, Tx
from bursar.errors import present

T = TypeVar("T")

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
        return await tx.fetch(self.text, *self.in_order(values))

    async def row(self, tx: Tx, /, **values: Any) -> Row | None:
        return await tx.fetchrow(self.text, *self.in_order(values))

    async def one(self, tx: Tx, /, **values: Any) -> Row:
        """The row of a statement that always has one, such as a count."""
        return present(await self.row(tx, **values), "the statement returns a row")

    async def value(self, tx: Tx, /, **values: Any) -> Any:
        """The first column of the first row; None when there is no row."""
        return await tx.fetchval(self.text, *self.in_order(values))

    async def run(self, tx: Tx, /, **values: Any) -> str:
        """PostgreSQL's own word on what was done, such as `UPDATE 3`."""
        return await tx.execute(self.text, *self.in_order(values))

    async def run_each(self, tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
        """The statement once for each of these values, in one round trip."""
        if rows:
            await tx.executemany(self.text, [self.in_order(values) for values in rows])

    async def count(self, tx: Tx, /, **values: Any) -> int:
        """How many rows the statement wrote."""
        return int((await self.run(tx, **values)).rpartition(" ")[2])

    def in_order(self, values: dict[str, Any]) -> list[Any]:
        if len(values) == len(self.names):
            try:
                return [values[name] for name in self.names]
            except KeyError:
                pass
        missing = sorted(set(self.names) - set(values))
        unknown = sorted(set(values) - set(self.names))
        raise TypeError(f"query parameters: missing {missing}, unknown {unknown}")


def columns(kind: type, table: str = "", *, but: Sequence[str] = ()) -> str:
    """The columns that a row's struct is made of, in its order; `table` is their prefix."""
    prefix = f"{table}." if table else ""
    return ", ".join(prefix + name for name in kind.__annotations__ if name not in but)


def made(kind: type[T], row: Row, **fields: Any) -> T:
    """The struct of a row. `fields` are given in place of the columns of the same name, where the
    struct holds something else than the column does."""
    return kind(**{n: row[n] for n in kind.__annotations__ if n not in fields}, **fields)


def made_or_none(kind: type[T], row: Row | None) -> T | None:
    return None if row is None else made(kind, row)


# Sweeps -------------------------------------------------------------------------------------------

# From a SELECT, so that PostgreSQL works it out once and can look it up in an index.
DAYS_AGO: Final = "(SELECT clock_timestamp() - make_interval(days => :days))"


def sweeping(table: str, key: str, by: str, over: str) -> Query:
    """Deletes up to `:limit` rows whose time is `over`, in the order of the index on `by`.

    Without an order PostgreSQL, with the limit in sight, would read the table from its start, which
    ends soon only while there is much to delete.
    """
    return Query(f"""
    DELETE FROM {table}
     WHERE {key} = ANY(ARRAY(SELECT {key} FROM {table} WHERE {over} ORDER BY {by} LIMIT :limit))
    """)


# Filters and lists --------------------------------------------------------------------------------


class Filtered:
    """A query with filters that callers may leave out.

    Each line that begins with AND and names a parameter is a filter. It is left out of the query
    where its value is None, so that each combination is read from the index made for it.
    """

    __slots__ = ("_queries", "_text", "whole")

    def __init__(self, text: str) -> None:
        self._text = text
        self.whole = Query(text)
        self._queries: dict[frozenset[str], Query] = {}

    async def rows(self, tx: Tx, /, **values: Any) -> list[Row]:
        self.whole.in_order(values)  # raises where a name is wrong
        given = {name: value for name, value in values.items() if value is not None}
        names = frozenset(given)
        query = self._queries.get(names)
        if query is None:
            query = self._queries[names] = Query(self._without(values.keys() - names))
        return await query.rows(tx, **given)

    def _without(self, names: Set[str]) -> str:
        return "\n".join(
            line
            for line in self._text.splitlines()
            if not (line.lstrip().startswith("AND ") and names & set(_PARAMETER.findall(line)))
        )


class Listing:
    """A page of a list, newest first, with filters as in `Filtered`. The text ends with its
    conditions: that the page begins where the one before ended is added here. `around` is a query
    that reads from `{page}`."""

    __slots__ = ("_query", "whole")

    def __init__(
        self, text: str, created_at: str = "created_at", id_: str = "id", around: str = "{page}"
    ) -> None:
        page = f"""{text.rstrip()}
           AND ({created_at}, {id_}) < (:before_at, :before_id)
         ORDER BY {created_at} DESC, {id_} DESC
         LIMIT :limit
        """
        self._query = Filtered(around.replace("{page}", page))
        self.whole = self._query.whole

    async def rows(
        self, tx: Tx, before: tuple[datetime, str] | None, limit: int, /, **filters: Any
    ) -> list[Row]:
        at, id_ = before or (None, None)
        return await self._query.rows(tx, **filters, before_at=at, before_id=id_, limit=limit)
