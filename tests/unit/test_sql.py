"""Named parameters: what is sent to PostgreSQL, and what a wrong name costs."""

from dataclasses import dataclass

import msgspec
import pytest

from bursar.db import Database
from bursar.sql import Query, after, columns, page


class Point(msgspec.Struct):
    x: int
    y: int


@dataclass
class Line:
    id: str
    length: int


def test_names_become_numbers_in_the_order_of_their_first_use():
    """Goal: a name used twice is one parameter."""
    query = Query("SELECT :b::text, :a, :b FROM t WHERE x = :a")
    assert query.text == "SELECT $1::text, $2, $1 FROM t WHERE x = $2"
    assert query.names == ("b", "a")


def test_casts_and_quoted_text_are_left_alone():
    """Goal: only what is a parameter is taken for one."""
    text = "SELECT '12:30:00', 'it''s :no', x::int, array_agg(y)::text[], :yes"
    query = Query(text)
    assert query.text == text.replace(":yes", "$1")
    assert query.names == ("yes",)


def test_columns_are_those_of_the_struct():
    """Goal: the list of a row's columns is written once."""
    assert columns(Point) == "x, y"
    assert columns(Line, "l") == "l.id, l.length"
    assert columns(Line, but=["id"]) == "length"


async def test_a_wrong_name_is_refused_before_anything_is_sent(db: Database):
    """Goal: a typo is an error of the program, never another query."""
    query = Query("SELECT :a::int + :b::int")
    async with db.connection() as tx:
        assert await query.value(tx, b=2, a=1) == 3
        for values in ({"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}, {}):
            with pytest.raises(TypeError, match="missing"):
                await query.value(tx, **values)


async def test_pages_follow_each_other(db: Database):
    """Goal: the helper's clause and its parameters give each row once, newest first."""
    query = Query(
        f"SELECT created_at, id FROM (SELECT to_timestamp(n / 2) AS created_at, n::text AS id"
        f" FROM generate_series(1, 7) n) AS made WHERE true {page()}"
    )
    seen: list[str] = []
    place = None
    async with db.connection() as tx:
        while rows := await query.rows(tx, **after(place, 3)):
            seen += [row["id"] for row in rows]
            place = rows[-1]["created_at"], rows[-1]["id"]
    assert seen == ["7", "6", "5", "4", "3", "2", "1"]
