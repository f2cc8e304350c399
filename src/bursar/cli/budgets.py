"""`bursar budgets`: ceilings that agents share."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bursar.cli.remote import All, Limit, Remote, remote, row_limit
from bursar.cli.show import ROWS, Columns
from bursar.errors import CommandFailed

if TYPE_CHECKING:
    from bursar.client.budgets import NewLimit
    from bursar.client.model import Limit as PolicyLimit
    from bursar.client.model import SharedBudget

app = typer.Typer(no_args_is_help=True, help="Ceilings that agents share.")

_LIMIT = re.compile(
    r"(hour|day|week|month|lifetime)=(?:(\d+)x|(\d+(?:\.\d+)?)(?:,(\d+)x)?)", re.ASCII
)
_Id = Annotated[str, typer.Argument(metavar="BUDGET")]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="week=250.00 (an amount), day=100x (a number of spends), hour=5.00,3x (both);"
        " windows: hour, day, week, month, lifetime. Repeat for more.",
    ),
]
_COLUMNS: "Columns[SharedBudget]" = {
    "id": lambda budget: budget.id,
    "name": lambda budget: budget.name,
    "limits": lambda budget: " ".join(map(_short, budget.limits)),
    "today": lambda budget: budget.use["day"].amount,
    "month": lambda budget: budget.use["month"].amount,
    "agents": lambda budget: budget.agent_count,
    "frozen": lambda budget: "yes" if budget.frozen else "no",
}


def _short(limit: "PolicyLimit") -> str:
    """As `--limit` takes it."""
    parts = [str(limit.amount)] if limit.amount is not None else []
    parts += [f"{limit.count}x"] if limit.count is not None else []
    return f"{limit.window}={','.join(parts)}"


def read_limits(given: Sequence[str] | None) -> "list[NewLimit]":
    """Raises CommandFailed on what is no limit."""
    limits: list[NewLimit] = []
    for text in given or ():
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise CommandFailed(
                f"{text!r} is no limit: write week=250.00, day=100x or hour=5.00,3x."
            )
        count = match[2] or match[4]
        limit = {"window": match[1], "amount": match[3], "count": count and int(count)}
        limits.append(cast("NewLimit", {k: v for k, v in limit.items() if v is not None}))
    return limits


@app.command("list")
@remote
def list_(to: Remote, limit: Limit = ROWS, every: All = False) -> None:
    """List budgets with what was used today and this month."""
    to.out.rows(to.client.budgets.list(), _COLUMNS, most=row_limit(limit, every))


@app.command()
@remote
def show(to: Remote, budget: _Id) -> None:
    """Show a budget and what was used in each window."""
    to.out.one(to.client.budgets.get(budget))


@app.command()
@remote
def create(
    to: Remote,
    name: Annotated[str, typer.Argument(help="What to call it.")],
    limits: Limits = None,
    parent: Annotated[str | None, typer.Option(help="The budget above it, for good.")] = None,
) -> None:
    """Make a budget. Put agents under it with `bursar agents create --budget`."""
    made = to.client.budgets.create(name, limits=read_limits(limits), parent_id=parent)
    to.out.done(made.id, made)


@app.command("set")
@remote
def set_(
    to: Remote,
    budget: _Id,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    limits: Limits = None,
) -> None:
    """Change a budget's name, or its limits as a whole."""
    changes: dict[str, object] = {}
    if name is not None:
        changes["name"] = name
    if limits is not None:
        changes["limits"] = read_limits(limits)
    changed = to.client.budgets.update(budget, **changes)  # pyright: ignore[reportArgumentType]
    to.out.done(f"{changed.name} is changed.", changed)


@app.command()
@remote
def freeze(to: Remote, budget: _Id) -> None:
    """Refuse every spend below it until it is thawed."""
    changed = to.client.budgets.update(budget, frozen=True)
    to.out.done(f"{changed.name} is frozen: nothing below it is approved.", changed)


@app.command()
@remote
def thaw(to: Remote, budget: _Id) -> None:
    """Let spends below it go on."""
    changed = to.client.budgets.update(budget, frozen=False)
    to.out.done(f"{changed.name} is thawed.", changed)


@app.command()
@remote
def remove(to: Remote, budget: _Id) -> None:
    """Remove a budget that nothing is under."""
    to.client.budgets.delete(budget)
    to.out.done("It is removed.")
