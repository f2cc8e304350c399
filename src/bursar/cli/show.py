"""What commands print: tables and colours on a terminal, tab-separated lines when piped, or JSON.

Data goes to standard output; notes, progress and problems to standard error.
"""

import json
import re
import sys
from codecs import iterdecode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import typer

from bursar.errors import BursarError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], object]]

ROWS: Final = 50
# The widest column of a table; longer words, such as signatures, continue on the next line.
_WIDEST: Final = 44
_UNBOUNDED: Final = 10_000
_STYLES: Final = {
    **dict.fromkeys(
        ["active", "settled", "funded", "credited", "enabled", "delivered", "paid", "free"], "green"
    ),
    **dict.fromkeys(["approved", "presented", "open"], "cyan"),
    **dict.fromkeys(["pending", "paused", "provisioned"], "yellow"),
    **dict.fromkeys(["rejected", "terminated", "depleted", "failed", "disabled", "unpaid"], "red"),
}
# What a failed call knows, by the API's names for it.
_OF_A_PROBLEM: Final = {
    "code": "code",
    "message": "message",
    "param": "param",
    "retryable": "retryable",
    "requestId": "request_id",
    "retryAfter": "retry_after",
    "idempotencyKey": "idempotency_key",
}
# Characters that `json` does not escape but a terminal obeys: C1 controls and marks that reverse
# text.
_OBEYED: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def say(text: str, *, err: bool = False, fg: str | None = None) -> None:
    """Prints lines for people. They may quote what a tenant wrote, so control characters are
    removed."""
    text = _harmless(text)
    typer.echo(text if fg is None else typer.style(text, fg=fg), err=err)


class Output:
    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        return Console(highlight=False)

    @cached_property
    def errors(self) -> "Console":
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    @property
    def on_terminal(self) -> bool:
        return self.console.is_terminal

    def note(self, text: str) -> None:
        """A note for people, on standard error, so scripts that read the output do not see it."""
        # Piped, what it is about would otherwise come after it.
        sys.stdout.flush()
        self.errors.print(plain(text), markup=False, style="dim", soft_wrap=True)

    def problem(self, problem: BursarError) -> None:
        """For scripts that asked for JSON: on standard error, in the shape of the API's errors."""
        said = {
            name: getattr(problem, attribute, None) for name, attribute in _OF_A_PROBLEM.items()
        }
        said = {name: value for name, value in said.items() if value is not None}
        known = {"code": type(problem).__name__, "message": str(problem)}
        typer.echo(json.dumps({"error": known | said}), err=True)

    def line(self, model: Any) -> None:
        """One of a stream of objects, as JSON on a line of its own."""
        from bursar.client.codec import write

        print(_json_text(write(model), None), flush=True)

    def one(self, model: T, chosen: Columns[T] | None = None) -> None:
        """Everything about one object, or what is `chosen` of it for people; JSON has it all."""
        from bursar.client.codec import write

        if chosen is None:
            facts = list(_facts(model))
        else:
            picked = ((name, value(model)) for name, value in chosen.items())
            facts = [(name, value) for name, value in picked if value is not None]
        if self.as_json:
            self._json(write(model))
        elif self.on_terminal:
            from rich.table import Table

            grid = Table.grid(padding=(0, 2))
            for name, value in facts:
                grid.add_row(f"[bold]{name}", self._cell(value))
            self.console.print(grid)
        else:
            for name, value in facts:
                print(f"{name}\t{plain(value)}")

    def rows(self, rows: Iterable[T], columns: Columns[T], *, most: int | None = None) -> None:
        """Prints at most so many rows of a list, and says so when there are more."""
        from bursar.client.codec import write

        shown = list(self.counted(rows if most is None else islice(rows, most + 1)))
        more = most is not None and len(shown) > most
        shown = shown[:most]
        if self.as_json:
            self._json([write(row) for row in shown])
        elif self.on_terminal:
            self._table(shown, columns)
        else:
            print("\t".join(columns))
            for row in shown:
                print("\t".join(plain(value(row)) for value in columns.values()))
        if more:
            self.note(f"The first {most}; see more with --limit or --all.")

    def counted(self, rows: Iterable[T]) -> Iterator[T]:
        """The rows, with a count on the terminal while they are read."""
        if not self.errors.is_terminal:
            yield from rows
            return
        with self.errors.status("reading …") as status:
            for number, row in enumerate(rows, 1):
                if number % 100 == 0:
                    status.update(f"reading … {number:,} rows")
                yield row

    @contextmanager
    def waiting(self, what: str) -> Generator[None]:
        """Shows a spinner while a call takes long."""
        if self.errors.is_terminal:
            with self.errors.status(what):
                yield
        else:
            yield

    def done(self, text: str, model: Any = None) -> None:
        """The outcome of a command in a sentence; the object itself with `--json`."""
        if self.as_json and model is not None:
            self.one(model)
        elif not self.as_json:
            self.console.print(plain(text), markup=False, soft_wrap=True)

    def csv(self, pieces: Iterable[bytes]) -> None:
        """Prints CSV as it arrives; on a terminal, without control characters."""
        if self.on_terminal:
            for text in iterdecode(pieces, "utf-8", "replace"):
                typer.echo(_harmless(text), nl=False)
        else:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    def body(self, content: bytes) -> None:
        """Prints what a stranger sent, as it is; on a terminal, only text and without control
        characters."""
        if not self.on_terminal:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return
        try:
            text = content.decode()
        except UnicodeDecodeError:
            self.note(f"{len(content):,} bytes that are no text: send them to a file with > FILE")
        else:
            typer.echo(_harmless(text), nl=not text.endswith("\n"))

    def _table(self, rows: list[T], columns: Columns[T]) -> None:
        """A table with as many columns as fit without breaking a word; names the columns it leaves
        out."""
        from rich.measure import Measurement

        if not rows:
            self.console.print("[dim]none")
            return
        shown = dict(columns)
        table = self._drawn(rows, shown)
        options = self.console.options.update(width=_UNBOUNDED)
        while Measurement.get(self.console, options, table).minimum > self.console.width:
            if len(shown) == 1:
                break
            shown.popitem()
            table = self._drawn(rows, shown)
        self.console.print(table)
        if left_out := [title for title in columns if title not in shown]:
            self.note(f"No room for: {', '.join(left_out)}. A wider terminal or --json has all.")

    def _drawn(self, rows: list[T], columns: Columns[T]) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        cells = [[self._cell(value(row)) for row in rows] for value in columns.values()]
        for title, column in zip(columns, cells, strict=True):
            whole = all(" " not in cell and len(cell) <= _WIDEST for cell in column)
            table.add_column(title, overflow="fold", max_width=_WIDEST, no_wrap=whole)
        for row in zip(*cells, strict=True):
            table.add_row(*row)
        return table

    def _cell(self, value: object) -> "Text":
        from rich.text import Text

        text = plain(value) or "–"
        if isinstance(value, datetime):
            # The space in the middle does not break.
            text = value.astimezone(UTC).strftime("%Y-%m-%d\N{NO-BREAK SPACE}%H:%M:%S")
        return Text(text, style=_STYLES.get(text, ""))

    def _json(self, value: Any) -> None:
        indent = 2 if self.on_terminal else None
        print(_json_text(value, indent))


def _json_text(value: Any, indent: int | None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _facts(model: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Names and values of a model, including those of nested models."""
    for field in fields(model):
        value = getattr(model, field.name)
        name = prefix + field.name.replace("_", " ")
        if is_dataclass(value):
            yield from _facts(value, f"{name} ")
        elif isinstance(value, tuple) and value and is_dataclass(cast("tuple[Any, ...]", value)[0]):
            for row in cast("tuple[Any, ...]", value):
                cells = [plain(getattr(row, inner.name)) for inner in fields(row)]
                yield name, " ".join(cell for cell in cells if cell)
        else:
            yield name, value


def plain(value: object) -> str:
    """The exact value on one line, without control characters."""
    from bursar.client.codec import write

    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Decimal | datetime):
        return str(write(value))
    if isinstance(value, tuple):
        return ", ".join(plain(item) for item in cast("tuple[object, ...]", value))
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return ", ".join(f"{plain(name)}={plain(inner)}" for name, inner in pairs)
    return "".join(c if c.isprintable() else " " for c in str(value))


def _harmless(text: str) -> str:
    """The same text without control characters, but on its lines."""
    return "".join(c if c.isprintable() or c in "\n\r\t" else " " for c in text)
