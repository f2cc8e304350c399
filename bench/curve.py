"""The times of answers at rising load, as a picture: three lines over the number of connections."""

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Final

from bench.rows import Row, figure

_WIDTH, _HEIGHT = 860, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 120, 30, 64
# Between the names of two lines that end close together.
_APART: Final = 15.0
_NAME: Final = re.compile(r"authorise at (\d+) connections?, (rate|p50|p99|p99\.9)")
_LINES: Final = {"p50": "#2da44e", "p99": "#bf8700", "p99.9": "#cf222e"}
_STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #59636e; } .grid { stroke: #8c959f; opacity: .3; }
@media (prefers-color-scheme: dark) { text { fill: #9198a1; } }
"""


def curve(rows: Sequence[Row]) -> str | None:
    """None when the load was not measured, as on a machine without wrk."""
    found: dict[int, dict[str, Row]] = {}
    for row in rows:
        match = _NAME.fullmatch(row.name)
        if match is not None:
            found.setdefault(int(match[1]), {})[match[2]] = row
    if not found:
        return None
    times = [found[load][kind].value for load in found for kind in _LINES]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    foot, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def x(number: int) -> float:
        return _LEFT + (right - _LEFT) * (number + 0.5) / len(found)

    def y(milliseconds: float) -> float:
        return foot - (foot - _TOP) * (math.log10(milliseconds) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        "<title>Times of answers at rising load</title>",
        f"<style>{_STYLE}</style>",
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>'
        )
    for number, (load, shown) in enumerate(found.items()):
        below = f'<text x="{x(number):.1f}" text-anchor="middle" y="{foot + 22}">{load} connection'
        parts.append(f"{below}{'s' if load > 1 else ''}</text>")
        rate = escape(f"{figure(shown['rate'].value)} /s")
        parts.append(
            f'<text x="{x(number):.1f}" text-anchor="middle" y="{foot + 40}">{rate}</text>'
        )
    free = math.inf
    for kind, colour in _LINES.items():  # from the lowest line up
        points = [(x(n), y(shown[kind].value)) for n, shown in enumerate(found.values())]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        last = list(found.values())[-1][kind]
        at = min(points[-1][1] + 4, free)
        free = at - _APART
        parts.append(
            f'<text x="{points[-1][0] + 10:.1f}" y="{at:.1f}">{kind}:'
            f" {figure(last.value)} ms</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
