"""The rows as a picture: one bar a row, its length what was reached in units of the target.

Plain SVG, readable on a light and on a dark page, and the same bytes for the same rows.
"""

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from bench.rows import Row, figure

_WIDTH: Final = 860
_LINE: Final = 44
_TOP: Final = 40
_BAR_START: Final = 16
# Where every target lies. Bars end at twice the target, or the chart would be about one of them.
_TARGET_AT: Final = 430
_MOST: Final = 1.9

_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 11px; fill: #59636e; }
.better { fill: #2da44e; } .worse { fill: #bf5b04; } .line { stroke: #1f2328; }
.back { fill: #8c959f; opacity: .18; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .small { fill: #9198a1; } .line { stroke: #f0f6fc; }
  .better { fill: #3fb950; } .worse { fill: #e3843c; }
}
"""


def chart(rows: Sequence[Row], note: str) -> str:
    """Rows without a target are left out: there is nothing to draw them against."""
    judged = [row for row in rows if row.ratio is not None and row.target is not None]
    height = _TOP + _LINE * len(judged) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>Benchmark figures against their targets</title>",
        f"<style>{_STYLE}</style>",
        f'<text class="small" x="{_TARGET_AT}" y="16" text-anchor="middle">target</text>',
        *(_bar(row, _TOP + _LINE * number) for number, row in enumerate(judged)),
        f'<text class="small" x="{_BAR_START}" y="{height - 8}">{escape(note)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def reached(row: Row) -> float:
    """How much of the target was reached: above 1 it holds, whichever way the target points."""
    assert row.ratio is not None
    assert row.target is not None
    match = re.match(r"(>=|<=|<) ([0-9.]+)", row.target)
    assert match is not None, row.target
    if match[1] == ">=":
        return row.ratio / float(match[2])
    limit = float(match[2]) if row.reference is not None else 1.0
    return limit / row.ratio


def _bar(row: Row, top: int) -> str:
    scale = _TARGET_AT - _BAR_START
    length = round(min(reached(row), _MOST) * scale)
    kind = "better" if row.holds else "worse"
    told = f"{figure(row.value)} {row.unit}"
    if row.reference is not None:
        told += f" against {figure(row.reference)} {row.unit}: {row.ratio:.2f} x"
    told += f", target {row.target}"
    return (
        f'<text x="{_BAR_START}" y="{top}">{escape(row.name)}'
        f' <tspan class="small" dx="8">{escape(told)}</tspan></text>'
        f'<rect class="back" x="{_BAR_START}" y="{top + 8}" width="{round(_MOST * scale)}"'
        f' height="14" rx="3"/>'
        f'<rect class="{kind}" x="{_BAR_START}" y="{top + 8}" width="{length}" height="14"'
        ' rx="3"/>'
        f'<path class="line" d="M{_TARGET_AT} {top + 4}v22" stroke-width="2"/>'
    )
