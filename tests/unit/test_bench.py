"""The benchmark's own judgement: rows, table, file and picture, on figures that are made up."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench import chart, machine
from bench.rows import Row, at_least, below, load, save, table, within, worse

FAST = at_least("authorise", 7_000.4, "/s", 3_500.2, 2.0)
SLOW = below("p50 <one & only>", 1.5, "ms", 0.4, 3.0)
HEAVY = within("memory", 300.0, "MB", 400.0)
PLAIN = Row(name="p99", value=12.34, unit="ms")
ROWS = [FAST, SLOW, HEAVY, PLAIN]


@pytest.mark.parametrize(
    ("row", "holds"),
    [
        (at_least("a rate", 2.0, "/s", 1.0, 2.0), True),
        (at_least("a rate", 1.99, "/s", 1.0, 2.0), False),
        (below("a time", 2.99, "ms", 1.0, 3.0), True),
        (below("a time", 3.0, "ms", 1.0, 3.0), False),
        (within("a limit", 400.0, "MB", 400.0), True),
        (within("a limit", 400.1, "MB", 400.0), False),
    ],
)
def test_a_target_holds_exactly_where_it_says(row: Row, holds: bool):
    """Goal: the edge of a target is on the right side, and the bar of the chart agrees."""
    assert row.holds is holds
    if row.value not in (3.0, 400.0):
        assert (chart.reached(row) >= 1) is holds


def test_the_table_shows_every_row_and_what_was_missed():
    """Goal: one line a row, in order, and a missed target cannot be overlooked."""
    lines = table(ROWS).splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert lines[1].split() == ["authorise", "7,000", "/s", "3,500", "2.00", ">=", "2", "x",
                                "reference", "holds"]  # fmt: skip
    assert lines[2].endswith("MISSED")
    assert lines[3].split() == ["memory", "300", "MB", "0.75", "<=", "400", "MB", "holds"]
    assert lines[4].split() == ["p99", "12.3", "ms"]


def test_the_file_holds_what_others_read(tmp_path: Path):
    """Goal: a list of {name, value, unit, reference, ratio, target, holds}, and it comes back."""
    path = tmp_path / "results.json"
    save(ROWS, path)
    written = json.loads(path.read_text())
    assert [list(row) for row in written] == [
        ["name", "value", "unit", "reference", "ratio", "target", "holds"]
    ] * len(ROWS)
    assert written[3] == {
        "name": "p99", "value": 12.34, "unit": "ms", "reference": None, "ratio": None,
        "target": None, "holds": None,
    }  # fmt: skip
    assert load(path) == ROWS


def test_the_chart_draws_what_has_a_target():
    """Goal: well-formed SVG, a bar for each judged row, longer the more of its target it reached,
    and the same bytes for the same rows."""
    drawn = chart.chart(ROWS, "a machine & more")
    tree = ElementTree.fromstring(drawn)
    kinds = [(e.get("class"), float(e.get("width", "0"))) for e in tree.iter() if "rect" in e.tag]
    bars = [(kind, width) for kind, width in kinds if kind != "back"]
    assert [kind for kind, _ in bars] == ["better", "worse", "better"]
    assert bars[1][1] < bars[0][1] < bars[2][1]
    assert "prefers-color-scheme: dark" in drawn
    assert drawn == chart.chart(ROWS, "a machine & more")


def test_the_machine_is_described():
    """Goal: the line names the cores, without which no figure means anything."""
    assert "cores" in machine.describe()


def test_what_got_worse_is_named():
    """Goal: a rate that fell and a time that rose are named; what changed by chance is not."""
    before = [
        at_least("rate", 100, "/s", 100, 0.7),
        below("time", 2, "ms", 1, 4),
        below("steady", 2, "ms", 1, 4),
        Row(name="informs", value=1, unit="MB"),
    ]
    now = [
        at_least("rate", 80, "/s", 100, 0.7),
        below("time", 3, "ms", 1, 4),
        below("steady", 2.2, "ms", 1, 4),
        Row(name="informs", value=9, unit="MB"),
        below("new", 9, "ms", 1, 4),
    ]
    assert worse(before, now) == ["rate: 1.00 -> 0.80", "time: 2.00 -> 3.00"]
    assert worse(now, before) == []
