"""Named parameters: what is sent to PostgreSQL, and what a wrong name costs."""

from dataclasses import dataclass

import msgspec
import pytest

from bursar.db import Database
from bursar.errors import InvariantBroken
from bursar.sql import Listing, Query, columns, made, made_or_none


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


_MADE = """
    SELECT created_at, id
      FROM (SELECT to_timestamp(n / 2) AS created_at, n::text AS id, n % 2 = 1 AS odd
              FROM generate_series(1, 7) n) AS made
     WHERE true
       AND odd = :odd
"""


@pytest.mark.parametrize(("odd", "expected"), [(None, "7654321"), (True, "7531"), (False, "642")])
async def test_pages_follow_each_other(db: Database, odd: bool | None, expected: str):
    """Goal: a list gives each row that its filters let through once, newest first."""
    listing = Listing(_MADE)
    seen = ""
    place = None
    async with db.connection() as tx:
        while rows := await listing.rows(tx, place, 3, odd=odd):
            seen += "".join(row["id"] for row in rows)
            place = rows[-1]["created_at"], rows[-1]["id"]
    assert seen == expected


async def test_a_filter_of_a_list_that_does_not_exist_is_refused(db: Database):
    """Goal: a typo in a filter's name never lists everything."""
    async with db.connection() as tx:
        with pytest.raises(TypeError, match="unknown"):
            await Listing(_MADE).rows(tx, None, 3, odd=None, even=None)


async def test_what_was_written_is_counted(db: Database):
    """Goal: `count` is the number of rows, and `one` insists on a row."""
    async with db.transaction() as tx:
        await Query("CREATE TEMPORARY TABLE made (n int) ON COMMIT DROP").run(tx)
        insert = Query("INSERT INTO made SELECT generate_series(1, :most::int)")
        assert await insert.count(tx, most=3) == 3
        assert (await Query("SELECT count(*) AS n FROM made").one(tx))["n"] == 3
        with pytest.raises(InvariantBroken):
            await Query("SELECT FROM made WHERE n = :n").one(tx, n=4)


async def test_a_struct_is_made_of_its_own_columns(db: Database):
    """Goal: what a query returns besides is no concern of the struct, and a column that the
    database writes otherwise is given apart."""
    async with db.connection() as tx:
        row = await tx.fetchrow("SELECT 1 AS x, 2 AS y, 'a' AS id, '3' AS length")
    assert row is not None
    assert made(Point, row) == made_or_none(Point, row) == Point(1, 2)
    assert made(Line, row, length=int(row["length"])) == Line("a", 3)
    assert made_or_none(Point, None) is None
