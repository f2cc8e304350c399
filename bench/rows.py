"""A figure, what it is held against, and how figures are printed and kept."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

# Runs on a quiet machine differ by less.
_NOTICEABLE: Final = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`ratio` is value over reference, or value over the limit where nothing is referred to.

    `target` says in words what `holds` judges; both are None for a figure that only informs.
    """

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    target: str | None = None
    holds: bool | None = None


def at_least(name: str, value: float, unit: str, reference: float, times: float) -> Row:
    """A rate that must be so many times the reference."""
    ratio = value / reference
    return Row(
        name=name,
        value=value,
        unit=unit,
        reference=reference,
        ratio=ratio,
        target=f">= {times:g} x reference",
        holds=ratio >= times,
    )


def below(name: str, value: float, unit: str, reference: float, times: float) -> Row:
    """A time that must stay under so many times the reference."""
    ratio = value / reference
    return Row(
        name=name,
        value=value,
        unit=unit,
        reference=reference,
        ratio=ratio,
        target=f"< {times:g} x reference",
        holds=ratio < times,
    )


def within(name: str, value: float, unit: str, most: float) -> Row:
    """A figure with a limit of its own."""
    return Row(
        name=name,
        value=value,
        unit=unit,
        ratio=value / most,
        target=f"<= {most:g} {unit}",
        holds=value <= most,
    )


def table(rows: Sequence[Row]) -> str:
    lines = [("", "value", "", "reference", "ratio", "target", "")]
    lines += [
        (
            row.name,
            figure(row.value),
            row.unit,
            "" if row.reference is None else figure(row.reference),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.target or "",
            {True: "holds", False: "MISSED", None: ""}[row.holds],
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # Numbers end together, words begin together.
    to_the_right = (False, True, False, True, True, False, False)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, to_the_right, strict=True)
        ).rstrip()
        for line in lines
    )


def worse(before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    """The figures whose ratio to their reference got worse by more than a run differs from the
    next. Ratios, because two runs are seldom made by machines of the same mood."""
    known = {row.name: row for row in before}
    found: list[str] = []
    for row in now:
        old = known.get(row.name)
        if row.ratio is None or row.target is None or old is None or old.ratio is None:
            continue
        rises = row.target.startswith(">=")
        change = old.ratio / row.ratio if rises else row.ratio / old.ratio
        if change > _NOTICEABLE:
            found.append(f"{row.name}: {old.ratio:.2f} -> {row.ratio:.2f}")
    return found


def figure(value: float) -> str:
    """Three digits are as much as a benchmark knows, but whole numbers are not cut."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def save(rows: Sequence[Row], path: Path) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", "utf-8")


def load(path: Path) -> list[Row]:
    return [Row(**fields) for fields in json.loads(path.read_text("utf-8"))]
